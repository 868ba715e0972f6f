// SPDX-License-Identifier: Apache-2.0
// Non-maximum suppression (NMS) visits boxes by descending score, and keeps a box unless a kept box
// overlaps it by more than a threshold. Soft-NMS lowers scores instead.
//
// Axis-aligned boxes are tested in lanes, a register of them against one kept box at a time. A
// block of boxes is first tested against all boxes that were kept before it, in parallel, and then
// its boxes are tested against one another.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "../core/geometry/rotated_overlap.h"
#include "lanes.h"
#include "memory.h"
#include "threads.h"

namespace gluon_roi::cpu {

// Sorts the first `max_count` ranks, and drops the others.
template <class A>
void sort_best(Vector<Rank<A>>* ranks, int64_t max_count) {
  if (static_cast<int64_t>(ranks->size()) > max_count) {
    std::nth_element(ranks->begin(), ranks->begin() + max_count, ranks->end());
    ranks->resize(static_cast<size_t>(max_count));
  }
  std::sort(ranks->begin(), ranks->end());
}

// Whether all lanes of a register are 0.
template <class Register>
ALWAYS_INLINE bool all_zero(const Register& lanes) {
  constexpr size_t kWords = sizeof(Register) / sizeof(uint64_t);
  uint64_t words[kWords], bits = 0;
  std::memcpy(words, &lanes, sizeof(Register));
  for (const uint64_t word : words) bits |= word;
  return bits == 0;
}

// ---- Upright boxes ------------------------------------------------------------------------------

// Boxes by descending score, as a structure of arrays.
template <class A>
class BoxColumns {
 public:
  explicit BoxColumns(int64_t count)
      : count_(count), padded_(blocks_of<A>(count) * kLanes<A>), values_(kColumns * padded_) {}
  int64_t count() const { return count_; }
  void set(int64_t i, const OverlapBox<A>& box) {
    const A values[kColumns] = {box.x1, box.y1, box.x2, box.y2, box.area};
    for (int n = 0; n < kColumns; ++n) values_[n * padded_ + i] = values[n];
  }
  // Loads a register of boxes.
  template <class Simd>
  ALWAYS_INLINE OverlapBox<typename Lanes<A, Simd>::Register> load(int64_t i) const {
    using Stored = typename Lanes<A, Simd>::Stored;
    const A* const from = values_.data() + i;
    return {*reinterpret_cast<const Stored*>(from),
            *reinterpret_cast<const Stored*>(from + padded_),
            *reinterpret_cast<const Stored*>(from + 2 * padded_),
            *reinterpret_cast<const Stored*>(from + 3 * padded_),
            *reinterpret_cast<const Stored*>(from + 4 * padded_)};
  }
  OverlapBox<A> box(int64_t i) const {
    const A* const from = values_.data() + i;
    return {from[0], from[padded_], from[2 * padded_], from[3 * padded_], from[4 * padded_]};
  }

 private:
  static constexpr int kColumns = 5;
  const int64_t count_, padded_;
  Vector<A> values_;
};

// Suppression of upright boxes. kInclusiveCorners: see intersect().
template <class A, bool kInclusiveCorners>
class Suppression {
 public:
  Suppression(const BoxColumns<A>& boxes, A threshold)
      : boxes_(boxes),
        threshold_(threshold),
        reject_factor_(reject_factor(threshold)),
        suppressed_(blocks_of<A>(boxes.count()) * kLanes<A>),
        kept_(boxes.count()) {}

  // Returns the indices of the kept boxes, at most `max_kept`, in their order. `parallel`: use all
  // threads.
  Vector<int32_t> run(int64_t max_kept, bool parallel) {
    Vector<int32_t> kept_indices;
    constexpr int64_t kBlock = 512;
    for (int64_t begin = 0; begin < boxes_.count(); begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, boxes_.count());
      const int64_t before = static_cast<int64_t>(kept_indices.size());
      parallel_for(blocks_of<A>(end - begin), parallel ? (end - begin) * before : 0,
                   [&](int64_t group) {
                     run_simd([&](auto simd) INLINE_LAMBDA {
                       const int64_t first = begin + group * kLanes<A>;
                       for (int64_t i = first; i < first + kLanes<A>; i += kWidth<decltype(simd)>) {
                         mark_suppressed(simd, i, 0, before);
                       }
                     });
                   });
      run_simd([&](auto simd) INLINE_LAMBDA {
        for (int64_t i = begin; i < end; i += kWidth<decltype(simd)>) {
          mark_suppressed(simd, i, before, static_cast<int64_t>(kept_indices.size()));
          const int64_t next = std::min(end, i + kWidth<decltype(simd)>);
          for (int64_t index = i; index < next; ++index) {
            if (suppressed_[index] != 0) continue;
            const int64_t count = static_cast<int64_t>(kept_indices.size());
            if (count == max_kept) return;
            kept_[count] = boxes_.box(index);
            kept_indices.push_back(static_cast<int32_t>(index));
            mark_suppressed(simd, i, count, count + 1);
          }
        }
      });
      if (static_cast<int64_t>(kept_indices.size()) == max_kept) break;
    }
    return kept_indices;
  }

