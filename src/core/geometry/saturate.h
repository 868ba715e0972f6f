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

// Derivatives by the coordinates of a box grow with the scale of the map. Where that is so large
// that sums of them could overflow, and leave NaN of infinities, they are computed for 1 / excess
// of it, and multiplied at the end. A power of two, so that neither rounds.
constexpr int kLengths = 4;  // the first coordinates of a box, all but theta, are lengths
template <class G>
HOST_DEVICE double excess(double spatial_scale) {
  const double scale = narrow<G>(spatial_scale);
  return scale > 1e30 ? ldexp(1.0, ilogb(scale)) : 1.0;
}

}  // namespace gluon_roi
