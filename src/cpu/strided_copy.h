// SPDX-License-Identifier: Apache-2.0
// Copies the cells of a row that a strided layer reads.
#pragma once
#include "blocks.h"

namespace gluon_roi::cpu {

// to[x] = from[x * stride] for x = begin ... end - 1. It reads nothing behind the last of these.
template <class Simd>
ALWAYS_INLINE void copy_every(int64_t stride, const float* from, int64_t begin, int64_t end,
                              float* to) {
  if (stride == 1) return copy_run(from + begin, end - begin, to + begin, Simd{});
  int64_t x = begin;
  if (stride == 2) {
    // Four pairs at a time, but for the last pair, whose second number may not exist.
    using Quad = typename Narrow<float>::Values;
    for (; x + 4 < end; x += 4) {
      Quad low, high, even;
      load_register(from + 2 * x, &low);
      load_register(from + 2 * x + 4, &high);
      pick(low, high, &even, Picked<0, 2, 4, 6>{});
      store_register(to + x, even);
    }
  }
  for (; x < end; ++x) to[x] = from[x * stride];
}

}  // namespace gluon_roi::cpu
