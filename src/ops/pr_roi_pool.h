// SPDX-License-Identifier: Apache-2.0
// PrROIPool: precise RoI pooling, the mean of the bilinear surface over each bin, computed as an
// integral.
//
// Reads data (N, C, H, W) and RoIs. Writes all of out (K, C, P, Q). The box is neither rounded nor
// shifted. The surface has the value of cell i at coordinate i, and falls to 0 within one cell
// beyond the outermost cells. A bin without area is 0. The surface is a sum of products of hat
// functions, so out = Ay . X . Ax^T, as for ROIAlign, with weights in closed form. The backward
// pass is the transpose and writes all of d_data. d_rois is zeros, or with rois_grad the gradient
// with respect to the box, which is continuous. Deterministic.
//
// Source: Jiang et al. 2018, Acquisition of Localization Confidence for Accurate Object Detection
// (IoU-Net, arXiv:1807.11590), section 3.3.
//
// Example: the ramp 0..15 on 4 x 4, roi [0, 0, 3, 3], scale 1, 2 x 2 bins give 3.75 5.25 9.75
// 11.25.
#pragma once
#include "../core/align_contract.h"
#include "../core/geometry/precise.h"
#include "../core/geometry/pyramid.h"
#include "../core/params.h"
#include "../include/gluon_roi/pr_roi_pool.h"

namespace gluon_roi {

struct PrROIPool : public AlignOperator<PrROIPool, gluon_roi_pr_roi_pool_params> {
  static constexpr const char* kName = "PrROIPool";

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive(FIELD(spatial_scale));
    visit->boolean(FIELD(rois_grad), false);
    visit->choice(FIELD(bad_index), kBadIndices);
  }
  static PreciseRule rule(const Params& p) { return PreciseRule{p.spatial_scale}; }
  static Pyramid pyramid(const Params& p) { return Pyramid::one(p.spatial_scale); }
};

}  // namespace gluon_roi
