// SPDX-License-Identifier: Apache-2.0
// Base class of the operators whose weights separate along the axes, out = Ay . X . Ax^T
// (DESIGN.md, "Taps"): ROIAlign, PyramidROIAlign, PSROIAlign, PrROIPool and DeformableROIAlign.
// cpu/align.h and cuda/align.h define the functions declared here.
#pragma once
#include "roi_contract.h"

namespace gluon_roi {

// Op defines rule(params), which gives the weights of a bin, and pyramid(params), which gives the
// map of each RoI.
template <class Op, class P>
class AlignOperator : public RoiOperator<Op, P> {
 public:
  static constexpr Input kInputs[3] = {kData, kRois, kRoisNum};
  static bool rois_gradient(const P& p) { return p.rois_grad != 0; }

  template <class T>
  static void forward(const P& p, const RoiArrays& in, const Tensor& out);
  template <class T>
  static void backward(const P& p, const RoiArrays& in, const Tensor& d_out, const RoiArrays& d);

 private:
  AlignOperator() = default;
  friend Op;
};

}  // namespace gluon_roi
