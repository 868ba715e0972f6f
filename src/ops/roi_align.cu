// SPDX-License-Identifier: Apache-2.0
// ROIAlign in CUDA kernels: roi_align.h defines the result, cuda/align.h the kernels.
#include "../cuda/align.h"
#include "roi_align.h"

namespace gluon_roi {

size_t ROIAlign::workspace(const Params& p, const Inputs& in, bool backward) {
  return cuda::align_workspace<ROIAlign>(p, in, backward);
}

void ROIAlign::forward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& out) {
  cuda::align_forward<ROIAlign>(gpu, p, in, out);
}

void ROIAlign::backward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& d_out,
                        const Gradients& d) {
  cuda::align_backward<ROIAlign>(gpu, p, in, d_out, d);
}

}  // namespace gluon_roi
