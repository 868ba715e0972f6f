// SPDX-License-Identifier: Apache-2.0
#include "pyramid_roi_align.h"

#include "../bindings/c.h"
#include "../cpu/align.h"

namespace gluon_roi {

void PyramidROIAlign::forward(Cpu, const Params& p, const Inputs& in, const Tensor& out) {
  with_dtype(in.data.dtype,
             [&](auto type) { cpu::align_forward<PyramidROIAlign, decltype(type)>(p, in, out); });
}

void PyramidROIAlign::backward(Cpu, const Params& p, const Inputs& in, const Tensor& d_out,
                               const Gradients& d) {
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    cpu::align_backward<PyramidROIAlign, T>(p, in, d_out, d.maps);
    if (!is_absent(d.rois)) cpu::align_roi_gradient<PyramidROIAlign, T>(p, in, d_out, d.rois);
  });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(PyramidROIAlign, pyramid_roi_align)