 private:
  template <class Simd>
  static constexpr int kWidth = Lanes<A, Simd>::kPerRegister;

  // Marks those boxes of the register at `i` that a kept box in [first, last) overlaps. Most kept
  // boxes overlap none of them, which a multiplication shows (reject_factor()); only the others
  // need MXNet's division. (With a division for every pair, and AVX-512, BoxNMS took 1.0 to 1.2
  // times as long, and 1.2 to 1.5 times in float64.)
  template <class Simd>
  ALWAYS_INLINE void mark_suppressed(Simd, int64_t i, int64_t first, int64_t last) {
    using Values = Lanes<A, Simd>;
    using Register = typename Values::Register;
    using Stored = typename Values::Stored;
    const OverlapBox<Register> tested = boxes_.template load<Simd>(i);
    const Register one = Values::all(1).registers[0];
    const Register threshold = Values::all(threshold_).registers[0];
    const Register reject_factors = Values::all(reject_factor_).registers[0];
    const auto intersect_with_kept = [&](int64_t n, Register* intersection,
                                         Register* union_area) INLINE_LAMBDA {
      const OverlapBox<A>& box = kept_[n];
      const OverlapBox<Register> other = {
          Values::all(box.x1).registers[0], Values::all(box.y1).registers[0],
          Values::all(box.x2).registers[0], Values::all(box.y2).registers[0],
          Values::all(box.area).registers[0]};
      intersect<kInclusiveCorners>(tested, other, one, intersection, union_area);
    };
    Register intersection, union_area;
    for (; first < last; first += kAtATime) {
      const int64_t end = std::min(last, first + kAtATime);
      Register candidates{};
      for (int64_t n = first; n < end; ++n) {
        intersect_with_kept(n, &intersection, &union_area);
        candidates = intersection < reject_factors * union_area ? candidates : one;
      }
      if (all_zero(candidates)) continue;
      Register over = *reinterpret_cast<const Stored*>(suppressed_.data() + i);
      for (int64_t n = first; n < end; ++n) {
        intersect_with_kept(n, &intersection, &union_area);
        over = intersection / union_area > threshold ? one : over;
      }
      *reinterpret_cast<Stored*>(suppressed_.data() + i) = over;
      if (all_zero(one - over)) return;
    }
  }
  // The number of kept boxes that are tested at a time.
  static constexpr int64_t kAtATime = 8;

  const BoxColumns<A>& boxes_;
  const A threshold_, reject_factor_;
  Vector<A> suppressed_;  // 1 if a box is suppressed, else 0; undefined for padding
  Vector<OverlapBox<A>> kept_;
};

// ---- Rotated boxes ------------------------------------------------------------------------------

// Suppression of rotated boxes. The bounding box of a box is compared with those of several kept
// boxes at a time, in lanes, and only boxes whose bounding boxes overlap are intersected.
class RotatedSuppression {
 public:
  RotatedSuppression(const Vector<RotatedOverlapBox>& boxes, double threshold)
      : boxes_(boxes), threshold_(threshold), padded_(round_up(boxes.size(), kLanes<double>)) {
    bounds_.resize(kColumns * padded_);
  }

