// SPDX-License-Identifier: Apache-2.0
#include "pyramid.h"

#include <algorithm>

namespace gluon_roi {

Pyramid Pyramid::make(const char* op, const double* scales, int32_t maps, double canonical_size,
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
    pyramid.least[i] = std::ldexp(1.0, static_cast<int>(std::clamp<int64_t>(power, -5000, 5000)));
  }
  return pyramid;
}

}  // namespace gluon_roi
