// SPDX-License-Identifier: Apache-2.0
// PSROIAlign: position-sensitive pooling with the bilinear samples of ROIAlign.
//
// Reads data (N, C, H, W) and RoIs. Writes all of out (K, output_dim, P, Q): bin (p, q) of output
// channel c is the ROIAlign of that bin on score map (c * P + p) * Q + q. The backward pass writes
// all of d_data, adding RoIs in their order. d_rois is zeros, or with rois_grad the derivative by
// the box. Deterministic.
//
// Source: Li et al. 2017, Light-Head R-CNN (arXiv:1711.07264), section 3.2; torchvision
// ps_roi_align (aligned = 1) and MXNet contrib.ROIAlign with position_sensitive (aligned = 0).
//
// A worked number: four maps that are all the ramp 0..15 on 4 x 4, roi [0, 0, 3, 3], scale 1, 2 x 2
// bins give 1.5625 3 7.3125 8.75 (aligned = 1).
#pragma once
#include "../core/geometry/channels.h"
#include "../core/geometry/pyramid.h"
#include "../core/geometry/samples.h"
#include "../core/params.h"
#include "../core/roi_contract.h"

namespace gluon_roi {

struct PSROIAlign : public RoiOperator<PSROIAlign> {
  static constexpr const char* kName = "PSROIAlign";
  using Params = gluon_roi_ps_roi_align_params;
  static constexpr Input kInputs[] = {kData, kRois, kRoisNum};

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
  static PositionSensitive layout(const Params& p, int64_t channels) {
    return PositionSensitive::make(kName, p.output_dim, 0, 0, p.pooled_height, p.pooled_width,
                                   channels);
  }
  static SampleRule rule(const Params& p) {
    return SampleRule{p.spatial_scale, p.aligned, p.sampling_ratio};
  }
  static Pyramid pyramid(const Params& p) { return Pyramid::one(p.spatial_scale); }
  static bool rois_gradient(const Params& p) { return p.rois_grad != 0; }
  static int64_t output_channels(const Params& p, int64_t channels) {
    return layout(p, channels).output_dim;
  }

  static void forward(Cpu, const Params& p, const Inputs& in, const Tensor& out);
  static void backward(Cpu, const Params& p, const Inputs& in, const Tensor& d_out,
                       const Gradients& d);
  static void forward(Gpu, const Params& p, const Inputs& in, const Tensor& out);
  static void backward(Gpu, const Params& p, const Inputs& in, const Tensor& d_out,
                       const Gradients& d);
  static size_t workspace(const Params& p, const Inputs& in, bool backward);
};

}  // namespace gluon_roi
