// What the CPU kernels share: threads, instruction sets chosen at run time, and the transposition
// of channel planes into one channel-last block.
#pragma once
#include <algorithm>
#include <type_traits>

#include "geometry.h"

namespace gluon_roi {

// ---- Instruction sets ---------------------------------------------------------------------------

enum class SimdLevel : int { kSse2, kAvx2, kAvx512 };

// The best level of this processor, or the lower one that GLUON_ROI_SIMD names; decided once.
SimdLevel simd_level();
const char* simd_name(SimdLevel level);

// What a kernel knows about its level at compile time.
template <int register_bytes>
struct Simd {
  static constexpr int kRegisterBytes = register_bytes;
};

// Runs body(Simd<...>{}) compiled for the chosen level. Everything that body calls must be
// GR_INLINE: a function that is not inlined stays at the baseline, correct but slow. One source
// serves all levels, and without fused multiply-adds (-ffp-contract=off) all of them give the same
// bytes.
template <class Body>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,prefer-vector-width=512"))) void
run_avx512(const Body& body) {
  body(Simd<64>{});
}
template <class Body>
__attribute__((target("avx2,f16c"))) void run_avx2(const Body& body) {
  body(Simd<32>{});
}
template <class Body>
void run_simd(const Body& body) {
  switch (simd_level()) {
    case SimdLevel::kAvx512: return run_avx512(body);
    case SimdLevel::kAvx2: return run_avx2(body);
    default: return body(Simd<16>{});
  }
}
// A lambda for run_simd: run_simd([&](auto simd) GR_KERNEL { ... });
#define GR_KERNEL __attribute__((always_inline))

// ---- Channels -----------------------------------------------------------------------------------

// Kernels work on kLanes channels at once, 16 floats or 8 doubles: for one cell of the map they
// fill a cache line and an AVX-512 register. (With 16 doubles, blocks leave the caches: maps of 200
// x 304 took 1.3 to 1.5 times as long.)
constexpr int kCellBytes = 64;
template <class A>
constexpr int kLanes = kCellBytes / static_cast<int>(sizeof(A));
template <class A>
int64_t blocks_of(int64_t channels) {
  return (channels + kLanes<A> - 1) / kLanes<A>;
}

// One number for each channel of a block, in registers: in as many as the level needs. (Of plain
// arrays and `omp simd` loops GCC keeps some in memory: ROIPool forward took 1.3, backward 3.4
// times as long.)
template <class A, class Simd>
struct Lanes {
  static constexpr int kRegisters = kCellBytes / Simd::kRegisterBytes;
  static constexpr int kCount = kLanes<A>;
  typedef A Register __attribute__((vector_size(Simd::kRegisterBytes)));
  // In memory: as arrays of A are aligned, and known to overlap nothing but those (memcpy is not).
  typedef A Stored __attribute__((vector_size(Simd::kRegisterBytes), aligned(alignof(A))));
  static constexpr int kPerRegister = Simd::kRegisterBytes / sizeof(A);
  Register part[kRegisters];

  // By way of an array, which GCC makes a broadcast of; of `Register{} + value` it makes one
  // insert a lane.
  GR_INLINE static Lanes all(A value) {
    A values[kLanes<A>];
    for (int lane = 0; lane < kLanes<A>; ++lane) values[lane] = value;
    return load(values);
  }
  GR_INLINE static Lanes load(const A* from) {
    Lanes lanes;
    for_each([&](int i) GR_KERNEL {
      lanes.part[i] = *reinterpret_cast<const Stored*>(from + i * kPerRegister);
    });
    return lanes;
  }
  GR_INLINE void store(A* to) const {
    for_each([&](int i) GR_KERNEL { *reinterpret_cast<Stored*>(to + i * kPerRegister) = part[i]; });
  }

  // Lanes that are `step` elements apart; those past `lanes` are 0 and not written.
  template <class T>
  GR_INLINE static Lanes gather(int lanes, const T* from, int64_t step) {
    A values[kLanes<A>] = {};
    for (int lane = 0; lane < lanes; ++lane) values[lane] = gluon_roi::load(from + lane * step);
    return load(values);
  }
  template <class T>
  GR_INLINE void scatter(int lanes, T* to, int64_t step) const {
    A values[kLanes<A>];
    store(values);
    for (int lane = 0; lane < lanes; ++lane) gluon_roi::store(to + lane * step, values[lane]);
  }

  GR_INLINE Lanes& operator+=(const Lanes& other) {
    for_each([&](int i) GR_KERNEL { part[i] += other.part[i]; });
    return *this;
  }
  GR_INLINE Lanes& operator*=(const Lanes& other) {
    for_each([&](int i) GR_KERNEL { part[i] *= other.part[i]; });
    return *this;
  }
  GR_INLINE Lanes& operator/=(const Lanes& other) {
    for_each([&](int i) GR_KERNEL { part[i] /= other.part[i]; });
    return *this;
  }
  // Where `other` is greater, `other`: a NaN there never wins.
  GR_INLINE void keep_greater(const Lanes& other) {
    for_each([&](int i) GR_KERNEL { part[i] = other.part[i] > part[i] ? other.part[i] : part[i]; });
  }

