// SPDX-License-Identifier: Apache-2.0
// CUDA functions for plain C++: including this needs no CUDA header.
#pragma once
#include "../core/contract.h"

namespace gluon_roi {

// The CUDA half of an operator, on the tensors of all inputs. The operator's .cu file instantiates
// it: without one, linking fails.
template <class Op>
struct CudaHalf {
  using Params = typename Op::Params;
  static void forward(const Gpu& gpu, const Params& p, const Tensor* slots, const Tensor* outputs);
  static void backward(const Gpu& gpu, const Params& p, const Tensor* slots, const Tensor* given,
                       const Tensor* d_slots);
  // Bytes of device memory that a call needs.
  static size_t workspace(const Params& p, const Tensor* slots, bool backward);
};

// Writes zeros, as the gradient of an input that has none.
void zero_fill(const Gpu& gpu, const Tensor& tensor);

}  // namespace gluon_roi
