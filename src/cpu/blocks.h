// SPDX-License-Identifier: Apache-2.0
// Channel blocks: transposes the planes of a few channels to channel-last, and back.
#pragma once
#include <algorithm>
#include <utility>

#include "lanes.h"

namespace gluon_roi::cpu {

// Shuffles that combine two registers. Low and High interleave the lower and the upper halves of
// each 16 bytes; Lower and Upper join the lower and the upper 16 bytes of two registers of 32
// bytes.
template <int... elements>
using Picked = std::integer_sequence<int, elements...>;
template <class A, int bytes>
struct Exchange;
template <>
struct Exchange<float, 16> {
  using Low = Picked<0, 4, 1, 5>;
  using High = Picked<2, 6, 3, 7>;
};
template <>
struct Exchange<double, 16> {
  using Low = Picked<0, 2>;
  using High = Picked<1, 3>;
};
template <>
struct Exchange<float, 32> {
  using Low = Picked<0, 8, 1, 9, 4, 12, 5, 13>;
  using High = Picked<2, 10, 3, 11, 6, 14, 7, 15>;
  using Lower = Picked<0, 1, 2, 3, 8, 9, 10, 11>;
  using Upper = Picked<4, 5, 6, 7, 12, 13, 14, 15>;
};
template <>
struct Exchange<double, 32> {
  using Low = Picked<0, 4, 2, 6>;
  using High = Picked<1, 5, 3, 7>;
  using Lower = Picked<0, 1, 4, 5>;
  using Upper = Picked<2, 3, 6, 7>;
};

// Sets *to to the given elements of the concatenation of a and b. (GCC has Clang's builtin only
// since version 12.)
template <class Values, int... elements>
ALWAYS_INLINE void pick(const Values& a, const Values& b, Values* to, Picked<elements...>) {
#ifdef __clang__
  *to = __builtin_shufflevector(a, b, elements...);
#else
  using Index = decltype(a == b);
  *to = __builtin_shuffle(a, b, Index{elements...});
#endif
}

// A register of 16 bytes, which every level has, or of 32.
template <class A, int bytes>
struct Packet {
  static constexpr int kSize = bytes / sizeof(A);
  typedef A Values __attribute__((vector_size(bytes)));

  // to[j * to_step + i] = from[i * from_step + j] for i, j < kSize.
  template <class From, class To>
  ALWAYS_INLINE static void transpose(const From* from, int64_t from_step, To* to,
                                      int64_t to_step) {
    using Exchanged = Exchange<A, bytes>;
    constexpr int kSquare = 16 / sizeof(A);  // rows transposed within 16 bytes
    Values row[kSize], other[kSize];
#pragma GCC unroll 8
    for (int i = 0; i < kSize; ++i) load_register(from + i * from_step, &row[i]);
    // log2(kSquare) times.
#pragma GCC unroll 2
    for (int step = kSquare; step > 1; step /= 2) {
#pragma GCC unroll 8
      for (int i = 0; i < kSize; ++i) other[i] = row[i];
#pragma GCC unroll 8
      for (int i = 0; i < kSize / 2; ++i) {
        const int first = i / (kSquare / 2) * kSquare + i % (kSquare / 2);
        const Values &a = other[first], &b = other[first + kSquare / 2];
        pick(a, b, &row[2 * i], typename Exchanged::Low{});
        pick(a, b, &row[2 * i + 1], typename Exchanged::High{});
      }
    }
    if constexpr (bytes == 16) {
#pragma GCC unroll 8
      for (int i = 0; i < kSize; ++i) store_register(to + i * to_step, row[i]);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < kSquare; ++i) {
        const Values &a = row[i], &b = row[i + kSquare];
        pick(a, b, &other[i], typename Exchanged::Lower{});
        pick(a, b, &other[i + kSquare], typename Exchanged::Upper{});
        store_register(to + i * to_step, other[i]);
        store_register(to + (i + kSquare) * to_step, other[i + kSquare]);
      }
    }
  }
};
template <class A>
using Narrow = Packet<A, 16>;
template <class A, class Simd>
using Wide = Packet<A, std::min(Simd::kRegisterBytes, 32)>;

