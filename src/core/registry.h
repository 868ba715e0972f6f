// SPDX-License-Identifier: Apache-2.0
// The lists of all operators, as MXNet and the C interface see them: without C++ types.
#pragma once
#include <string>
#include <vector>

#include "contract.h"
#include "params.h"

namespace gluon_roi {

struct Declaration {
  const char* name;             // as in Python: PSROIPool
  const char* symbol;           // as in C: ps_roi_pool
  std::vector<Input> inputs;    // optional ones among them
  std::vector<Output> outputs;  // all of them
  int32_t coordinates;          // of a box; 0 if it pools none
  size_t params_size;           // bytes of its params struct
};

class Operator {
 public:
  // Adds the operator to a list: GLUON_ROI_OPERATOR makes a static one in operators(). A second one
  // of a name ends the process.
  Operator(Declaration declared, std::vector<const Operator*>* list);
  virtual ~Operator() = default;
  const Declaration& declared() const { return declared_; }
  const char* name() const { return declared_.name; }
  const std::vector<Output>& outputs() const { return declared_.outputs; }
  // Shows a visitor every field of a params struct.
  virtual void visit(ParamVisitor* visitor, void* params) const = 0;
  // The declaration, as a JSON object.
  std::string describe() const;

  // ---- Called by MXNet, with parameters as attributes and the given inputs. All of these throw on
  // an unknown key or an invalid value.
  virtual std::vector<Input> inputs(const Attributes& attributes) const = 0;
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

 private:
  const Declaration declared_;
};

// In the order in which the library's files are initialized, which nothing may depend on.
std::vector<const Operator*>& operators();
// Those that only graphs for inference have (src/bindings/inference.h): MXNet sees them, Python's
// functions and the C interface do not.
std::vector<const Operator*>& inference_operators();

}  // namespace gluon_roi
