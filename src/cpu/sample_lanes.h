// SPDX-License-Identifier: Apache-2.0
// Bilinear samples of a block of channels.
#pragma once
#include "../core/geometry/deform_conv.h"
#include "lanes.h"

namespace gluon_roi::cpu {

// A sample of a deformable convolution in all lanes: Values is Lanes<A, Simd>.
template <class Values, class A>
ALWAYS_INLINE Values sample_lanes(const A* block, const SampleTaps<A>& taps) {
  Values sum = Values::all(0);
  for (int k = 0; k < 4; ++k) {
    sum.add_weighted(Values::load(block + int64_t{taps.cell[k]} * kLanes<A>), taps.weight[k]);
  }
  return sum;
}

}  // namespace gluon_roi::cpu
