// SPDX-License-Identifier: Apache-2.0
// Makes an operator callable that only MXNet calls, on the CPU, for networks that gluon_roi
// converts for inference: it has no gradient, no CUDA kernels and no function in gluon_roi.h.
#pragma once
#include <vector>

#include "../core/registry.h"
#include "../cpu/memory.h"

namespace gluon_roi {

// What such operators share.
class ForwardOnCpu : public Operator {
 public:
  using Operator::Operator;
  void backward(const Attributes&, const std::vector<Tensor>&, const std::vector<Tensor>&,
                const std::vector<Tensor>&, const gluon_roi_device&) const final {
    fail(name(), "has no gradient, because it is for inference only; train the network that ",
         "gluon_roi.optimize(..., inference=True) was given");
  }
  // Called first for arrays on a GPU.
  size_t workspace(const Attributes&, const std::vector<Tensor>&, bool) const final {
    fail(name(), "data is on a GPU, expected the CPU; on a GPU, call the network that ",
         "gluon_roi.optimize(..., inference=True) was given");
  }

 protected:
  // Runs a kernel. If memory runs out, the error names the operator.
  template <class Kernel>
  void run(const Tensor& output, const Kernel& kernel) const {
    if (elements(output) == 0) return;
    cpu::check_environment();
    try {
      prepare_output(output);
      kernel();
    } catch (const NoMemory& lack) {
      fail_without_memory(name(), lack.bytes);
    }
  }
};

// Op defines kName, kInputs, kOutputs, Params and params() as for OperatorFor (operator.h), and
//   kIsExclusive, whether MXNet runs it while no other operator reads its first input;
//   view(slots), the inputs as its kernels see them;
//   infer(params, view, outputs, max_elements), which throws or sets the shapes of the outputs;
//   forward(params, view, output).
template <class Op>
class InferenceOperator final : public ForwardOnCpu {
 public:
  using Params = typename Op::Params;

  InferenceOperator()
      : ForwardOnCpu({Op::kName,
                      "",
                      {std::begin(Op::kInputs), std::end(Op::kInputs)},
                      {std::begin(Op::kOutputs), std::end(Op::kOutputs)},
                      0,
                      sizeof(Params)},
                     &inference_operators()) {}
  void visit(ParamVisitor* visitor, void* params) const override {
    Op::params(visitor, static_cast<Params*>(params));
  }
  std::vector<Input> inputs(const Attributes& attributes) const override {
    const Parsed parsed = parse(attributes);
    std::vector<Input> given;
    for (size_t i = 0; i < kDeclared; ++i) {
      if (parsed.given[i]) given.push_back(Op::kInputs[i]);
    }
    return given;
  }
  std::vector<Tensor> infer(const Attributes& attributes,
                            const std::vector<Tensor>& inputs) const override {
    const Parsed parsed = parse(attributes);
    return infer(parsed, slots_of(parsed, inputs));
  }
  void forward(const Attributes& attributes, const std::vector<Tensor>& inputs,
               const std::vector<Tensor>& outputs, const gluon_roi_device&) const override {
    const Parsed parsed = parse(attributes);
    const std::vector<Tensor> slots = slots_of(parsed, inputs);
    // MXNet takes an input of unknown shape for a scalar.
    infer(parsed, slots);
    run(outputs[0], [&] { Op::forward(parsed.params, Op::view(slots.data()), outputs[0]); });
  }
  bool is_exclusive() const override { return Op::kIsExclusive; }

 private:
  static constexpr size_t kDeclared = std::size(Op::kInputs);

  struct Parsed {
    Params params;
    bool given[kDeclared];  // which inputs are given
  };
  static Parsed parse(const Attributes& attributes) {
    Parsed parsed{};
    parse_params(Op::kName, attributes, [&](ParamVisitor* visit) {
      Op::params(visit, &parsed.params);
      for (size_t i = 0; i < kDeclared; ++i) {
        int32_t given = 1;
        if (Op::kInputs[i].optional) visit->boolean({Op::kInputs[i].name, &given}, false);
        parsed.given[i] = given != 0;
      }
    });
    return parsed;
  }
  // Every input has a slot; an input that is not given has an absent tensor.
  static std::vector<Tensor> slots_of(const Parsed& parsed, const std::vector<Tensor>& given) {
    std::vector<Tensor> slots(kDeclared);
    auto next = given.begin();
    for (size_t i = 0; i < kDeclared; ++i) {
      if (parsed.given[i]) slots[i] = *next++;
    }
    return slots;
  }
  static std::vector<Tensor> infer(const Parsed& parsed, const std::vector<Tensor>& slots) {
    std::vector<Tensor> outputs(std::size(Op::kOutputs), unknown_tensor());
    Op::infer(parsed.params, Op::view(slots.data()), outputs.data(), kMaxElementsInMXNet);
    return outputs;
  }
};

}  // namespace gluon_roi
