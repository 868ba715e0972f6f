// SPDX-License-Identifier: Apache-2.0
#include "pr_roi_pool.h"

#include "../bindings/c.h"
#include "../cpu/align.h"

namespace gluon_roi {

void PrROIPool::forward(Cpu, const Params& p, const Inputs& in, const Tensor& out) {
  with_dtype(in.data.dtype,
             [&](auto type) { cpu::align_forward<PrROIPool, decltype(type)>(p, in, out); });
}

void PrROIPool::backward(Cpu, const Params& p, const Inputs& in, const Tensor& d_out,
                         const Gradients& d) {
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    cpu::align_backward<PrROIPool, T>(p, in, d_out, d.maps);
    if (!is_absent(d.rois)) cpu::align_roi_gradient<PrROIPool, T>(p, in, d_out, d.rois);
  });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(PrROIPool, pr_roi_pool)
