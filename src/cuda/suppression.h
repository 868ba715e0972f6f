// SPDX-License-Identifier: Apache-2.0
// Greedy and soft suppression with CUDA, the counterpart of cpu/suppression.h. A segment has the
// boxes of a batch or an image.
#pragma once
#include "../core/geometry/rotated_overlap.h"
#include "workspace.h"

namespace gluon_roi::cuda {

constexpr int kThreads = 256;

// The number of blocks for one thread per element.
inline int64_t blocks_of(int64_t count) { return div_up(count, kThreads); }
DEVICE_INLINE int64_t thread_number() {
  return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}

// Arrays with a row of `padded` boxes for each segment. Ranks without a box have the index -1.
template <class A, class Box = OverlapBox<A>>
struct Segments {
  int64_t segments, padded;  // padded: a power of two
  Rank<A>* ranks;
  Box* boxes;            // in the order of the ranks
  int32_t* classes;      // boxes of different classes do not suppress one another
  int32_t* counts;       // number of boxes in each segment
  int32_t* kept;         // positions of the kept boxes in `boxes`
  int32_t* kept_counts;  // number of kept boxes in each segment

  Segments(WorkspaceArena* arena, int64_t segment_count, int64_t max_boxes)
      : segments(segment_count), padded(1) {
    while (padded < max_boxes) padded *= 2;
    ranks = arena->take<Rank<A>>(segments * padded);
    boxes = arena->take<Box>(segments * padded);
    classes = arena->take<int32_t>(segments * padded);
    counts = arena->take<int32_t>(segments);
    kept = arena->take<int32_t>(segments * padded);
    kept_counts = arena->take<int32_t>(segments);
  }
  HOST_DEVICE int64_t size() const { return segments * padded; }
  DEVICE_INLINE static Rank<A> no_rank() {
    return {static_cast<typename Rank<A>::Bits>(~typename Rank<A>::Bits{0}), -1};
  }
};

// A step of a bitonic sort of each segment: each thread sorts two ranks that are `step` apart.
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

template <class A, class Box>
void sort_segments(const Gpu& gpu, const Segments<A, Box>& all) {
  const int64_t pairs = all.size() / 2;
  for (int64_t run = 2; run <= all.padded; run *= 2) {
    for (int64_t step = run / 2; step > 0; step /= 2) {
      launch(gpu, sort_kernel<A>, blocks_of(pairs), kThreads, all.ranks, pairs, all.padded, run,
             step);
    }
  }
}

// ---- Greedy suppression -------------------------------------------------------------------------

// Whether a kept box suppresses another. kInclusiveCorners: see intersect().
template <bool kInclusiveCorners, class A>
struct UprightRule {
  A threshold;
  DEVICE_INLINE bool operator()(const OverlapBox<A>& box, const OverlapBox<A>& kept) const {
    A intersection, union_area;
    intersect<kInclusiveCorners>(box, kept, A(1), &intersection, &union_area);
    return intersection / union_area > threshold;
  }
};
struct RotatedOverlapRule {
  double threshold;
  DEVICE_INLINE bool operator()(const RotatedOverlapBox& box, const RotatedOverlapBox& kept) const {
    return overlap_above(box, kept, threshold);
  }
};

// A thread block processes a segment, kThreads boxes at a time, with a thread for each box.
template <class Rule, class A, class Box>
__global__ void __launch_bounds__(kThreads)
    suppress_kernel(Segments<A, Box> all, Rule suppresses, int64_t max_kept) {
  __shared__ Box others[kThreads];
  __shared__ int32_t other_classes[kThreads];
  __shared__ bool others_over[kThreads];
  const int64_t segment = blockIdx.x, count = all.counts[segment];
  const Box* const boxes = all.boxes + segment * all.padded;
  const int32_t* const classes = all.classes + segment * all.padded;
  int32_t* const kept = all.kept + segment * all.padded;
  const int thread = static_cast<int>(threadIdx.x);
  int64_t total = 0;  // the same in all threads
  for (int64_t begin = 0; begin < count && total < max_kept; begin += kThreads) {
    const int64_t place = begin + thread;
    const bool has_box = place < count;
    const Box box = boxes[has_box ? place : 0];
    const int32_t class_id = classes[has_box ? place : 0];
    bool over = !has_box;
    const auto test = [&](int other) {
      if (over || other_classes[other] != class_id) return;
      over = suppresses(box, others[other]);
    };
    // 1. Test each thread's box against all boxes that were kept before, kThreads of them at a
    // time.
    for (int64_t first = 0; first < total; first += kThreads) {
      const int64_t left = total - first;
      const int loaded = left < kThreads ? static_cast<int>(left) : kThreads;
      __syncthreads();
      if (thread < loaded) {
        others[thread] = boxes[kept[first + thread]];
        other_classes[thread] = classes[kept[first + thread]];
      }
      __syncthreads();
      for (int other = 0; other < loaded; ++other) test(other);
    }
    // 2. Test it against the boxes with higher scores among the same kThreads, in their order.
    __syncthreads();
    others[thread] = box;
    other_classes[thread] = class_id;
    others_over[thread] = over;
    __syncthreads();
    for (int other = 0; other < kThreads && total < max_kept; ++other) {
      if (!others_over[other]) {
        if (thread == 0) kept[total] = static_cast<int32_t>(begin + other);
        ++total;
        if (thread > other) {
          test(other);
          others_over[thread] = over;  // which no thread reads before the next __syncthreads()
        }
      }
      __syncthreads();
    }
  }
  if (thread == 0) all.kept_counts[segment] = static_cast<int32_t>(total);
}

template <bool kInclusiveCorners, class A>
void suppress(const Gpu& gpu, const Segments<A>& all, A threshold, int64_t max_kept) {
  using Rule = UprightRule<kInclusiveCorners, A>;
  launch(gpu, suppress_kernel<Rule, A, OverlapBox<A>>, all.segments, kThreads, all, Rule{threshold},
         max_kept);
}
template <class A>
void suppress_rotated(const Gpu& gpu, const Segments<A, RotatedOverlapBox>& all, double threshold) {
  launch(gpu, suppress_kernel<RotatedOverlapRule, A, RotatedOverlapBox>, all.segments, kThreads,
         all, RotatedOverlapRule{threshold}, all.padded);
}

// ---- Soft suppression ---------------------------------------------------------------------------

// The scores of all boxes, and those of the kept boxes in the order of all.kept.
struct SoftScores {
  double *boxes, *kept;

