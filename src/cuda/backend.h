// SPDX-License-Identifier: Apache-2.0
// The CUDA backend as seen from plain C++; no CUDA header is needed to include this.
#pragma once
#include "../core/contract.h"

namespace gluon_roi {

// The CUDA kernels of an operator, on the slots of all inputs. The operator's .cu file instantiates
// this template; without that, linking fails.
template <class Op>
struct CudaKernels {
  using Params = typename Op::Params;
  static void forward(const Gpu& gpu, const Params& p, const Tensor* slots, const Tensor* outputs);
  static void backward(const Gpu& gpu, const Params& p, const Tensor* slots,
                       const Tensor* d_outputs, const Tensor* d_slots);
  // Returns the bytes of device memory that a call needs.
  static size_t workspace(const Params& p, const Tensor* slots, bool backward);
};

// Writes zeros, the gradient of an input that has none.
void zero_fill(const Gpu& gpu, const Tensor& tensor);

}  // namespace gluon_roi
