// Channel blocks: the planes of some channels transposed to channel-last, and back.
#pragma once
#include <algorithm>
#include <type_traits>

#include "lanes.h"

namespace gluon_roi::cpu {

// Converts `count` numbers; full runs have a constant length, so that they vectorise.
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

// What a register holds at every level: four floats or two doubles.
template <class A>
struct Packet {
  static constexpr int kSize = 16 / sizeof(A);
  typedef A Values __attribute__((vector_size(16)));
  typedef A Stored __attribute__((vector_size(16), aligned(alignof(A))));
  ALWAYS_INLINE static Values load(const A* from) { return *reinterpret_cast<const Stored*>(from); }
  ALWAYS_INLINE static void store(A* to, const Values& values) {
    *reinterpret_cast<Stored*>(to) = values;
  }
};

// to[j * to_step + i] = from[i * from_step + j] for i, j < kSize of Packet<A>.
ALWAYS_INLINE void transpose_square(const float* from, int64_t from_step, float* to,
                                    int64_t to_step) {
  using Index = Packet<int32_t>::Values;
  Packet<float>::Values row[4], pair[4];
  for (int i = 0; i < 4; ++i) row[i] = Packet<float>::load(from + i * from_step);
  pair[0] = __builtin_shuffle(row[0], row[1], Index{0, 4, 1, 5});
  pair[1] = __builtin_shuffle(row[2], row[3], Index{0, 4, 1, 5});
  pair[2] = __builtin_shuffle(row[0], row[1], Index{2, 6, 3, 7});
  pair[3] = __builtin_shuffle(row[2], row[3], Index{2, 6, 3, 7});
  row[0] = __builtin_shuffle(pair[0], pair[1], Index{0, 1, 4, 5});
  row[1] = __builtin_shuffle(pair[0], pair[1], Index{2, 3, 6, 7});
  row[2] = __builtin_shuffle(pair[2], pair[3], Index{0, 1, 4, 5});
  row[3] = __builtin_shuffle(pair[2], pair[3], Index{2, 3, 6, 7});
  for (int i = 0; i < 4; ++i) Packet<float>::store(to + i * to_step, row[i]);
}
ALWAYS_INLINE void transpose_square(const double* from, int64_t from_step, double* to,
                                    int64_t to_step) {
  using Index = Packet<int64_t>::Values;
  Packet<double>::Values row[2];
  for (int i = 0; i < 2; ++i) row[i] = Packet<double>::load(from + i * from_step);
  Packet<double>::store(to, __builtin_shuffle(row[0], row[1], Index{0, 2}));
  Packet<double>::store(to + to_step, __builtin_shuffle(row[0], row[1], Index{1, 3}));
}

// block[i * kLanes + lane] = planes[lane * stride + i] for kSide lanes and i < cells. The last
// square overlaps the one before, which costs less than single cells.
template <class A>
ALWAYS_INLINE void pack_squares(const A* planes, int64_t stride, int64_t cells, A* block) {
  constexpr int64_t kSide = Packet<A>::kSize;
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
    transpose_square(planes + i, stride, block + i * kLanes<A>, kLanes<A>);
  }
}
template <class A>
ALWAYS_INLINE void unpack_squares(const A* block, int64_t stride, int64_t cells, A* planes) {
  constexpr int64_t kSide = Packet<A>::kSize;
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
    transpose_square(block + i * kLanes<A>, kLanes<A>, planes + i, stride);
  }
}

// Cells that are transposed at a time: few enough for their part of the block to stay in the
// nearest cache while the planes are gone through, a few at a time because planes a power of two
// apart would push each other out of it.
constexpr int64_t kChunk = 64;

// block[i * kLanes + lane] = planes[lane * stride + i] for i < cells; lanes past `lanes` become 0.
// Squares, because GCC finds no transposition in the plain loops, which take 1.3 to 1.6 times as
// long for whole operators.
template <class T, class A>
ALWAYS_INLINE void pack_planes(const T* planes, int64_t stride, int lanes, int64_t cells,
                               A* block) {
  constexpr int kSide = Packet<A>::kSize;
  for (int64_t start = 0; start < cells; start += kChunk, planes += kChunk) {
    const int64_t count = std::min(cells - start, kChunk);
    A* target = block + start * kLanes<A>;
    for (int lane = 0; lane < kLanes<A>; lane += kSide) {
      const T* plane = planes + lane * stride;
      if (lane >= lanes) {
        for (int64_t i = 0; i < count; ++i) {
          Packet<A>::store(target + i * kLanes<A> + lane, typename Packet<A>::Values{});
        }
        continue;
      }
      if constexpr (std::is_same<T, A>::value) {
        if (lane + kSide <= lanes) {
          pack_squares(plane, stride, count, target + lane);
          continue;
        }
      }
      A strip[kSide * kChunk] = {};
      for (int i = 0; i < kSide && lane + i < lanes; ++i) {
        load_run(plane + i * stride, count, strip + i * kChunk);
      }
      pack_squares(strip, kChunk, count, target + lane);
    }
  }
}

// The way back: planes[lane * stride + i] = block[i * kLanes + lane].
template <class T, class A>
ALWAYS_INLINE void unpack_planes(const A* block, int64_t stride, int lanes, int64_t cells,
                                 T* planes) {
  constexpr int kSide = Packet<A>::kSize;
  for (int64_t start = 0; start < cells; start += kChunk, planes += kChunk) {
    const int64_t count = std::min(cells - start, kChunk);
    const A* source = block + start * kLanes<A>;
    for (int lane = 0; lane < lanes; lane += kSide) {
      T* plane = planes + lane * stride;
      if constexpr (std::is_same<T, A>::value) {
        if (lane + kSide <= lanes) {
          unpack_squares(source + lane, stride, count, plane);
          continue;
        }
      }
      A strip[kSide * kChunk];
      unpack_squares(source + lane, kChunk, count, strip);
      for (int i = 0; i < kSide && lane + i < lanes; ++i) {
        store_run(plane + i * stride, count, strip + i * kChunk);
      }
    }
  }
}

}  // namespace gluon_roi::cpu
