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

}  // namespace gluon_roi
