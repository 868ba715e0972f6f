// SPDX-License-Identifier: Apache-2.0
#include "roi_align.h"

#include "../bindings/c.h"
#include "../cpu/align.h"

namespace gluon_roi {

void ROIAlign::forward(Cpu, const Params& p, const Inputs& in, const Tensor& out) {
  with_dtype(in.data.dtype,
             [&](auto type) { cpu::align_forward<ROIAlign, decltype(type)>(p, in, out); });
}

void ROIAlign::backward(Cpu, const Params& p, const Inputs& in, const Tensor& d_out,
                        const Gradients& d) {
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    cpu::align_backward<ROIAlign, T>(p, in, d_out, d.maps);
    if (!is_absent(d.rois)) cpu::align_roi_gradient<ROIAlign, T>(p, in, d_out, d.rois);
  });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(ROIAlign, roi_align)
