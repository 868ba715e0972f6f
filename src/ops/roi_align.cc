// SPDX-License-Identifier: Apache-2.0
#include "roi_align.h"

#include "../bindings/c.h"
#include "../cpu/align.h"
#include "../cpu/align_max.h"

namespace gluon_roi {

using namespace cpu;

template <class T>
void ROIAlign::forward(const Params& p, const RoiArrays& in, const Tensor& out) {
  if (p.mode == GLUON_ROI_MAX) return align_max_forward<ROIAlign, T>(p, in, out);
  align_forward<ROIAlign, T>(p, in, out);
}

template <class T>
void ROIAlign::backward(const Params& p, const RoiArrays& in, const Tensor& d_out,
                        const RoiArrays& d) {
  if (p.mode == GLUON_ROI_MAX) return align_max_backward<ROIAlign, T>(p, in, d_out, d);
  align_backward<ROIAlign, T>(p, in, d_out, d.maps);
  if (!is_absent(d.rois)) align_roi_gradient<ROIAlign, T>(p, in, d_out, d.rois);
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(ROIAlign, roi_align)
