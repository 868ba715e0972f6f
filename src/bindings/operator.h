// SPDX-License-Identifier: Apache-2.0
// Makes an operator callable from its declaration (src/ops/*.h): by MXNet, with text attributes and
// only the inputs that are given, and from C, with a params struct and a slot for every input.
#pragma once
#include <algorithm>
#include <type_traits>

#include "../core/registry.h"
#include "../cpu/memory.h"
#include "../cuda/backend.h"

namespace gluon_roi {

// Op defines
//   kName, kInputs, kOutputs, kCoordinates, Params, params(visitor, params);
//   array_count(params), the number of arrays of a variadic input;
//   view(params, slots), the inputs as its kernels see them;
//   infer(params, view, outputs, max_elements), which throws or sets the shapes of the outputs;
//   forward<T>(params, view, outputs), for elements of type T on the CPU;
//   and, if any input has a gradient, computes_gradient(params, input), gradients(params, d_slots)
//   and backward<T>(params, view, d_outputs, gradients).
// RoiOperator and ArrayOperator implement most of this. CUDA builds have CudaKernels<Op> as well.
template <class Op>
class OperatorFor final : public Operator {
 public:
  using Params = typename Op::Params;

  explicit OperatorFor(const char* symbol)
      : Operator({Op::kName,
                  symbol,
                  {std::begin(Op::kInputs), std::end(Op::kInputs)},
                  {std::begin(Op::kOutputs), std::end(Op::kOutputs)},
                  Op::kCoordinates,
                  sizeof(Params)},
                 &operators()) {}
  void visit(ParamVisitor* visitor, void* params) const override {
    Op::params(visitor, static_cast<Params*>(params));
  }

  // ---- Called by MXNet ----
  std::vector<Input> inputs(const Attributes& attributes) const override {
    const Parsed parsed = parse(attributes);
    std::vector<Input> given;
    for (size_t i = 0; i < kDeclared; ++i) {
      if (parsed.given[i]) given.insert(given.end(), count_of(parsed.params, i), Op::kInputs[i]);
    }
    return given;
  }
  std::vector<Tensor> infer(const Attributes& attributes,
                            const std::vector<Tensor>& inputs) const override {
    const Parsed parsed = parse(attributes);
    return infer(parsed.params, slots_of(parsed, inputs).data(), kMaxElementsInMXNet);
  }
  void forward(const Attributes& attributes, const std::vector<Tensor>& inputs,
               const std::vector<Tensor>& outputs, const gluon_roi_device& device) const override {
    const Parsed parsed = parse(attributes);
    const std::vector<Tensor> slots = slots_of(parsed, inputs);
    // Checks the shapes again, because MXNet treats an input of unknown shape as a scalar.
    infer(parsed.params, slots.data(), kMaxElementsInMXNet);
    forward(parsed.params, slots.data(), outputs.data(), device);
  }
  void backward(const Attributes& attributes, const std::vector<Tensor>& inputs,
                const std::vector<Tensor>& d_outputs, const std::vector<Tensor>& d_inputs,
                const gluon_roi_device& device) const override {
    const Parsed parsed = parse(attributes);
    const std::vector<Tensor> slots = slots_of(parsed, inputs),
                              d_slots = slots_of(parsed, d_inputs);
    infer(parsed.params, slots.data(), kMaxElementsInMXNet);
    backward(parsed.params, slots.data(), d_outputs.data(), d_slots, device);
  }
  size_t workspace(const Attributes& attributes, const std::vector<Tensor>& inputs,
                   bool backward) const override {
    const Parsed parsed = parse(attributes);
    return workspace(parsed.params, slots_of(parsed, inputs).data(), backward);
  }

