// SPDX-License-Identifier: Apache-2.0
// RotatedROIAlign: the mean of bilinear samples over the bins of a rotated RoI.
//
// Reads data (N, C, H, W) and RoIs (K, 6), [batch_index, cx, cy, w, h, theta]. Writes all of out
// (K, C, P, Q). theta is in degrees, counter-clockwise in an image whose y points down: the samples
// are those of an upright box around the origin, rotated and shifted to the centre. The weights do
// not factor per axis, so each bin has a list of the cells that its samples read, with one entry
// per cell. The backward pass uses the same lists, for RoIs in their order, and writes all of
// d_data. d_rois is zeros, or with rois_grad the gradient with respect to the box, per image pixel
// and per degree. Deterministic.
//
// Source: Ma et al. 2018, Arbitrary-Oriented Scene Text Detection via Rotation Proposals
// (arXiv:1703.01086); the arithmetic of MXNet contrib.RROIAlign (aligned = 0) and of detectron2's
// ROIAlignRotated (aligned = 1).
//
// Example: the ramp 0..15 on 4 x 4, roi [1.5, 1.5, 2, 2, 90], scale 1, 2 x 2 bins give 9 5 10 6
// (aligned = 0).
#pragma once
#include "../core/geometry/rotated.h"
#include "../core/params.h"
#include "../core/roi_contract.h"
#include "../include/gluon_roi/rotated_roi_align.h"

namespace gluon_roi {

struct RotatedROIAlign : public RoiOperator<RotatedROIAlign, gluon_roi_rotated_roi_align_params> {
  static constexpr const char* kName = "RotatedROIAlign";
  static constexpr Input kInputs[] = {kData, kRois, kRoisNum};
  static constexpr int kCoordinates = kRotatedCoordinates;

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive(FIELD(spatial_scale));
    visit->integer(FIELD(sampling_ratio), -1);
    visit->boolean(FIELD(aligned), false);
    visit->boolean(FIELD(rois_grad), false);
    visit->choice(FIELD(bad_index), kBadIndices);
  }
  static RotatedRule rule(const Params& p) {
    return RotatedRule{p.spatial_scale, p.aligned, p.sampling_ratio, p.pooled_height,
                       p.pooled_width};
  }
  static bool rois_gradient(const Params& p) { return p.rois_grad != 0; }

  template <class T>
  static void forward(const Params& p, const RoiArrays& in, const Tensor& out);
  template <class T>
  static void backward(const Params& p, const RoiArrays& in, const Tensor& d_out,
                       const RoiArrays& d);
};

}  // namespace gluon_roi