  SoftScores(WorkspaceArena* arena, int64_t size)
      : boxes(arena->take<double>(size)), kept(arena->take<double>(size)) {}
};

// The score of a box that is kept or dropped already; other scores are >= 0.
constexpr double kNoScore = -1.0;

// A thread block processes a segment. Each step finds the box with the highest score (the first one
// of equal scores), and lowers the scores of the other boxes of its class.
template <class A, class Box>
__global__ void __launch_bounds__(kThreads)
    soften_kernel(Segments<A, Box> all, SoftScores scores, Decay decay, double min_score) {
  __shared__ double best_scores[kThreads];
  __shared__ int32_t best_places[kThreads];
  const int64_t segment = blockIdx.x, first = segment * all.padded, count = all.counts[segment];
  const int thread = static_cast<int>(threadIdx.x);
  const auto is_better = [&](double score, int32_t place, double other_score, int32_t other) {
    if (score != other_score) return score > other_score;
    return score >= 0 && all.ranks[first + place].index < all.ranks[first + other].index;
  };
  int32_t total = 0;  // the same in all threads
  for (; total < count; ++total) {
    double best_score = kNoScore;
    int32_t best = 0;
    for (int64_t i = thread; i < count; i += kThreads) {
      double& score = scores.boxes[first + i];
      if (!(score >= min_score)) score = kNoScore;
      const int32_t place = static_cast<int32_t>(i);
      if (!is_better(score, place, best_score, best)) continue;
      best_score = score;
      best = place;
    }
    best_scores[thread] = best_score;
    best_places[thread] = best;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (thread >= half) continue;
      const int other = thread + half;
      if (!is_better(best_scores[other], best_places[other], best_scores[thread],
                     best_places[thread])) {
        continue;
      }
      best_scores[thread] = best_scores[other];
      best_places[thread] = best_places[other];
    }
    __syncthreads();
    best_score = best_scores[0];
    best = best_places[0];
    __syncthreads();
    if (best_score < 0) break;
    if (thread == 0) {
      all.kept[first + total] = best;
      scores.kept[first + total] = best_score;
    }
    const Box kept = all.boxes[first + best];
    const int32_t class_id = all.classes[first + best];
    for (int64_t i = thread; i < count; i += kThreads) {
      double& score = scores.boxes[first + i];
      if (i == best) score = kNoScore;
      if (score < 0 || all.classes[first + i] != class_id) continue;
      score *= decay.factor(overlap_of(kept, all.boxes[first + i]));
    }
  }
  if (thread == 0) all.kept_counts[segment] = total;
}

template <class A, class Box>
void soften(const Gpu& gpu, const Segments<A, Box>& all, const SoftScores& scores,
            const Decay& decay, double min_score) {
  launch(gpu, soften_kernel<A, Box>, all.segments, kThreads, all, scores, decay, min_score);
}

}  // namespace gluon_roi::cuda