  // ---- Called from C ----
  void checked_forward(const Params* params, const Tensor* inputs, int32_t count, const Tensor* out,
                       const gluon_roi_device* device) const {
    if (out == nullptr || device == nullptr) {
      fail_null(Op::kName, "params, inputs, output and device");
    }
    const Slots slots = check_call(params, inputs, count, *device);
    const std::vector<Tensor> expected = infer(*params, slots.tensors.data(), kMaxElements);
    for (size_t i = 0; i < expected.size(); ++i) {
      check_written(outputs()[i].name, out[i], expected[i], slots);
      for (size_t j = 0; j < i; ++j) {
        check_no_overlap(Op::kName, outputs()[i].name, out[i], outputs()[j].name, out[j]);
      }
    }
    if (device->type == GLUON_ROI_CUDA) {
      check_workspace(Op::kName, workspace(*params, slots.tensors.data(), false), *device);
    }
    forward(*params, slots.tensors.data(), out, *device);
  }
  void checked_backward(const Params* params, const Tensor* inputs, int32_t count,
                        const Tensor* d_outputs, const Tensor* d_inputs,
                        const gluon_roi_device* device) const {
    if (d_outputs == nullptr || device == nullptr || d_inputs == nullptr) {
      fail_null(Op::kName, "params, inputs, d_out, d_inputs and device");
    }
    const Slots slots = check_call(params, inputs, count, *device);
    const std::vector<Tensor> expected = infer(*params, slots.tensors.data(), kMaxElements);
    for (size_t i = 0; i < expected.size(); ++i) {
      check_like(Op::kName, i == 0 ? "d_out" : outputs()[i].name, d_outputs[i], expected[i]);
    }
    std::vector<Tensor> d_slots(d_inputs, d_inputs + count);
    d_slots.resize(slots.tensors.size());
    for (size_t i = 0; i < d_slots.size(); ++i) {
      if (is_absent(d_slots[i]) && slots.inputs[i].role != Role::kMaps) continue;
      const std::string name = "d_" + slots.name(i);
      if (is_absent(slots.tensors[i])) {
        fail(Op::kName, name, " is given, expected none where there is no ", slots.name(i));
      }
      check_written(name.c_str(), d_slots[i], slots.tensors[i], slots);
      for (size_t j = 0; j < expected.size(); ++j) {
        check_no_overlap(Op::kName, name.c_str(), d_slots[i], "d_out", d_outputs[j]);
      }
      for (size_t j = 0; j < i; ++j) {
        check_no_overlap(Op::kName, name.c_str(), d_slots[i], ("d_" + slots.name(j)).c_str(),
                         d_slots[j]);
      }
    }
    if (device->type == GLUON_ROI_CUDA) {
      check_workspace(Op::kName, workspace(*params, slots.tensors.data(), true), *device);
    }
    backward(*params, slots.tensors.data(), d_outputs, d_slots, *device);
  }
  void checked_workspace(const Params* params, const Tensor* inputs, int32_t count, int backward,
                         int32_t device, size_t* bytes) const {
    if (bytes == nullptr) fail_null(Op::kName, "params, inputs and bytes");
    const Slots slots = check_inputs(params, inputs, count);
    infer(*params, slots.tensors.data(), kMaxElements);
    *bytes = device == GLUON_ROI_CUDA ? workspace(*params, slots.tensors.data(), backward != 0) : 0;
  }

 private:
  static constexpr size_t kDeclared = std::size(Op::kInputs);

