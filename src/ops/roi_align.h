// SPDX-License-Identifier: Apache-2.0
// ROIAlign: the mean of bilinear samples over the bins of a RoI, without rounding the box.
//
// Reads data (N, C, H, W) and RoIs. Writes all of out (K, C, P, Q). The validity and the weights of
// samples factor per axis, so out = Ay . X . Ax^T exactly, with two small banded matrices per RoI
// whose nonzero elements are called taps. The backward pass is the transpose, d_data = sum over
// RoIs in their order of Ay^T . d_out . Ax, and writes all of d_data. d_rois is zeros, or with
// rois_grad the gradient with respect to the box. Deterministic.
//
// With mode = max a bin is its largest sample (core/geometry/maximum.h), whose first occurrence
// gets the gradient.
//
// Source: He et al. 2017, Mask R-CNN (arXiv:1703.06870), section 3; the arithmetic of MXNet
// contrib.ROIAlign, torchvision roi_align, Paddle roi_align and detectron2.
//
// Example: the ramp 0..15 on 4 x 4, roi [0, 0, 3, 3], scale 1, 2 x 2 bins give 3.75 5.25 9.75 11.25
// (aligned = 0) and 1.5625 3 7.3125 8.75 (aligned = 1).
#pragma once
#include "../core/align_contract.h"
#include "../core/geometry/pyramid.h"
#include "../core/geometry/samples.h"
#include "../core/params.h"
#include "../include/gluon_roi/roi_align.h"

namespace gluon_roi {

struct ROIAlign : public AlignOperator<ROIAlign, gluon_roi_roi_align_params> {
  static constexpr const char* kName = "ROIAlign";

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive(FIELD(spatial_scale));
    visit->integer(FIELD(sampling_ratio), -1);
    visit->boolean(FIELD(aligned), false);
    visit->boolean(FIELD(rois_grad), false);
    visit->choice(FIELD(bad_index), kBadIndices);
    visit->choice(FIELD(mode), {{"avg", GLUON_ROI_AVG}, {"max", GLUON_ROI_MAX}});
  }
  static SampleRule rule(const Params& p) {
    return SampleRule{p.spatial_scale, p.aligned, p.sampling_ratio};
  }
  static Pyramid pyramid(const Params& p) { return Pyramid::one(p.spatial_scale); }

  template <class T>
  static void forward(const Params& p, const RoiArrays& in, const Tensor& out);
  template <class T>
  static void backward(const Params& p, const RoiArrays& in, const Tensor& d_out,
                       const RoiArrays& d);
};

}  // namespace gluon_roi
