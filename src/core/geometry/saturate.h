// SPDX-License-Identifier: Apache-2.0
// Keeps extreme coordinates within the range of the arithmetic.
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

}  // namespace gluon_roi
