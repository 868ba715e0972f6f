// SPDX-License-Identifier: Apache-2.0
// The list of all operators, as MXNet and the C interface see them: without C++ types.
#pragma once
#include <string>
#include <vector>

#include "contract.h"
#include "params.h"

namespace gluon_roi {

class Operator {
 public:
  Operator(const char* name, const char* symbol);
  virtual ~Operator() = default;
  const char* name() const { return name_; }      // as in Python: PSROIPool
  const char* symbol() const { return symbol_; }  // as in C: ps_roi_pool

  // ---- Called by MXNet, with parameters as attributes and the given inputs. All of these throw on
  // an unknown key or an invalid value.
  virtual std::vector<Input> inputs(const Attributes& attributes) const = 0;
  virtual const std::vector<Output>& outputs() const = 0;
  // Shapes of the outputs, with -1 where they depend on an unknown input.
  virtual std::vector<Tensor> infer(const Attributes& attributes,
                                    const std::vector<Tensor>& inputs) const = 0;
  virtual void forward(const Attributes& attributes, const std::vector<Tensor>& inputs,
                       const std::vector<Tensor>& outputs,
                       const gluon_roi_device& device) const = 0;
  // `given` has the gradient of each output, or the output itself if it holds integers, which have
  // no gradient.
  virtual void backward(const Attributes& attributes, const std::vector<Tensor>& inputs,
                        const std::vector<Tensor>& given, const std::vector<Tensor>& d_inputs,
                        const gluon_roi_device& device) const = 0;
  // Bytes of device memory that a CUDA call needs.
  virtual size_t workspace(const Attributes& attributes, const std::vector<Tensor>& inputs,
                           bool backward) const = 0;

  // Its declaration, as a JSON object.
  virtual std::string describe() const = 0;

 private:
  const char *name_, *symbol_;
};

// The JSON object of describe().
std::string describe_operator(const Operator& op, const Input* inputs, size_t count,
                              int coordinates, size_t params_size, const std::string& params);

// In no particular order.
std::vector<const Operator*>& operators();

}  // namespace gluon_roi
