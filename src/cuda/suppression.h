// SPDX-License-Identifier: Apache-2.0
// Greedy suppression on the device: the twin of cpu/suppression.h. Boxes come in segments, those of
// a batch or an image.
#pragma once
#include "../core/geometry/overlap.h"
#include "workspace.h"

namespace gluon_roi::cuda {

constexpr int kThreads = 256;

// Blocks with a thread for each of `count` elements.
inline int64_t blocks_of(int64_t count) { return div_up(count, kThreads); }
DEVICE_INLINE int64_t thread_number() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// Arrays of `segments` rows, each with room for `padded` boxes. Ranks without a box have the index
// -1.
template <class A>
struct Segments {
  int64_t segments, padded;  // padded: a power of two
  Rank<A>* ranks;
  RankedBox<A>* boxes;   // in the order of the ranks
  int32_t* kinds;        // boxes of different kinds do not meet
  int32_t* counts;       // boxes of each segment
  int32_t* kept;         // places of the boxes that are kept
  int32_t* kept_counts;  // their number in each segment

  Segments(Carver* carver, int64_t number, int64_t most) : segments(number), padded(1) {
    while (padded < most) padded *= 2;
    ranks = carver->take<Rank<A>>(segments * padded);
    boxes = carver->take<RankedBox<A>>(segments * padded);
    kinds = carver->take<int32_t>(segments * padded);
    counts = carver->take<int32_t>(segments);
    kept = carver->take<int32_t>(segments * padded);
    kept_counts = carver->take<int32_t>(segments);
  }
  HOST_DEVICE int64_t size() const { return segments * padded; }
  DEVICE_INLINE static Rank<A> no_rank() {
    return {static_cast<typename Rank<A>::Bits>(~typename Rank<A>::Bits{0}), -1};
  }
};

// A step of a bitonic sort of each segment: each thread orders two ranks, `step` apart.
template <class A>
__global__ void __launch_bounds__(kThreads)
    sort_kernel(Rank<A>* ranks, int64_t pairs, int64_t padded, int64_t run, int64_t step) {
  const int64_t pair = thread_number();
  if (pair >= pairs) return;
  const int64_t low = 2 * pair - pair % step;
  const bool ascends = (low % padded & run) == 0;
  const Rank<A> first = ranks[low], second = ranks[low + step];
  if ((second < first) != ascends) return;
  ranks[low] = second;
  ranks[low + step] = first;
}

template <class A>
void sort_segments(const Gpu& gpu, const Segments<A>& all) {
  const int64_t pairs = all.size() / 2;
  for (int64_t run = 2; run <= all.padded; run *= 2) {
    for (int64_t step = run / 2; step > 0; step /= 2) {
      launch(gpu, sort_kernel<A>, blocks_of(pairs), kThreads, all.ranks, pairs, all.padded, run,
             step);
    }
  }
}

// A block of threads owns a segment. Each of its threads owns a box of kThreads in turn.
template <bool kToLast, class A>
__global__ void __launch_bounds__(kThreads)
    suppress_kernel(Segments<A> all, A threshold, int64_t most) {
  __shared__ RankedBox<A> others[kThreads];
  __shared__ int32_t other_kinds[kThreads];
  __shared__ bool others_over[kThreads];
  const int64_t segment = blockIdx.x, count = all.counts[segment];
  const RankedBox<A>* const boxes = all.boxes + segment * all.padded;
  const int32_t* const kinds = all.kinds + segment * all.padded;
  int32_t* const kept = all.kept + segment * all.padded;
  const int thread = static_cast<int>(threadIdx.x);
  int64_t total = 0;  // the same in all threads
  for (int64_t begin = 0; begin < count && total < most; begin += kThreads) {
    const int64_t place = begin + thread;
    const bool has_box = place < count;
    const RankedBox<A> box = boxes[has_box ? place : 0];
    const int32_t kind = kinds[has_box ? place : 0];
    bool over = !has_box;
    const auto test = [&](int other) {
      if (over || other_kinds[other] != kind) return;
      A common, joined;
      intersect<kToLast>(box, others[other], A(1), &common, &joined);
      over = common / joined > threshold;
    };
    // 1. Each thread's box against all boxes that were kept before, kThreads of them at a time.
    for (int64_t first = 0; first < total; first += kThreads) {
      const int64_t left = total - first;
      const int loaded = left < kThreads ? static_cast<int>(left) : kThreads;
      __syncthreads();
      if (thread < loaded) {
        others[thread] = boxes[kept[first + thread]];
        other_kinds[thread] = kinds[kept[first + thread]];
      }
      __syncthreads();
      for (int other = 0; other < loaded; ++other) test(other);
    }
    // 2. Against the better boxes of the same kThreads, in their order.
    __syncthreads();
    others[thread] = box;
    other_kinds[thread] = kind;
    others_over[thread] = over;
    __syncthreads();
    for (int other = 0; other < kThreads && total < most; ++other) {
      if (!others_over[other]) {
        if (thread == 0) kept[total] = static_cast<int32_t>(begin + other);
        ++total;
        if (thread > other) test(other);
        others_over[thread] = others_over[thread] || over;
      }
      __syncthreads();
    }
  }
  if (thread == 0) all.kept_counts[segment] = static_cast<int32_t>(total);
}

template <bool kToLast, class A>
void suppress(const Gpu& gpu, const Segments<A>& all, A threshold, int64_t most) {
  launch(gpu, suppress_kernel<kToLast, A>, all.segments, kThreads, all, threshold, most);
}

}  // namespace gluon_roi::cuda
