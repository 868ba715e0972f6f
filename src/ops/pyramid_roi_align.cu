// SPDX-License-Identifier: Apache-2.0
// PyramidROIAlign in CUDA kernels: pyramid_roi_align.h defines the result, cuda/align.h the
// kernels.
#include "../cuda/align.h"
#include "pyramid_roi_align.h"

namespace gluon_roi {

size_t PyramidROIAlign::workspace(const Params& p, const Inputs& in, bool backward) {
  return cuda::align_workspace<PyramidROIAlign>(p, in, backward);
}

void PyramidROIAlign::forward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& out) {
  cuda::align_forward<PyramidROIAlign>(gpu, p, in, out);
}

void PyramidROIAlign::backward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& d_out,
                               const Gradients& d) {
  cuda::align_backward<PyramidROIAlign>(gpu, p, in, d_out, d);
}

}  // namespace gluon_roi
