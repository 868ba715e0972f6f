// SPDX-License-Identifier: Apache-2.0
// The bins of ROIPool and PSROIPool: the cells of the map that each bin covers.
//
// Results must not depend on the instruction set, so nothing here may be contracted into fused
// multiply-adds: these files are compiled with -ffp-contract=off and -fmad=false. The order of
// operations is that of MXNet, torchvision and Paddle, so the edges are equal bit for bit.
#pragma once
#include "saturate.h"

namespace gluon_roi {

// Rounds halves away from zero, like C's round(), on every device.
HOST_DEVICE float round_half_away(float value) { return roundf(value); }
HOST_DEVICE double round_half_away(double value) { return round(value); }

enum class BinRule : int32_t {
  kRoiPool,     // Caffe, MXNet ROIPooling, torchvision roi_pool, Paddle roi_pool
  kRfcn,        // Caffe R-FCN, MXNet contrib.PSROIPooling, Paddle psroi_pool
  kTorchvision  // torchvision ps_roi_pool
};

// One axis of a RoI, split into bins. The arithmetic is float for every type of data.
struct BinAxis {
  float start;         // map coordinate where bin 0 begins
  float bin;           // cells per bin
  int32_t limit;       // bins are clipped to [0, limit)
  bool integer_start;  // start is an integer and is added after the rounding

  HOST_DEVICE static BinAxis make(BinRule rule, float lo, float hi, float scale, int axis_bins,
                                  int size) {
    BinAxis axis;
    axis.integer_start = rule != BinRule::kRfcn;
    axis.limit = rule == BinRule::kTorchvision ? size - 1 : size;
    float length;
    if (rule == BinRule::kRfcn) {
      axis.start = saturate(round_half_away(lo) * scale);
      // The other libraries add 1 in double precision and round to float.
      const float end =
          saturate(static_cast<float>(static_cast<double>(round_half_away(hi)) + 1.0) * scale);
      length = end - axis.start;
      if (!(length > 0.1f)) length = 0.1f;
    } else {
      axis.start = saturate(round_half_away(lo * scale));
      // In double the difference is exact, like the integer arithmetic of other libraries, and
      // cannot overflow.
      const double inclusive = rule == BinRule::kRoiPool ? 1.0 : 0.0;
      const double exact = static_cast<double>(saturate(round_half_away(hi * scale))) -
                           static_cast<double>(axis.start) + inclusive;
      length = static_cast<float>(exact > 1.0 ? exact : 1.0);
    }
    axis.bin = length / static_cast<float>(axis_bins);
    return axis;
  }

  HOST_DEVICE int32_t clip(double edge) const {
    const double top = limit;
    return static_cast<int32_t>(edge < 0.0 ? 0.0 : edge > top ? top : edge);
  }
  HOST_DEVICE int32_t begin(int q) const {
    const float offset = static_cast<float>(q) * bin;
    if (integer_start) {
      return clip(static_cast<double>(floorf(offset)) + static_cast<double>(start));
    }
    return clip(floorf(offset + start));
  }
  HOST_DEVICE int32_t end(int q) const {
    const float offset = static_cast<float>(q + 1) * bin;
    if (integer_start) return clip(static_cast<double>(ceilf(offset)) + static_cast<double>(start));
    return clip(ceilf(offset + start));
  }
};

}  // namespace gluon_roi