  // Returns the indices of the kept boxes, in their order. `parallel`: use all threads.
  Vector<int32_t> run(bool parallel) {
    const int64_t count = static_cast<int64_t>(boxes_.size());
    Vector<int32_t> kept;
    Vector<char> over(boxes_.size());
    constexpr int64_t kBlock = 512;
    for (int64_t begin = 0; begin < count; begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, count);
      const int64_t before = static_cast<int64_t>(kept.size());
      parallel_for(end - begin, parallel ? (end - begin) * before : 0,
                   [&](int64_t n) { over[begin + n] = is_suppressed(begin + n, kept, 0, before); });
      for (int64_t index = begin; index < end; ++index) {
        if (over[index] != 0) continue;
        const int64_t last = static_cast<int64_t>(kept.size());
        if (is_suppressed(index, kept, before, last)) continue;
        const RotatedOverlapBox& box = boxes_[index];
        const double columns[kColumns] = {box.x, box.y, box.half_x, box.half_y};
        for (size_t n = 0; n < kColumns; ++n) bounds_[n * padded_ + kept.size()] = columns[n];
        kept.push_back(static_cast<int32_t>(index));
      }
    }
    return kept;
  }

 private:
  // Whether one of the kept boxes [first, last) overlaps a box.
  bool is_suppressed(int64_t index, const Vector<int32_t>& kept, int64_t first,
                     int64_t last) const {
    const RotatedOverlapBox& box = boxes_[index];
    while (first < last) {
      // With a negative threshold, disjoint boxes suppress one another as well.
      int64_t end = last;
      if (threshold_ >= 0) find_close(box, &first, &end);
      for (; first < end; ++first) {
        if (overlap_above(box, boxes_[kept[first]], threshold_)) return true;
      }
    }
    return false;
  }
  // Advances *first to the first register with a kept bounding box that overlaps that of `box`, and
  // sets *end to the register's end. Boxes behind the last full register are not compared here.
  void find_close(const RotatedOverlapBox& box, int64_t* first, int64_t* end) const {
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<double, decltype(simd)>;
      using Register = typename Values::Register;
      using Stored = typename Values::Stored;
      const Register x = Values::all(box.x).registers[0], y = Values::all(box.y).registers[0];
      const Register half_x = Values::all(box.half_x).registers[0];
      const Register half_y = Values::all(box.half_y).registers[0];
      const Register one = Values::all(1).registers[0];
      const int64_t last = *end;
      int64_t i = *first;
      for (; i + Values::kPerRegister <= last; i += Values::kPerRegister) {
        const double* const from = bounds_.data() + i;
        const Register dx = x - *reinterpret_cast<const Stored*>(from);
        const Register dy = y - *reinterpret_cast<const Stored*>(from + padded_);
        const Register reach_x = half_x + *reinterpret_cast<const Stored*>(from + 2 * padded_);
        const Register reach_y = half_y + *reinterpret_cast<const Stored*>(from + 3 * padded_);
        Register candidates = one;
        candidates = dx > reach_x ? Register{} : candidates;
        candidates = -dx > reach_x ? Register{} : candidates;
        candidates = dy > reach_y ? Register{} : candidates;
        candidates = -dy > reach_y ? Register{} : candidates;
        if (!all_zero(candidates)) break;
      }
      *first = i;
      *end = std::min<int64_t>(i + Values::kPerRegister, last);
    });
  }

  static constexpr size_t kColumns = 4;
  const Vector<RotatedOverlapBox>& boxes_;
  const double threshold_;
  const size_t padded_;
  Vector<double> bounds_;  // bounding boxes of the kept boxes: centres and half sizes, in columns
};

// ---- Soft suppression ---------------------------------------------------------------------------

// A box whose score may be lowered. `place` is its index among the caller's sorted rows.
template <class Box>
struct SoftBox {
  Box box;
  double score;
  int32_t index, place;  // boxes with equal scores are sorted by index
};

template <class Box>
bool is_better(const SoftBox<Box>& a, const SoftBox<Box>& b) {
  return a.score != b.score ? a.score > b.score : a.index < b.index;
}

// Returns the kept boxes of a class, by descending score, with their lowered scores.
template <class Box>
Vector<SoftBox<Box>> suppress_softly(Vector<SoftBox<Box>> boxes, const Decay& decay,
                                     double min_score) {
  const auto is_low = [&](const SoftBox<Box>& box) { return !(box.score >= min_score); };
  boxes.erase(std::remove_if(boxes.begin(), boxes.end(), is_low), boxes.end());
  Vector<SoftBox<Box>> kept;
  while (!boxes.empty()) {
    const auto best = std::min_element(boxes.begin(), boxes.end(), is_better<Box>);
    kept.push_back(*best);
    *best = boxes.back();
    boxes.pop_back();
    for (SoftBox<Box>& box : boxes) {
      box.score *= decay.factor(overlap_of(kept.back().box, box.box));
    }
    boxes.erase(std::remove_if(boxes.begin(), boxes.end(), is_low), boxes.end());
  }
  return kept;
}

}  // namespace gluon_roi::cpu
