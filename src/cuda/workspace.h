// SPDX-License-Identifier: Apache-2.0
// The workspace in device memory that a call of an operator uses, and the entry points of CUDA
// calls.
#pragma once
#include "launch.h"

namespace gluon_roi::cuda {

// Allocates arrays from the workspace. With a null pointer it only adds up their sizes:
// CudaKernels::workspace() runs the same constructors as the call itself, so the two cannot
// disagree.
class WorkspaceArena {
 public:
  explicit WorkspaceArena(const char* operator_name, char* memory = nullptr)
      : op(operator_name), memory_(memory) {}
  const char* const op;  // for error messages
  template <class T>
  T* take(int64_t count) {
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + size_);
    int64_t bytes;
    if (!multiply_up_to(kMaxElements, count, sizeof(T), &bytes) ||
        bytes > kMaxElements - static_cast<int64_t>(size_)) {
      fail(op, "a workspace of more than ", kMaxElements, " bytes would be needed");
    }
    size_ += round_up(static_cast<size_t>(bytes), 256);
    return array;
  }
  size_t size() const { return size_; }

 private:
  char* memory_;
  size_t size_ = 0;
};

// A call of an operator on elements of type T; its .cu file defines
//   Call(arena, params, view, backward), which allocates arrays from the workspace,
//   forward(gpu, outputs) and, if any input has a gradient, backward(gpu, d_outputs, gradients).
template <class Op, class T>
struct Call;

}  // namespace gluon_roi::cuda

namespace gluon_roi {

template <class Op>
void CudaKernels<Op>::forward(const Gpu& gpu, const Params& p, const Tensor* slots,
                              const Tensor* outputs) {
  const auto view = Op::view(p, slots);
  with_dtype(slots[0].dtype, [&](auto type) {
    cuda::WorkspaceArena arena(gpu.op, gpu.workspace);
    cuda::Call<Op, decltype(type)>(&arena, p, view, false).forward(gpu, Outputs{outputs});
  });
}

template <class Op>
void CudaKernels<Op>::backward(const Gpu& gpu, const Params& p, const Tensor* slots,
                               const Tensor* d_outputs, const Tensor* d_slots) {
  if constexpr (has_gradients<Op>()) {
    const auto view = Op::view(p, slots);
    with_dtype(slots[0].dtype, [&](auto type) {
      cuda::WorkspaceArena arena(gpu.op, gpu.workspace);
      cuda::Call<Op, decltype(type)>(&arena, p, view, true)
          .backward(gpu, Outputs{d_outputs}, Op::gradients(p, d_slots));
    });
  }
}

template <class Op>
size_t CudaKernels<Op>::workspace(const Params& p, const Tensor* slots, bool backward) {
  if (backward && !has_gradients<Op>()) return 0;
  cuda::WorkspaceArena arena(Op::kName);
  with_dtype(slots[0].dtype, [&](auto type) {
    cuda::Call<Op, decltype(type)>(&arena, p, Op::view(p, slots), backward);
  });
  return arena.size();
}

}  // namespace gluon_roi
