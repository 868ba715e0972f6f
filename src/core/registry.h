// SPDX-License-Identifier: Apache-2.0
// The lists of all operators, through an interface without templates, for MXNet and the C
// interface.
#pragma once
#include <string>
#include <vector>

#include "contract.h"
#include "params.h"

namespace gluon_roi {

struct Declaration {
  const char* name;           // in Python: PSROIPool
  const char* symbol;         // in C: ps_roi_pool
  std::vector<Input> inputs;  // including optional inputs
  std::vector<Output> outputs;
  int32_t coordinates;  // of a box; 0 if the operator does not pool boxes
  size_t params_size;   // size of the params struct in bytes
};

class AnyRank;  // core/any_rank.h

class Operator {
 public:
  // Adds the operator to a list; GLUON_ROI_OPERATOR defines a static instance in operators().
  // Registering the same name twice aborts the process.
  Operator(Declaration declared, std::vector<const Operator*>* list);
  virtual ~Operator() = default;
  const Declaration& declared() const { return declared_; }
  const char* name() const { return declared_.name; }
  const std::vector<Output>& outputs() const { return declared_.outputs; }
  // Applies a visitor to every field of a params struct.
  virtual void visit(ParamVisitor* visitor, void* params) const = 0;
  // The declaration, as a JSON object.
  std::string describe() const;

  // ---- Called by MXNet, with parameters as attributes and only the inputs that are given. These
  // functions throw on an unknown key or an invalid value.
  virtual std::vector<Input> inputs(const Attributes& attributes) const = 0;
  // Returns the shapes of the outputs; a dimension that depends on an unknown input is -1.
  virtual std::vector<Tensor> infer(const Attributes& attributes,
                                    const std::vector<Tensor>& inputs) const = 0;
  virtual void forward(const Attributes& attributes, const std::vector<Tensor>& inputs,
                       const std::vector<Tensor>& outputs,
                       const gluon_roi_device& device) const = 0;
  // `d_outputs` has the gradient of each output. An integer output has no gradient, so the output
  // itself takes its place.
  virtual void backward(const Attributes& attributes, const std::vector<Tensor>& inputs,
                        const std::vector<Tensor>& d_outputs, const std::vector<Tensor>& d_inputs,
                        const gluon_roi_device& device) const = 0;
  // Returns the bytes of device memory that a CUDA call needs.
  virtual size_t workspace(const Attributes& attributes, const std::vector<Tensor>& inputs,
                           bool backward) const = 0;
  // Whether MXNet's engine has to run the operator while no other one reads its first input.
  virtual bool is_exclusive() const { return false; }
  // Null if the operator's arrays are Tensors.
  virtual const AnyRank* any_rank() const { return nullptr; }

 private:
  const Declaration declared_;
};

// All operators, in the order of static initialization, which nothing may depend on.
std::vector<const Operator*>& operators();
// Operators that only the conversion for inference needs (src/bindings/inference.h): registered
// with MXNet, but without a function in Python or in the C interface.
std::vector<const Operator*>& inference_operators();

}  // namespace gluon_roi
