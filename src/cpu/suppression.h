// SPDX-License-Identifier: Apache-2.0
// Greedy suppression: each box in turn, the best first, is kept unless a kept one overlaps it by
// more than a threshold.
//
// Boxes are tested in lanes, kLanes of them against one kept box at a time. A block of boxes first
// meets all boxes kept before it, which divides among threads, then one another.
#pragma once
#include <algorithm>
#include <vector>

#include "../core/geometry/suppression.h"
#include "lanes.h"
#include "threads.h"

namespace gluon_roi::cpu {

// Sorts the first `most` ranks, and drops the others.
template <class A>
void sort_best(std::vector<Rank<A>>* ranks, int64_t most) {
  if (static_cast<int64_t>(ranks->size()) > most) {
    std::nth_element(ranks->begin(), ranks->begin() + most, ranks->end());
    ranks->resize(static_cast<size_t>(most));
  }
  std::sort(ranks->begin(), ranks->end());
}

// Boxes, the best first, with the coordinates of neighbours side by side.
template <class A>
class BoxColumns {
 public:
  explicit BoxColumns(int64_t count)
      : count_(count), padded_(blocks_of<A>(count) * kLanes<A>), values_(kColumns * padded_) {}
  int64_t count() const { return count_; }
  void set(int64_t i, const RankedBox<A>& box) {
    const A values[kColumns] = {box.x1, box.y1, box.x2, box.y2, box.area};
    for (int n = 0; n < kColumns; ++n) values_[n * padded_ + i] = values[n];
  }
  // A register of them.
  template <class Simd>
  ALWAYS_INLINE RankedBox<typename Lanes<A, Simd>::Register> at(int64_t i) const {
    using Stored = typename Lanes<A, Simd>::Stored;
    const A* const from = values_.data() + i;
    return {*reinterpret_cast<const Stored*>(from),
            *reinterpret_cast<const Stored*>(from + padded_),
            *reinterpret_cast<const Stored*>(from + 2 * padded_),
            *reinterpret_cast<const Stored*>(from + 3 * padded_),
            *reinterpret_cast<const Stored*>(from + 4 * padded_)};
  }
  RankedBox<A> box(int64_t i) const {
    const A* const from = values_.data() + i;
    return {from[0], from[padded_], from[2 * padded_], from[3 * padded_], from[4 * padded_]};
  }

 private:
  static constexpr int kColumns = 5;
  const int64_t count_, padded_;
  std::vector<A> values_;
};

// One suppression.
template <class A>
class Suppression {
 public:
  Suppression(const BoxColumns<A>& boxes, A threshold, A unit)
      : boxes_(boxes),
        threshold_(threshold),
        unit_(unit),
        over_(blocks_of<A>(boxes.count()) * kLanes<A>),
        kept_(boxes.count()) {}

  // Returns the boxes that are kept, at most `most`, in their order. `threads`: on all of them.
  std::vector<int32_t> run(int64_t most, bool threads) {
    std::vector<int32_t> places;
    constexpr int64_t kBlock = 512;
    for (int64_t begin = 0; begin < boxes_.count(); begin += kBlock) {
      const int64_t end = std::min(begin + kBlock, boxes_.count());
      const int64_t before = static_cast<int64_t>(places.size());
      parallel_for(blocks_of<A>(end - begin), threads ? (end - begin) * before : 0,
                   [&](int64_t group) {
                     run_simd([&](auto simd) INLINE_LAMBDA {
                       const int64_t first = begin + group * kLanes<A>;
                       for (int64_t i = first; i < first + kLanes<A>; i += kWidth<decltype(simd)>) {
                         test(simd, i, 0, before);
                       }
                     });
                   });
      run_simd([&](auto simd) INLINE_LAMBDA {
        for (int64_t i = begin; i < end; i += kWidth<decltype(simd)>) {
          test(simd, i, before, static_cast<int64_t>(places.size()));
          const int64_t next = std::min(end, i + kWidth<decltype(simd)>);
          for (int64_t place = i; place < next; ++place) {
            if (over_[place] != 0) continue;
            const int64_t count = static_cast<int64_t>(places.size());
            if (count == most) return;
            kept_[count] = boxes_.box(place);
            places.push_back(static_cast<int32_t>(place));
            test(simd, i, count, count + 1);
          }
        }
      });
      if (static_cast<int64_t>(places.size()) == most) break;
    }
    return places;
  }

 private:
  template <class Simd>
  static constexpr int kWidth = Lanes<A, Simd>::kPerRegister;

  // Marks the boxes of a register from `i` on that one of the kept ones overlaps.
  template <class Simd>
  ALWAYS_INLINE void test(Simd, int64_t i, int64_t first, int64_t last) {
    using Values = Lanes<A, Simd>;
    using Register = typename Values::Register;
    const RankedBox<Register> own = boxes_.template at<Simd>(i);
    const Register one = Values::all(1).registers[0], unit = Values::all(unit_).registers[0];
    const Register threshold = Values::all(threshold_).registers[0];
    const RankedBox<A>* const kept = kept_.data();
    Register over = *reinterpret_cast<const typename Values::Stored*>(over_.data() + i);
    while (first < last) {
      const int64_t end = std::min(last, first + kAtATime);
      for (; first < end; ++first) {
        const RankedBox<A>& box = kept[first];
        const RankedBox<Register> other = {
            Values::all(box.x1).registers[0], Values::all(box.y1).registers[0],
            Values::all(box.x2).registers[0], Values::all(box.y2).registers[0],
            Values::all(box.area).registers[0]};
        Register common;
        overlap(own, other, unit, &common);
        over = common > threshold ? one : over;
      }
      *reinterpret_cast<typename Values::Stored*>(over_.data() + i) = over;
      bool some = false;
      for (int lane = 0; lane < kWidth<Simd>; ++lane) some = some || over_[i + lane] == 0;
      if (!some) return;
    }
  }
  // A test of all boxes ends early after this many.
  static constexpr int64_t kAtATime = 64;

  const BoxColumns<A>& boxes_;
  const A threshold_, unit_;
  std::vector<A> over_;  // 1 if a box is suppressed, else 0; the boxes of padding do not matter
  std::vector<RankedBox<A>> kept_;
};

}  // namespace gluon_roi::cpu
