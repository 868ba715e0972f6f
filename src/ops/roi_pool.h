// SPDX-License-Identifier: Apache-2.0
// ROIPool: max pooling over the bins of a RoI.
//
// Reads data (N, C, H, W) and RoIs. Writes all of out (K, C, P, Q): the maximum of the channel over
// the cells of the bin, or 0 if it has none. NaN cells are ignored; a bin of NaN cells only is the
// lowest finite number of the type. The backward pass searches for the maximum again, and adds each
// output gradient to the first maximum in row-major order, for RoIs in their order. It writes all
// of d_data, and zeros to d_rois. Deterministic.
//
// Source: Girshick 2015, Fast R-CNN (arXiv:1504.08083), section 2.1; Caffe's rounding, which MXNet
// ROIPooling, torchvision roi_pool and Paddle roi_pool share.
//
// Example: the ramp 0..47 on 8 rows x 6 columns, roi [0, 0, 4, 4], 2 x 2 bins give 14 16 26 28 at
// scale 1.
#pragma once
#include <limits>
#include <type_traits>

#include "../core/geometry/bins.h"
#include "../core/params.h"
#include "../core/roi_contract.h"
#include "../include/gluon_roi/roi_pool.h"

namespace gluon_roi {

struct ROIPool : public RoiOperator<ROIPool, gluon_roi_roi_pool_params> {
  static constexpr const char* kName = "ROIPool";

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive(FIELD(spatial_scale));
    visit->choice(FIELD(bad_index), kBadIndices);
  }
  static BinRule rule(const Params&) { return BinRule::kRoiPool; }

  template <class T>
  static void forward(const Params& p, const RoiArrays& in, const Tensor& out);
  template <class T>
  static void backward(const Params& p, const RoiArrays& in, const Tensor& d_out,
                       const RoiArrays& d);
};

}  // namespace gluon_roi
