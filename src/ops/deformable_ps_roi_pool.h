// SPDX-License-Identifier: Apache-2.0
// DeformablePSROIPool: position-sensitive pooling of bilinear samples, with an offset for each bin.
//
// Reads data (N, C, H, W), RoIs and trans (K, 2 * classes, T, T). Writes all of out (K, output_dim,
// P, Q). Bin (p, q) of output channel c is the mean of its samples on score map (c * G + gh) * G +
// gw. Samples outside the map are excluded from the mean; a bin without samples is 0. The bin is
// shifted by trans[k, 2 * class] * trans_std times the width of the box along x, and by trans[k, 2
// * class + 1] * trans_std times its height along y, where trans is read at the bin's part of the T
// x T parts, and class = c / (output_dim / classes). Without trans, bins are not shifted. A NaN or
// infinite offset gives NaN bins, and has no gradient.
//
// The validity and the weights of samples factor per axis, so neighbouring samples of a bin are
// merged into taps. The backward pass writes all of d_data, summing over RoIs in their order, all
// of d_trans, summing over the channels of a class in their order, and zeros to d_rois.
// Deterministic.
//
// Source: Dai et al. 2017, Deformable Convolutional Networks (arXiv:1703.06211), section 2.2.
// Agrees with MXNet contrib.DeformablePSROIPooling, except for the part of a bin, which is exactly
// floor(p * T / P) here; MXNet rounds intermediate results, and selects another part for some P >=
// 22.
//
// Example: four maps that are all the 4 x 4 ramp 0..15, roi [0, 0, 3, 3], scale 1, 2 x 2 bins of 2
// samples give 1.25 3 8.25 10 without trans, and 2 3.75 9 10.75 if trans is 1 for x and 0 for y and
// trans_std is 0.25.
#pragma once
#include "../core/geometry/deform_psroi.h"
#include "../core/params.h"
#include "../core/roi_contract.h"
#include "../include/gluon_roi/deformable_ps_roi_pool.h"

namespace gluon_roi {

struct DeformablePSROIPool
    : public RoiOperator<DeformablePSROIPool, gluon_roi_deformable_ps_roi_pool_params> {
  static constexpr const char* kName = "DeformablePSROIPool";
  static constexpr Input kInputs[] = {
      kData, kRoisWithoutGradient, {"trans", Role::kLike, 4, true, true, false}, kRoisNum};

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive(FIELD(spatial_scale));
    visit->optional_positive(FIELD(output_dim));
    visit->size("group_size", FIELD(group_height), FIELD(group_width), kOptionalSize);
    visit->size("part_size", FIELD(part_height), FIELD(part_width), kOptionalSize);
    visit->positive_int(FIELD(sample_per_part), 4);
    visit->number(FIELD(trans_std), 0);
    visit->choice(FIELD(bad_index), kBadIndices);
  }

  static constexpr bool kGrouped = true;
  static ChannelLayout layout(const Params& p, int64_t channels) {
    return ChannelLayout::make(kName, p.output_dim, p.group_height, p.group_width, p.pooled_height,
                               p.pooled_width, channels);
  }
  static int32_t part_height(const Params& p) {
    return p.part_height > 0 ? p.part_height : p.pooled_height;
  }
  static int32_t part_width(const Params& p) {
    return p.part_width > 0 ? p.part_width : p.pooled_width;
  }
  static void check_inputs(const Params& p, const RoiArrays& in);

  template <class T>
  static void forward(const Params& p, const RoiArrays& in, const Tensor& out);
  template <class T>
  static void backward(const Params& p, const RoiArrays& in, const Tensor& d_out,
                       const RoiArrays& d);

  // A view of the call by class. Each class has its own offsets and channels, so a pair of an image
  // and a class is treated as an image with fewer channels, and a pair of a RoI and a class as a
  // RoI, with row k * classes + class in out and trans.
  struct ByClass {
    int64_t classes;
    Tensor data;           // (N * classes, C / classes, H, W)
    ChannelLayout layout;  // of one class

    ByClass(const Params& p, const RoiArrays& in)
        : classes(is_absent(in.offsets) ? 1 : in.offsets.shape[1] / 2),
          data(in.data),
          layout(DeformablePSROIPool::layout(p, in.data.shape[1])) {
      data.shape[0] *= classes;
      data.shape[1] /= classes;
      layout.output_dim /= classes;
    }
  };
  template <class T>
  static PartOffsets<T> offsets(const Params& p, const RoiArrays& in) {
    return PartOffsets<T>{data_of<const T>(in.offsets),
                          part_height(p),
                          part_width(p),
                          p.pooled_height,
                          p.pooled_width,
                          narrow<SumOf<T>>(p.trans_std)};
  }
};

}  // namespace gluon_roi
