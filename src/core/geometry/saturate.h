// SPDX-License-Identifier: Apache-2.0
// Keeps extreme coordinates and scales within the range of the arithmetic.
#pragma once
#include "../types.h"

namespace gluon_roi {

// Clamps coordinates that are far outside any map to a range in which float arithmetic cannot
// overflow.
template <class G>
HOST_DEVICE G saturate(G value) {
  const G limit = static_cast<G>(1e30);
  return value > limit ? limit : value < -limit ? -limit : value;
}

// Converts a finite number to the type of the geometry, and clamps it to the largest finite value,
// because infinity times 0 would be NaN.
template <class G>
HOST_DEVICE G narrow(double value) {
  const double largest = sizeof(G) == 4 ? 3.4028234663852886e38 : 1.7976931348623157e308;
  return static_cast<G>(value > largest ? largest : value < -largest ? -largest : value);
}

// Derivatives with respect to box coordinates are proportional to the scale of the map. For very
// large scales their sums could overflow, and infinities would become NaN. They are therefore
// computed with scale / pow2_scale() and multiplied by pow2_scale() at the end; it is a power of
// two, so neither step rounds.
constexpr int kScaledCoordinates = 4;  // the coordinates that scale with the map: all but theta
template <class G>
HOST_DEVICE double pow2_scale(double spatial_scale) {
  const double scale = narrow<G>(spatial_scale);
  return scale > 1e30 ? ldexp(1.0, ilogb(scale)) : 1.0;
}

}  // namespace gluon_roi
