// Channel blocks: transposes the planes of some channels to channel-last, and back.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include <algorithm>
#include <type_traits>
#include <utility>

#include "lanes.h"

namespace gluon_roi::cpu {

// Converts `count` numbers; full runs have a constant length, so that GCC vectorises them.
template <class T, class A>
ALWAYS_INLINE void load_run(const T* from, int64_t count, A* to) {
  for (; count >= kLanes<A>; count -= kLanes<A>, from += kLanes<A>, to += kLanes<A>) {
#pragma omp simd
    for (int i = 0; i < kLanes<A>; ++i) to[i] = load(from + i);
  }
  for (int64_t i = 0; i < count; ++i) to[i] = load(from + i);
}
template <class T, class A>
ALWAYS_INLINE void store_run(T* to, int64_t count, const A* from) {
  for (; count >= kLanes<A>; count -= kLanes<A>, from += kLanes<A>, to += kLanes<A>) {
#pragma omp simd
    for (int i = 0; i < kLanes<A>; ++i) store(to + i, from[i]);
  }
  for (int64_t i = 0; i < count; ++i) store(to + i, from[i]);
}

#ifdef __aarch64__
// float16 in groups of four by the processor's conversions, because GCC does not vectorise
// narrowing.
ALWAYS_INLINE void load_run(const Half* from, int64_t count, float* to) {
  for (; count >= 4; count -= 4, from += 4, to += 4) {
    vst1q_f32(to, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits))));
  }
  for (int64_t i = 0; i < count; ++i) to[i] = load(from + i);
}
ALWAYS_INLINE void store_run(Half* to, int64_t count, const float* from) {
  for (; count >= 4; count -= 4, from += 4, to += 4) {
    const float32x4_t values = vld1q_f32(from);
    const uint16x4_t bits = vreinterpret_u16_f16(vcvt_f16_f32(values));
    const uint16x4_t numbers = vmovn_u32(vceqq_f32(values, values));
    const uint16x4_t nan = vorr_u16(vand_u16(bits, vdup_n_u16(0x8000)), vdup_n_u16(kHalfNan));
    vst1_u16(&to->bits, vbsl_u16(numbers, bits, nan));
  }
  for (int64_t i = 0; i < count; ++i) store(to + i, from[i]);
}
#endif

// The order of elements when two registers are combined. Within each 16 bytes, the lower halves and
// the upper halves are interleaved; in 32 bytes, all lower and all upper halves are joined.
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

// *to = these elements of a and b, numbered consecutively. (GCC has Clang's function since version
// 12.)
template <class Values, int... elements>
ALWAYS_INLINE void pick(const Values& a, const Values& b, Values* to, Picked<elements...>) {
#ifdef __clang__
  *to = __builtin_shufflevector(a, b, elements...);
#else
  using Index = decltype(a == b);
  *to = __builtin_shuffle(a, b, Index{elements...});
#endif
}

// The contents of a register of 16 bytes, which every level has, or of 32.
template <class A, int bytes>
struct Packet {
  static constexpr int kSize = bytes / sizeof(A);
  typedef A Values __attribute__((vector_size(bytes)));
  typedef A Stored __attribute__((vector_size(bytes), aligned(alignof(A))));
  // Returns a reference, because returning registers of 32 bytes would depend on the level.
  ALWAYS_INLINE static const Stored& at(const A* from) {
    return *reinterpret_cast<const Stored*>(from);
  }
  ALWAYS_INLINE static void store(A* to, const Values& values) {
    *reinterpret_cast<Stored*>(to) = values;
  }

  // to[j * to_step + i] = from[i * from_step + j] for i, j < kSize.
  ALWAYS_INLINE static void transpose(const A* from, int64_t from_step, A* to, int64_t to_step) {
    using Exchanged = Exchange<A, bytes>;
    constexpr int kSquare = 16 / sizeof(A);  // rows transposed within 16 bytes
    Values row[kSize], other[kSize];
#pragma GCC unroll 8
    for (int i = 0; i < kSize; ++i) row[i] = at(from + i * from_step);
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
      for (int i = 0; i < kSize; ++i) store(to + i * to_step, row[i]);
    } else {
#pragma GCC unroll 8
      for (int i = 0; i < kSquare; ++i) {
        const Values &a = row[i], &b = row[i + kSquare];
        pick(a, b, &other[i], typename Exchanged::Lower{});
        pick(a, b, &other[i + kSquare], typename Exchanged::Upper{});
        store(to + i * to_step, other[i]);
        store(to + (i + kSquare) * to_step, other[i + kSquare]);
      }
    }
  }
};
template <class A>
using Narrow = Packet<A, 16>;
template <class A, class Simd>
using Wide = Packet<A, std::min(Simd::kRegisterBytes, 32)>;