// block[i * kLanes + lane] = planes[lane * stride + i] for kSize lanes and i < cells. The last
// square overlaps the previous one, which is faster than a loop over the remaining cells.
template <class Square, class T, class A>
ALWAYS_INLINE void pack_squares(const T* planes, int64_t stride, int64_t cells, A* block) {
  constexpr int64_t kSide = Square::kSize;
  if (cells < kSide) {
    for (int64_t i = 0; i < cells; ++i) {
      for (int lane = 0; lane < kSide; ++lane) {
        block[i * kLanes<A> + lane] = load(planes + lane * stride + i);
      }
    }
    return;
  }
  for (int64_t next = 0; next < cells; next += kSide) {
    const int64_t i = std::min(next, cells - kSide);
    Square::transpose(planes + i, stride, block + i * kLanes<A>, kLanes<A>);
  }
}
template <class Square, class T, class A>
ALWAYS_INLINE void unpack_squares(const A* block, int64_t stride, int64_t cells, T* planes) {
  constexpr int64_t kSide = Square::kSize;
  if (cells < kSide) {
    for (int64_t i = 0; i < cells; ++i) {
      for (int lane = 0; lane < kSide; ++lane) {
        store(planes + lane * stride + i, block[i * kLanes<A> + lane]);
      }
    }
    return;
  }
  for (int64_t next = 0; next < cells; next += kSide) {
    const int64_t i = std::min(next, cells - kSide);
    Square::transpose(block + i * kLanes<A>, kLanes<A>, planes + i, stride);
  }
}

// The number of cells that are transposed at a time, few enough for their part of the block to stay
// in the first-level cache for all planes. Only a few planes are read at a time, because planes
// whose distance is a power of two would evict each other.
constexpr int64_t kCellsAtATime = 64;

// block[i * kLanes + lane] = planes[lane * stride + i] for i < cells; lanes past `lanes` become 0.
// It transposes squares of registers, because GCC does not recognise a transposition in plain
// loops, with which operators take 1.3 to 1.6 times as long.
template <class T, class A, class Simd>
ALWAYS_INLINE void pack_planes(const T* planes, int64_t stride, int lanes, int64_t cells, A* block,
                               Simd simd) {
  constexpr int kSide = Narrow<A>::kSize, kWideSide = Wide<A, Simd>::kSize;
  for (int64_t start = 0; start < cells; start += kCellsAtATime, planes += kCellsAtATime) {
    const int64_t count = std::min(cells - start, kCellsAtATime);
    A* target = block + start * kLanes<A>;
    int lane = 0;
    if constexpr (kInRegisters<T, Simd>) {
      for (; lane + kWideSide <= lanes && count >= kWideSide; lane += kWideSide) {
        pack_squares<Wide<A, Simd>>(planes + lane * stride, stride, count, target + lane);
      }
      for (; lane + kSide <= lanes; lane += kSide) {
        pack_squares<Narrow<A>>(planes + lane * stride, stride, count, target + lane);
      }
    }
    for (; lane < lanes; lane += kSide) {
      A strip[kSide * kCellsAtATime] = {};
      for (int i = 0; i < kSide && lane + i < lanes; ++i) {
        copy_run(planes + (lane + i) * stride, count, strip + i * kCellsAtATime, simd);
      }
      pack_squares<Narrow<A>>(strip, kCellsAtATime, count, target + lane);
    }
    for (; lane < kLanes<A>; lane += kSide) {
      for (int64_t i = 0; i < count; ++i) {
        store_register(target + i * kLanes<A> + lane, typename Narrow<A>::Values{});
      }
    }
  }
}

// The inverse: planes[lane * stride + i] = block[i * kLanes + lane].
template <class T, class A, class Simd>
ALWAYS_INLINE void unpack_planes(const A* block, int64_t stride, int lanes, int64_t cells,
                                 T* planes, Simd simd) {
  constexpr int kSide = Narrow<A>::kSize, kWideSide = Wide<A, Simd>::kSize;
  for (int64_t start = 0; start < cells; start += kCellsAtATime, planes += kCellsAtATime) {
    const int64_t count = std::min(cells - start, kCellsAtATime);
    const A* source = block + start * kLanes<A>;
    int lane = 0;
    if constexpr (kInRegisters<T, Simd>) {
      for (; lane + kWideSide <= lanes && count >= kWideSide; lane += kWideSide) {
        unpack_squares<Wide<A, Simd>>(source + lane, stride, count, planes + lane * stride);
      }
      for (; lane + kSide <= lanes; lane += kSide) {
        unpack_squares<Narrow<A>>(source + lane, stride, count, planes + lane * stride);
      }
    }
    for (; lane < lanes; lane += kSide) {
      A strip[kSide * kCellsAtATime];
      unpack_squares<Narrow<A>>(source + lane, kCellsAtATime, count, strip);
      for (int i = 0; i < kSide && lane + i < lanes; ++i) {
        copy_run(strip + i * kCellsAtATime, count, planes + (lane + i) * stride, simd);
      }
    }
  }
}

// The same for a single channel, which needs no transposition.
template <class T, class A, class Simd>
ALWAYS_INLINE void pack_planes(const T* plane, int64_t, int, int64_t cells, A* block,
                               OneChannel<Simd>) {
  copy_run(plane, cells, block, Simd{});
}
template <class T, class A, class Simd>
ALWAYS_INLINE void unpack_planes(const A* block, int64_t, int, int64_t cells, T* plane,
                                 OneChannel<Simd>) {
  copy_run(block, cells, plane, Simd{});
}

}  // namespace gluon_roi::cpu
