// What keeps coordinates far off any map within the range of the arithmetic.
#pragma once
#include "../types.h"

namespace gluon_roi {

// Coordinates beyond any map, brought back to where float arithmetic still has room.
template <class G>
HOST_DEVICE G saturate(G value) {
  const G limit = static_cast<G>(1e30);
  return value > limit ? limit : value < -limit ? -limit : value;
}

// A finite number as the type that geometry is computed in. Beyond the range of float it becomes
// its largest number: infinity times 0 would be NaN, which is no cell.
template <class G>
HOST_DEVICE G narrow(double value) {
  const double most = sizeof(G) == 4 ? 3.4028234663852886e38 : 1.7976931348623157e308;
  return static_cast<G>(value > most ? most : value < -most ? -most : value);
}

}  // namespace gluon_roi