  // Adds the lanes in which `left` is `right` to those of `sum`; they become 0 here, bit by bit,
  // for lanes may be infinite. (A second comparison in place of the bits: backward takes 1.06 times
  // as long.)
  GR_INLINE void move_where_equal(const Lanes& left, const Lanes& right, Lanes* sum) {
    using Bits = decltype(part[0] == part[0]);
    for_each([&](int i) GR_KERNEL {
      const Register moved = left.part[i] == right.part[i] ? part[i] : Register{};
      sum->part[i] += moved;
      part[i] = reinterpret_cast<Register>(reinterpret_cast<Bits>(part[i]) ^
                                           reinterpret_cast<Bits>(moved));
    });
  }

  template <class Body>
  GR_INLINE static void for_each(const Body& body) {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) body(i);
  }
};

// Stands for Simd where one channel is read and written as it is, without a channel block.
struct OneChannel {};
template <class A>
struct Lanes<A, OneChannel> {
  static constexpr int kCount = 1;
  A value;

  GR_INLINE static Lanes all(A value) { return Lanes{value}; }
  template <class T>
  GR_INLINE static Lanes load(const T* from) {
    return Lanes{gluon_roi::load(from)};
  }
  template <class T>
  GR_INLINE void store(T* to) const {
    gluon_roi::store(to, value);
  }
  template <class T>
  GR_INLINE static Lanes gather(int, const T* from, int64_t) {
    return load(from);
  }
  template <class T>
  GR_INLINE void scatter(int, T* to, int64_t) const {
    store(to);
  }
  GR_INLINE Lanes& operator+=(const Lanes& other) { return value += other.value, *this; }
  GR_INLINE Lanes& operator*=(const Lanes& other) { return value *= other.value, *this; }
  GR_INLINE Lanes& operator/=(const Lanes& other) { return value /= other.value, *this; }
};

// ---- Threads ------------------------------------------------------------------------------------

// Runs body(task) for every task in [0, tasks), on the threads that MXNet gives this operator, or
// on one if `work`, the number of elements touched, is too small to pay for waking a second.
// Tasks own disjoint outputs, so the number of threads never shows in the result.
int max_threads();
void parallel_for_impl(int64_t tasks, int64_t work, void (*run)(const void*, int64_t),
                       const void* body);
template <class Body>
void parallel_for(int64_t tasks, int64_t work, const Body& body) {
  parallel_for_impl(
      tasks, work, [](const void* self, int64_t task) { (*static_cast<const Body*>(self))(task); },
      &body);
}

// Scratch memory of this thread, kept between calls; contents are undefined.
void* thread_scratch(size_t bytes);
template <class A>
A* scratch(int64_t count) {
  return static_cast<A*>(thread_scratch(static_cast<size_t>(count) * sizeof(A)));
}

// ---- Channel blocks -----------------------------------------------------------------------------

// Converts `count` numbers; full runs have a constant length, so that they vectorise.
template <class T, class A>
GR_INLINE void load_run(const T* from, int64_t count, A* to) {
  for (; count >= kLanes<A>; count -= kLanes<A>, from += kLanes<A>, to += kLanes<A>) {
#pragma omp simd
    for (int i = 0; i < kLanes<A>; ++i) to[i] = load(from + i);
  }
  for (int64_t i = 0; i < count; ++i) to[i] = load(from + i);
}
template <class T, class A>
GR_INLINE void store_run(T* to, int64_t count, const A* from) {
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
  GR_INLINE static Values load(const A* from) { return *reinterpret_cast<const Stored*>(from); }
  GR_INLINE static void store(A* to, const Values& values) {
    *reinterpret_cast<Stored*>(to) = values;
  }
};

// to[j * to_step + i] = from[i * from_step + j] for i, j < kSize of Packet<A>.
GR_INLINE void transpose_square(const float* from, int64_t from_step, float* to, int64_t to_step) {
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
GR_INLINE void transpose_square(const double* from, int64_t from_step, double* to,
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
GR_INLINE void pack_squares(const A* planes, int64_t stride, int64_t cells, A* block) {
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
GR_INLINE void unpack_squares(const A* block, int64_t stride, int64_t cells, A* planes) {
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
GR_INLINE void pack_planes(const T* planes, int64_t stride, int lanes, int64_t cells, A* block) {
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
GR_INLINE void unpack_planes(const A* block, int64_t stride, int lanes, int64_t cells, T* planes) {
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

// Asks for one element of each lane, `step` elements apart, to be in the cache soon.
template <class T>
GR_INLINE void prefetch_lanes(int lanes, const T* from, int64_t step) {
  for (int lane = 0; lane < lanes; ++lane) __builtin_prefetch(from + lane * step, 1);
}

// Asks for `count` elements to be in the cache soon, in `parts` parts that are to be spread over
// the work before: all at once fill the processor's queue of outstanding reads, behind which the
// work has to wait. (ROIPool and ROIAlign with 2000 RoIs took 1.2 to 1.4 times as long.)
template <class T>
class GradualPrefetch {
 public:
  GR_INLINE GradualPrefetch(const T* from, int64_t count, int64_t parts)
      : line_(from), goal_(from), part_(parts > 0 ? (count + parts - 1) / parts : 0) {}
  GR_INLINE void next(int64_t parts = 1) {
    constexpr int64_t kLine = 64 / sizeof(T);
    goal_ += parts * part_;
    for (; line_ < goal_; line_ += kLine) __builtin_prefetch(line_, 1);
  }

 private:
  const T* line_;  // the next to ask for
  const T* goal_;  // where the parts so far end
  int64_t part_;
};

}  // namespace gluon_roi
