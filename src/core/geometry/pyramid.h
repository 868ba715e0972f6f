// SPDX-License-Identifier: Apache-2.0
// The maps of a feature pyramid, and the assignment of boxes to maps.
#pragma once
#include <algorithm>

#include "roi_decode.h"

namespace gluon_roi {

// The maps of an image, finest first. The level of a map is -log2 of its scale: a map of stride 2^k
// has level k. A box belongs to level floor(canonical_level + log2(size / canonical_size + 1e-6))
// with size = sqrt(area). It is pooled from the last map whose level is not above that of the box,
// or from the first map if there is none. (Lin et al. 2017, equation 1.)
//
// Sizes are compared with powers of two, which is exact. The last digit of a logarithm would decide
// the level of boxes whose size is exactly a power of two, and it differs between devices.
struct Pyramid {
  int32_t maps;
  double scale[GLUON_ROI_MAX_MAPS];     // map cells per image pixel
  double min_size[GLUON_ROI_MAX_MAPS];  // minimum of size / canonical_size + 1e-6 for map i
  double canonical_size;                // image pixels; 0 if rois has a list for each map

  // A single map for all boxes.
  static Pyramid one(double spatial_scale) {
    Pyramid pyramid{};
    pyramid.maps = 1;
    pyramid.scale[0] = spatial_scale;
    pyramid.canonical_size = 1;
    return pyramid;
  }
  // Maps to which the caller has assigned the boxes.
  static Pyramid given(const double* scales, int32_t maps) {
    Pyramid pyramid{};
    pyramid.maps = maps;
    for (int32_t i = 0; i < maps; ++i) pyramid.scale[i] = scales[i];
    return pyramid;
  }
  // Throws unless each scale is at most half of the previous one, which gives every map its own
  // level.
  static Pyramid make(const char* op, const double* scales, int32_t maps, double canonical_size,
                      int32_t canonical_level) {
    Pyramid pyramid{};
    pyramid.maps = maps;
    pyramid.canonical_size = canonical_size;
    for (int32_t i = 0; i < maps; ++i) {
      if (i > 0 && scales[i] > scales[i - 1] / 2) {
        fail(op,
             "argument spatial_scale: expected the finest map first, and each scale at most half ",
             "of the one before, got ", scales[i], " after ", scales[i - 1]);
      }
      pyramid.scale[i] = scales[i];
      int exponent;
      std::frexp(scales[i], &exponent);
      // 1 - exponent is -log2(scale), rounded up if the scale is no power of two.
      const int64_t power = int64_t{1} - exponent - canonical_level;
      // 5000 is beyond all exponents of a double.
      pyramid.min_size[i] =
          std::ldexp(1.0, static_cast<int>(std::clamp<int64_t>(power, -5000, 5000)));
    }
    return pyramid;
  }

  // The map of row k. If rois has a list for each map, it is the map of the row's list. Boxes
  // without area have size 0. The area is computed in double from the numbers of the row, so it
  // does not depend on the type of the maps.
  HOST_DEVICE int32_t map_of(const RoiRows& rows, int64_t k) const {
    if (canonical_size == 0) return static_cast<int32_t>(k / rows.per_list);
    const double w = rows.coordinate(k, 2) - rows.coordinate(k, 0);
    const double h = rows.coordinate(k, 3) - rows.coordinate(k, 1);
    const double area = (w > 0 ? w : 0) * (h > 0 ? h : 0);
    const double relative = sqrt(area) / canonical_size + 1e-6;
    int32_t map = 0;
    for (int32_t i = 1; i < GLUON_ROI_MAX_MAPS; ++i) {
      if (i < maps && relative >= min_size[i]) map = i;
    }
    return map;
  }
};

}  // namespace gluon_roi
