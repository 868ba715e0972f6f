// SPDX-License-Identifier: Apache-2.0
// PrROIPool in CUDA kernels: pr_roi_pool.h defines the result, cuda/align.h the kernels.
#include "../cuda/align.h"
#include "pr_roi_pool.h"

namespace gluon_roi {

size_t PrROIPool::workspace(const Params& p, const Inputs& in, bool backward) {
  return cuda::align_workspace<PrROIPool>(p, in, backward);
}

void PrROIPool::forward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& out) {
  cuda::align_forward<PrROIPool>(gpu, p, in, out);
}

void PrROIPool::backward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& d_out,
                         const Gradients& d) {
  cuda::align_backward<PrROIPool>(gpu, p, in, d_out, d);
}

}  // namespace gluon_roi
