// SPDX-License-Identifier: Apache-2.0
// Keeps coordinates far off any map within the range of the arithmetic.
#pragma once
#include "../types.h"

namespace gluon_roi {

// Limits coordinates far beyond any map to a range where float arithmetic cannot overflow.
template <class G>
HOST_DEVICE G saturate(G value) {
  const G limit = static_cast<G>(1e30);
  return value > limit ? limit : value < -limit ? -limit : value;
}

// Converts a finite number to the type of the geometry. Beyond the range of float it becomes the
// largest float, because infinity times 0 would be NaN, which is not a cell.
template <class G>
HOST_DEVICE G narrow(double value) {
  const double most = sizeof(G) == 4 ? 3.4028234663852886e38 : 1.7976931348623157e308;
  return static_cast<G>(value > most ? most : value < -most ? -most : value);
}

// Derivatives by the coordinates of a box grow with the scale of the map. For very large scales,
// sums of them could overflow, and infinities would become NaN. So they are computed for scale /
// excess, and multiplied by excess at the end. It is a power of two, so that neither step rounds.
constexpr int kLengths = 4;  // the first coordinates of a box are lengths: all but theta
template <class G>
HOST_DEVICE double excess(double spatial_scale) {
  const double scale = narrow<G>(spatial_scale);
  return scale > 1e30 ? ldexp(1.0, ilogb(scale)) : 1.0;
}

}  // namespace gluon_roi
