// SPDX-License-Identifier: Apache-2.0
// Copies the cells of a row that a strided layer reads.
#pragma once
#include "blocks.h"

namespace gluon_roi::cpu {

// The even elements of two registers.
template <int... numbers>
ALWAYS_INLINE Picked<2 * numbers...> doubled(std::integer_sequence<int, numbers...>) {
  return {};
}

// to[x] = from[2 * x] for x = begin ... end - 1, as long as a register is filled and a number that
// is not copied follows. Returns the first x that is left.
template <class Registers>
ALWAYS_INLINE int64_t copy_even(const float* from, int64_t begin, int64_t end, float* to) {
  constexpr int kSize = Registers::kSize;
  int64_t x = begin;
  for (; x + kSize < end; x += kSize) {
    typename Registers::Values low, high, even;
    load_register(from + 2 * x, &low);
    load_register(from + 2 * x + kSize, &high);
    pick(low, high, &even, doubled(std::make_integer_sequence<int, kSize>{}));
    store_register(to + x, even);
  }
  return x;
}

// to[x] = from[x * stride] for x = begin ... end - 1. It reads nothing behind the last of these.
template <class Simd>
ALWAYS_INLINE void copy_every(int64_t stride, const float* from, int64_t begin, int64_t end,
                              float* to) {
  if (stride == 1) return copy_run(from + begin, end - begin, to + begin, Simd{});
  int64_t x = begin;
  if (stride == 2) {
    x = copy_even<Wide<float, Simd>>(from, x, end, to);
    x = copy_even<Narrow<float>>(from, x, end, to);
  }
  for (; x < end; ++x) to[x] = from[x * stride];
}

}  // namespace gluon_roi::cpu