// block[i * kLanes + lane] = planes[lane * stride + i] for kSize lanes and i < cells. The last
// square overlaps the previous one, which costs less than single cells.
template <class Square, class A>
ALWAYS_INLINE void pack_squares(const A* planes, int64_t stride, int64_t cells, A* block) {
  constexpr int64_t kSide = Square::kSize;
  if (cells < kSide) {
    for (int64_t i = 0; i < cells; ++i) {
      for (int lane = 0; lane < kSide; ++lane) {
        block[i * kLanes<A> + lane] = planes[lane * stride + i];
      }
    }
    return;
  }
  for (int64_t next = 0; next < cells; next += kSide) {
    const int64_t i = std::min(next, cells - kSide);
    Square::transpose(planes + i, stride, block + i * kLanes<A>, kLanes<A>);
  }
}
template <class Square, class A>
ALWAYS_INLINE void unpack_squares(const A* block, int64_t stride, int64_t cells, A* planes) {
  constexpr int64_t kSide = Square::kSize;
  if (cells < kSide) {
    for (int64_t i = 0; i < cells; ++i) {
      for (int lane = 0; lane < kSide; ++lane) {
        planes[lane * stride + i] = block[i * kLanes<A> + lane];
      }
    }
    return;
  }
  for (int64_t next = 0; next < cells; next += kSide) {
    const int64_t i = std::min(next, cells - kSide);
    Square::transpose(block + i * kLanes<A>, kLanes<A>, planes + i, stride);
  }
}

// Cells transposed at a time: few enough for their part of the block to stay in the first-level
// cache for all planes. These are read a few at a time, because planes a power of two apart would
// evict each other.
constexpr int64_t kCellsAtATime = 64;

// block[i * kLanes + lane] = planes[lane * stride + i] for i < cells; lanes past `lanes` become 0.
// It works in squares, because GCC does not find the transposition in plain loops, with which whole
// operators take 1.3 to 1.6 times as long.
template <class T, class A, class Simd>
ALWAYS_INLINE void pack_planes(const T* planes, int64_t stride, int lanes, int64_t cells, A* block,
                               Simd) {
  constexpr int kSide = Narrow<A>::kSize, kWideSide = Wide<A, Simd>::kSize;
  for (int64_t start = 0; start < cells; start += kCellsAtATime, planes += kCellsAtATime) {
    const int64_t count = std::min(cells - start, kCellsAtATime);
    A* target = block + start * kLanes<A>;
    int lane = 0;
    if constexpr (std::is_same<T, A>::value) {
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
        load_run(planes + (lane + i) * stride, count, strip + i * kCellsAtATime);
      }
      pack_squares<Narrow<A>>(strip, kCellsAtATime, count, target + lane);
    }
    for (; lane < kLanes<A>; lane += kSide) {
      for (int64_t i = 0; i < count; ++i) {
        Narrow<A>::store(target + i * kLanes<A> + lane, typename Narrow<A>::Values{});
      }
    }
  }
}

// The inverse: planes[lane * stride + i] = block[i * kLanes + lane].
template <class T, class A, class Simd>
ALWAYS_INLINE void unpack_planes(const A* block, int64_t stride, int lanes, int64_t cells,
                                 T* planes, Simd) {
  constexpr int kSide = Narrow<A>::kSize, kWideSide = Wide<A, Simd>::kSize;
  for (int64_t start = 0; start < cells; start += kCellsAtATime, planes += kCellsAtATime) {
    const int64_t count = std::min(cells - start, kCellsAtATime);
    const A* source = block + start * kLanes<A>;
    int lane = 0;
    if constexpr (std::is_same<T, A>::value) {
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
        store_run(planes + (lane + i) * stride, count, strip + i * kCellsAtATime);
      }
    }
  }
}

}  // namespace gluon_roi::cpu
