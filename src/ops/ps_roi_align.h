// SPDX-License-Identifier: Apache-2.0
// PSROIAlign: position-sensitive pooling with the bilinear samples of ROIAlign.
//
// Reads data (N, C, H, W) and RoIs. Writes all of out (K, output_dim, P, Q): bin (p, q) of output
// channel c is the ROIAlign of that bin on score map (c * P + p) * Q + q. The backward pass writes
// all of d_data, summing over RoIs in their order. d_rois is zeros, or with rois_grad the gradient
// with respect to the box. Deterministic.
//
// Source: Li et al. 2017, Light-Head R-CNN (arXiv:1711.07264), section 3.2; torchvision
// ps_roi_align (aligned = 1) and MXNet contrib.ROIAlign with position_sensitive (aligned = 0).
//
// Example: four maps that are all the ramp 0..15 on 4 x 4, roi [0, 0, 3, 3], scale 1, 2 x 2 bins
// give 1.5625 3 7.3125 8.75 (aligned = 1).
#pragma once
#include "../core/align_contract.h"
#include "../core/geometry/pyramid.h"
#include "../core/geometry/samples.h"
#include "../core/params.h"
#include "../include/gluon_roi/ps_roi_align.h"

namespace gluon_roi {

// Each bin reads a single map, so this operator has its own loops.
struct PSROIAlign : public AlignOperator<PSROIAlign, gluon_roi_ps_roi_align_params> {
  static constexpr const char* kName = "PSROIAlign";

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive(FIELD(spatial_scale));
    visit->optional_positive(FIELD(output_dim));
    visit->integer(FIELD(sampling_ratio), -1);
    visit->boolean(FIELD(aligned), true);
    visit->boolean(FIELD(rois_grad), false);
    visit->choice(FIELD(bad_index), kBadIndices);
  }

  static constexpr bool kGrouped = true;
  // The groups are the bins.
  static ChannelLayout layout(const Params& p, int64_t channels) {
    return ChannelLayout::make(kName, p.output_dim, 0, 0, p.pooled_height, p.pooled_width,
                               channels);
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
