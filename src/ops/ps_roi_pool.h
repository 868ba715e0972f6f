// SPDX-License-Identifier: Apache-2.0
// PSROIPool: position-sensitive average pooling.
//
// Reads data (N, C, H, W) and RoIs. Writes all of out (K, output_dim, P, Q): bin (p, q) of output
// channel c is the mean of score map (c * G + gh) * G + gw over the cells of the bin, or 0 if it
// has none. The backward pass writes all of d_data: each output gradient, divided by the number of
// cells, is added to each of them, for RoIs in their order. It writes zeros to d_rois.
// Deterministic.
//
// Source: Dai et al. 2016, R-FCN (arXiv:1605.06409), section 2.2. Convention "rfcn" rounds the box
// in image coordinates and includes its last pixel (Caffe R-FCN, MXNet contrib.PSROIPooling, Paddle
// psroi_pool); "torchvision" rounds on the map, and never reads the map's last row and column.
//
// Example: four maps that are all the ramp 0..15 on 4 x 4, roi [0, 0, 3, 3], scale 1, 2 x 2 bins
// give 2.5 4.5 10.5 12.5 (rfcn) and 2.5 3.5 6.5 7.5 (torchvision).
#pragma once
#include "../core/geometry/bins.h"
#include "../core/params.h"
#include "../core/roi_contract.h"
#include "../include/gluon_roi/ps_roi_pool.h"

namespace gluon_roi {

struct PSROIPool : public RoiOperator<PSROIPool, gluon_roi_ps_roi_pool_params> {
  static constexpr const char* kName = "PSROIPool";

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive(FIELD(spatial_scale));
    visit->optional_positive(FIELD(output_dim));
    visit->size("group_size", FIELD(group_height), FIELD(group_width), kOptionalSize);
    visit->choice(FIELD(convention),
                  {{"rfcn", GLUON_ROI_RFCN}, {"torchvision", GLUON_ROI_TORCHVISION}});
    visit->choice(FIELD(bad_index), kBadIndices);
  }

  static constexpr bool kGrouped = true;
  static ChannelLayout layout(const Params& p, int64_t channels) {
    return ChannelLayout::make(kName, p.output_dim, p.group_height, p.group_width, p.pooled_height,
                               p.pooled_width, channels);
  }
  static BinRule rule(const Params& p) {
    return p.convention == GLUON_ROI_TORCHVISION ? BinRule::kTorchvision : BinRule::kRfcn;
  }

  template <class T>
  static void forward(const Params& p, const RoiArrays& in, const Tensor& out);
  template <class T>
  static void backward(const Params& p, const RoiArrays& in, const Tensor& d_out,
                       const RoiArrays& d);
};

}  // namespace gluon_roi