  // ---- Parameters and slots ----
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
        // The Python functions set these attributes, users do not.
        if (Op::kInputs[i].optional) visit->boolean({Op::kInputs[i].name, &given}, false);
        parsed.given[i] = given != 0;
      }
    });
    return parsed;
  }
  static size_t count_of(const Params& params, size_t input) {
    return Op::kInputs[input].variadic ? static_cast<size_t>(Op::array_count(params)) : 1;
  }
  // Every input has slots, in the declared order. The slots of an input that is not given are
  // absent.
  static std::vector<Tensor> slots_of(const Parsed& parsed, const std::vector<Tensor>& given) {
    std::vector<Tensor> slots;
    auto next = given.begin();
    for (size_t i = 0; i < kDeclared; ++i) {
      for (size_t left = count_of(parsed.params, i); left > 0; --left) {
        slots.push_back(parsed.given[i] ? *next++ : Tensor{});
      }
    }
    return slots;
  }

  // ---- Calls ----
  static std::vector<Tensor> infer(const Params& params, const Tensor* slots,
                                   int64_t max_elements) {
    std::vector<Tensor> outputs;
    for (const Output& output : Op::kOutputs) {
      outputs.push_back(unknown_tensor());
      outputs.back().dtype = output.dtype == kLikeFirst ? slots[0].dtype : output.dtype;
    }
    Op::infer(params, Op::view(params, slots), outputs.data(), max_elements);
    return outputs;
  }
  static void forward(const Params& params, const Tensor* slots, const Tensor* outputs,
                      const gluon_roi_device& device) {
    const auto empty = [](const Tensor& tensor) { return elements(tensor) == 0; };
    if (std::all_of(outputs, outputs + std::size(Op::kOutputs), empty)) return;
    if (device.type == GLUON_ROI_CPU) {
      return on_cpu([&] {
        prepare_output(outputs[0]);
        with_dtype(slots[0].dtype, [&](auto type) {
          Op::template forward<decltype(type)>(params, Op::view(params, slots), Outputs{outputs});
        });
      });
    }
#ifdef GLUON_ROI_WITH_CUDA
    CudaKernels<Op>::forward(gpu(device), params, slots, outputs);
#else
    fail_without_cuda(Op::kName);
#endif
  }
  static void backward(const Params& params, const Tensor* slots, const Tensor* d_outputs,
                       const std::vector<Tensor>& d_slots, const gluon_roi_device& device) {
    if (device.type == GLUON_ROI_CPU) {
      return on_cpu([&] {
        if constexpr (has_gradients<Op>()) {
          for (size_t i = 0; i < count_of(params, 0); ++i) prepare_output(d_slots[i]);
          with_dtype(slots[0].dtype, [&](auto type) {
            Op::template backward<decltype(type)>(params, Op::view(params, slots),
                                                  Outputs{d_outputs},
                                                  Op::gradients(params, d_slots.data()));
          });
        }
        zero_others(params, d_slots, [](const Tensor& d) { zero_fill(Cpu{}, d); });
      });
    }
#ifdef GLUON_ROI_WITH_CUDA
    CudaKernels<Op>::backward(gpu(device), params, slots, d_outputs, d_slots.data());
    zero_others(params, d_slots, [&](const Tensor& d) { zero_fill(gpu(device), d); });
#else
    static_cast<void>(slots), static_cast<void>(d_outputs);
    fail_without_cuda(Op::kName);
#endif
  }
  // Runs a pass on the CPU. If memory runs out, the error names the operator.
  template <class Pass>
  static void on_cpu(const Pass& pass) {
    cpu::check_environment();
    try {
      pass();
    } catch (const NoMemory& lack) {
      fail_without_memory(Op::kName, lack.bytes);
    }
  }
  // Writes zeros to the gradients of inputs that have none. This comes last, because a call that
  // fails must not write anything.
  template <class Zero>
  static void zero_others(const Params& params, const std::vector<Tensor>& d_slots,
                          const Zero& zero) {
    size_t slot = 0;
    for (size_t i = 0; i < kDeclared; ++i) {
      bool computed = false;
      if constexpr (has_gradients<Op>()) computed = Op::computes_gradient(params, i);
      for (size_t n = count_of(params, i); n > 0; --n, ++slot) {
        if (!computed && !is_absent(d_slots[slot])) zero(d_slots[slot]);
      }
    }
  }
  static size_t workspace(const Params& params, const Tensor* slots, bool backward) {
#ifdef GLUON_ROI_WITH_CUDA
    return CudaKernels<Op>::workspace(params, slots, backward);
#else
    static_cast<void>(params), static_cast<void>(slots), static_cast<void>(backward);
    fail_without_cuda(Op::kName);
#endif
  }
  static Gpu gpu(const gluon_roi_device& device) {
    return Gpu{Op::kName, device.stream, static_cast<char*>(device.workspace)};
  }

  // ---- Checks of calls from C ----
  static Slots check_inputs(const Params* params, const Tensor* inputs, int32_t count) {
    if (params == nullptr || inputs == nullptr) fail_null(Op::kName, "params and inputs");
    check_params(Op::kName,
                 [&](ParamVisitor* visit) { Op::params(visit, const_cast<Params*>(params)); });
    Slots slots{Op::kName, {}, {}};
    for (size_t i = 0; i < kDeclared; ++i) {
      slots.inputs.insert(slots.inputs.end(), count_of(*params, i), Op::kInputs[i]);
    }
    assign_inputs(&slots, inputs, count);
    return slots;
  }
  static Slots check_call(const Params* params, const Tensor* inputs, int32_t count,
                          const gluon_roi_device& device) {
    const Slots slots = check_inputs(params, inputs, count);
    check_device(Op::kName, device);
    check_inputs_memory(slots);
    return slots;
  }
};

}  // namespace gluon_roi
