// SPDX-License-Identifier: Apache-2.0
// Checks of calls from C, before an operator sees them: NULL pointers, number of inputs, shapes,
// types, memory, workspace.
#pragma once
#include <vector>

#include "../core/contract.h"

namespace gluon_roi {

// An operator's inputs for one set of parameters: all slots, including those of optional inputs.
struct Slots {
  const char* op;
  std::vector<Input> inputs;
  std::vector<Tensor> tensors;  // absent: no memory, no dimensions
};

[[noreturn]] void fail_null(const char* op, const char* expected);
[[noreturn]] void fail_without_cuda(const char* op);

// Assigns the `count` tensors of a call to the first slots, and throws if a required one is
// missing. Checks types, but not memory.
void take_inputs(Slots* slots, const Tensor* inputs, int32_t count);
void check_device(const char* op, const gluon_roi_device& device);
void check_inputs_memory(const Slots& slots);

// Throws unless an array has memory and the expected shape and type.
void check_like(const char* op, const char* name, const Tensor& got, const Tensor& expected);
// The same for an array that the call writes: it must not share memory with an input or `others`.
void check_written(const char* name, const Tensor& got, const Tensor& expected, const Slots& slots,
                   const Tensor* others, size_t count, const char* other_name);
void check_workspace(const char* op, size_t needed, const gluon_roi_device& device);

}  // namespace gluon_roi
