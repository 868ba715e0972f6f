// SPDX-License-Identifier: Apache-2.0
// Greedy and soft suppression on the device: the twin of cpu/suppression.h. Boxes come in segments,
// those of a batch or an image.
#pragma once
#include "../core/geometry/rotated_overlap.h"
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
template <class A, class Box = RankedBox<A>>
struct Segments {
  int64_t segments, padded;  // padded: a power of two
  Rank<A>* ranks;
  Box* boxes;            // in the order of the ranks
  int32_t* classes;      // boxes of different classes do not meet
  int32_t* counts;       // boxes of each segment
  int32_t* kept;         // places of the boxes that are kept
  int32_t* kept_counts;  // their number in each segment

  Segments(Carver* carver, int64_t number, int64_t most) : segments(number), padded(1) {
    while (padded < most) padded *= 2;
    ranks = carver->take<Rank<A>>(segments * padded);
    boxes = carver->take<Box>(segments * padded);
    classes = carver->take<int32_t>(segments * padded);
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

// Whether a kept box suppresses another. kToLast: as of intersect().
template <bool kToLast, class A>
struct UprightRule {
  A threshold;
  DEVICE_INLINE bool operator()(const RankedBox<A>& box, const RankedBox<A>& kept) const {
    A intersection, union_area;
    intersect<kToLast>(box, kept, A(1), &intersection, &union_area);
    return intersection / union_area > threshold;
  }
};
struct OrientedRule {
  double threshold;
  DEVICE_INLINE bool operator()(const OrientedBox& box, const OrientedBox& kept) const {
    return overlap_above(box, kept, threshold);
  }
};

// A block of threads owns a segment. Each of its threads owns a box of kThreads in turn.
template <class Rule, class A, class Box>
__global__ void __launch_bounds__(kThreads)
    suppress_kernel(Segments<A, Box> all, Rule suppresses, int64_t most) {
  __shared__ Box others[kThreads];
  __shared__ int32_t other_classes[kThreads];
  __shared__ bool others_over[kThreads];
  const int64_t segment = blockIdx.x, count = all.counts[segment];
  const Box* const boxes = all.boxes + segment * all.padded;
  const int32_t* const classes = all.classes + segment * all.padded;
  int32_t* const kept = all.kept + segment * all.padded;
  const int thread = static_cast<int>(threadIdx.x);
  int64_t total = 0;  // the same in all threads
  for (int64_t begin = 0; begin < count && total < most; begin += kThreads) {
    const int64_t place = begin + thread;
    const bool has_box = place < count;
    const Box box = boxes[has_box ? place : 0];
    const int32_t class_id = classes[has_box ? place : 0];
    bool over = !has_box;
    const auto test = [&](int other) {
      if (over || other_classes[other] != class_id) return;
      over = suppresses(box, others[other]);
    };
    // 1. Each thread's box against all boxes that were kept before, kThreads of them at a time.
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
    // 2. Against the better boxes of the same kThreads, in their order.
    __syncthreads();
    others[thread] = box;
    other_classes[thread] = class_id;
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
  using Rule = UprightRule<kToLast, A>;
  launch(gpu, suppress_kernel<Rule, A, RankedBox<A>>, all.segments, kThreads, all, Rule{threshold},
         most);
}
template <class A>
void suppress_rotated(const Gpu& gpu, const Segments<A, OrientedBox>& all, double threshold) {
  launch(gpu, suppress_kernel<OrientedRule, A, OrientedBox>, all.segments, kThreads, all,
         OrientedRule{threshold}, all.padded);
}

// ---- Soft suppression ---------------------------------------------------------------------------

// Scores of the boxes of all segments, and those of the kept ones, in the order of all.kept.
struct SoftScores {
  double *boxes, *kept;

  SoftScores(Carver* carver, int64_t size)
      : boxes(carver->take<double>(size)), kept(carver->take<double>(size)) {}
};

// A box that is kept, or dropped, has this score; those of others are at least 0.
constexpr double kNoScore = -1.0;

// A block of threads owns a segment. In each step it finds the box with the highest score, the
// first of equal ones, and lowers the scores of the others of its class.
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
