// What the C interface checks before an operator sees a call: NULL pointers, counts of inputs,
// shapes, types, memory, workspace.
#pragma once
#include <vector>

#include "../core/contract.h"

namespace gluon_roi {

// An operator's inputs with one set of parameters: all slots, those of optional inputs included.
struct Slots {
  const char* op;
  std::vector<Input> inputs;
  std::vector<Tensor> tensors;  // absent: no memory, no dimensions
};

[[noreturn]] void fail_null(const char* op, const char* expected);
[[noreturn]] void fail_without_cuda(const char* op);

// Takes `count` tensors of a call for the first slots, which have to be enough. Types are checked,
// memory is not.
void take_inputs(Slots* slots, const Tensor* inputs, int32_t count);
void check_device(const char* op, const gluon_roi_device& device);
void check_inputs_memory(const Slots& slots);

// Throws unless an array has the shape and type that is expected, and memory.
void check_like(const char* op, const char* name, const Tensor& got, const Tensor& expected);
// The same for one that the call writes: it shares memory with no input, nor with `others`.
void check_written(const char* name, const Tensor& got, const Tensor& expected, const Slots& slots,
                   const Tensor* others, size_t count, const char* other_name);
void check_workspace(const char* op, size_t needed, const gluon_roi_device& device);

}  // namespace gluon_roi
