// SPDX-License-Identifier: Apache-2.0
// DeformableROIAlign: ROIAlign with an offset and a factor for each bin.
//
// Reads data (N, C, H, W), RoIs, offset (K, 2, P, Q) and mask (K, 1, P, Q). Writes all of out (K,
// C, P, Q). The samples of a bin are those of ROIAlign, shifted by gamma * offset[k, 0] times the
// width of the box along x, and by gamma * offset[k, 1] times its height along y. Their number is
// that of the box without offsets. Their mean is multiplied by mask. Without offset and mask, out
// and the gradients have the bytes of ROIAlign. A NaN or infinite offset gives NaN bins, and has no
// gradient; a mask of 0 does not hide a NaN.
//
// The weights of a bin factor per axis, so it is mask * (y . X . x^T), with taps as in ROIAlign.
// The backward pass writes all of d_data, summing over RoIs in their order, all of d_offset and
// d_mask, summing over channels in their order, and d_rois: zeros, or with rois_grad the gradient
// with respect to the box. Deterministic.
//
// Source: Dai et al. 2017, Deformable Convolutional Networks (arXiv:1703.06211), section 2.2; the
// mask is that of Zhu et al. 2019, Deformable ConvNets v2 (arXiv:1811.11168). The arithmetic of
// mmcv's DeformRoIPool.
//
// Example: the map [[1, 2], [3, 4]], roi [0, 0, 1, 1], scale 1, 2 x 2 bins of 2 samples give 1 1.25
// 1.5 1.75, and the gradient of their sum is 3.0625 0.4375 0.4375 0.0625. If offset is 1 for x and
// 0 for y, and gamma 0.5, the bins are 1.25 1.75 1.75 2.25.
#pragma once
#include "../core/align_contract.h"
#include "../core/geometry/pyramid.h"
#include "../core/geometry/shifted.h"
#include "../core/params.h"
#include "../include/gluon_roi/deformable_roi_align.h"

namespace gluon_roi {

struct DeformableROIAlign
    : public AlignOperator<DeformableROIAlign, gluon_roi_deformable_roi_align_params> {
  static constexpr const char* kName = "DeformableROIAlign";
  static constexpr Input kInputs[] = {kData,
                                      kRois,
                                      {"offset", Role::kLike, 4, true, true, false},
                                      {"mask", Role::kLike, 4, true, true, false},
                                      kRoisNum};

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive(FIELD(spatial_scale));
    visit->integer(FIELD(sampling_ratio), 0);
    visit->number(FIELD(gamma), 0.1);
    visit->boolean(FIELD(aligned), true);
    visit->boolean(FIELD(rois_grad), false);
    visit->choice(FIELD(bad_index), kBadIndices);
  }
  static SampleRule rule(const Params& p) {
    return SampleRule{p.spatial_scale, p.aligned, p.sampling_ratio};
  }
  static Pyramid pyramid(const Params& p) { return Pyramid::one(p.spatial_scale); }
  static void check_inputs(const Params& p, const RoiArrays& in);
  // Whether it is a ROIAlign.
  static bool is_plain(const RoiArrays& in) { return is_absent(in.offsets) && is_absent(in.mask); }

  template <class T>
  static void forward(const Params& p, const RoiArrays& in, const Tensor& out);
  template <class T>
  static void backward(const Params& p, const RoiArrays& in, const Tensor& d_out,
                       const RoiArrays& d);

  template <class T>
  static BinOffsets<T> offsets(const Params& p, const RoiArrays& in) {
    return BinOffsets<T>{data_of<const T>(in.offsets), data_of<const T>(in.mask),
                         int64_t{p.pooled_height} * p.pooled_width};
  }
};

}  // namespace gluon_roi
