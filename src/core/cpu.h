// What the CPU kernels share: threads, instruction sets chosen at run time, and the transposition of
// 16 channel planes into one channel-last block.
#pragma once
#include <algorithm>
#include <type_traits>

#include "geometry.h"

namespace gluon_roi {

// Where an operator runs: plain overloads, so that a forgotten CUDA half is a link error.
struct Cpu {};

// ---- Instruction sets ---------------------------------------------------------------------------

enum class SimdLevel : int { kSse2, kAvx2, kAvx512 };

// The best level of this processor, or the lower one that GLUON_ROI_SIMD names; decided once.
SimdLevel simd_level();
const char* simd_name(SimdLevel level);

// Runs body() compiled for the chosen level. Everything that body calls must be GR_INLINE: a
// function that is not inlined stays at the baseline, correct but slow. One source serves all
// levels, and without fused multiply-adds (-ffp-contract=off) all of them give the same bytes.
template <class Body>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,prefer-vector-width=512"))) void
run_avx512(const Body& body) {
  body();
}
template <class Body>
__attribute__((target("avx2,f16c"))) void run_avx2(const Body& body) {
  body();
}
template <class Body>
void run_simd(const Body& body) {
  switch (simd_level()) {
    case SimdLevel::kAvx512: return run_avx512(body);
    case SimdLevel::kAvx2: return run_avx2(body);
    default: return body();
  }
}
// A lambda for run_simd: run_simd([&]() GR_KERNEL { ... });
#define GR_KERNEL __attribute__((always_inline))

// ---- Threads ------------------------------------------------------------------------------------

// Runs body(task) for every task in [0, tasks), on the threads that MXNet gives this operator, or
// on one if `work`, the number of elements touched, is too small to pay for waking a second.
// Tasks own disjoint outputs, so the number of threads never shows in the result.
void parallel_for_impl(int64_t tasks, int64_t work, void (*run)(const void*, int64_t),
                       const void* body);
template <class Body>
void parallel_for(int64_t tasks, int64_t work, const Body& body) {
  parallel_for_impl(
      tasks, work,
      [](const void* self, int64_t task) { (*static_cast<const Body*>(self))(task); }, &body);
}

// Scratch memory of this thread, kept between calls; contents are undefined.
void* thread_scratch(size_t bytes);
template <class A>
A* scratch(int64_t count) {
  return static_cast<A*>(thread_scratch(static_cast<size_t>(count) * sizeof(A)));
}

// ---- Channel blocks -----------------------------------------------------------------------------

// Kernels work on this many channels at once: one AVX-512 register of floats.
constexpr int kLanes = 16;
inline int64_t blocks_of(int64_t channels) { return (channels + kLanes - 1) / kLanes; }

// block[i * kLanes + lane] = planes[lane * stride + i] for i < cells; lanes past `lanes` become 0.
template <class T, class A>
GR_INLINE void pack_planes(const T* planes, int64_t stride, int lanes, int64_t cells, A* block) {
  if (lanes < kLanes) std::fill(block, block + cells * kLanes, A(0));
  // Runs of 16 cells keep both sides in the L1 cache.
  for (int64_t start = 0; start < cells; start += kLanes) {
    const int64_t stop = start + kLanes < cells ? start + kLanes : cells;
    for (int lane = 0; lane < lanes; ++lane) {
      const T* plane = planes + lane * stride;
      for (int64_t i = start; i < stop; ++i) block[i * kLanes + lane] = load(plane + i);
    }
  }
}

// The way back: planes[lane * stride + i] = block[i * kLanes + lane].
template <class T, class A>
GR_INLINE void unpack_planes(const A* block, int64_t stride, int lanes, int64_t cells, T* planes) {
  for (int64_t start = 0; start < cells; start += kLanes) {
    const int64_t stop = start + kLanes < cells ? start + kLanes : cells;
    for (int lane = 0; lane < lanes; ++lane) {
      T* plane = planes + lane * stride;
      for (int64_t i = start; i < stop; ++i) store(plane + i, block[i * kLanes + lane]);
    }
  }
}

}  // namespace gluon_roi
