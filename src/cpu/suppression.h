// SPDX-License-Identifier: Apache-2.0
// Greedy suppression: each box in turn, the best first, is kept unless a kept one overlaps it by
// more than a threshold.
//
// Boxes are tested in lanes, kLanes of them against one kept box at a time. A block of boxes first
// meets all boxes kept before it, which divides among threads, then one another.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "../core/geometry/overlap.h"
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
  ALWAYS_INLINE RankedBox<typename Lanes<A, Simd>::Register> load(int64_t i) const {
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

// One suppression. kToLast: as of intersect().
template <class A, bool kToLast>
class Suppression {
 public:
  Suppression(const BoxColumns<A>& boxes, A threshold)
      : boxes_(boxes),
        threshold_(threshold),
        clear_(clear_of(threshold)),
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

  // Marks the boxes of a register from `i` on that one of the kept ones overlaps. Most kept boxes
  // are clear of all of them, which a product shows; only the others need MXNet's quotient. (With
  // one for every pair, and AVX-512, BoxNMS took 1.0 to 1.2 times as long, in float64 1.2 to 1.5.)
  template <class Simd>
  ALWAYS_INLINE void test(Simd, int64_t i, int64_t first, int64_t last) {
    using Values = Lanes<A, Simd>;
    using Register = typename Values::Register;
    using Stored = typename Values::Stored;
    const RankedBox<Register> tested = boxes_.template load<Simd>(i);
    const Register one = Values::all(1).registers[0];
    const Register threshold = Values::all(threshold_).registers[0];
    const Register clear = Values::all(clear_).registers[0];
    const auto meet = [&](int64_t n, Register* common, Register* joined) INLINE_LAMBDA {
      const RankedBox<A>& box = kept_[n];
      const RankedBox<Register> other = {
          Values::all(box.x1).registers[0], Values::all(box.y1).registers[0],
          Values::all(box.x2).registers[0], Values::all(box.y2).registers[0],
          Values::all(box.area).registers[0]};
      intersect<kToLast>(tested, other, one, common, joined);
    };
    Register common, joined;
    for (; first < last; first += kAtATime) {
      const int64_t end = std::min(last, first + kAtATime);
      Register close{};
      for (int64_t n = first; n < end; ++n) {
        meet(n, &common, &joined);
        close = common < clear * joined ? close : one;
      }
      if (all_zero(close)) continue;
      Register over = *reinterpret_cast<const Stored*>(over_.data() + i);
      for (int64_t n = first; n < end; ++n) {
        meet(n, &common, &joined);
        over = common / joined > threshold ? one : over;
      }
      *reinterpret_cast<Stored*>(over_.data() + i) = over;
      if (all_zero(one - over)) return;
    }
  }
  template <class Register>
  ALWAYS_INLINE static bool all_zero(const Register& lanes) {
    constexpr size_t kWords = sizeof(Register) / sizeof(uint64_t);
    uint64_t words[kWords], bits = 0;
    std::memcpy(words, &lanes, sizeof(Register));
    for (const uint64_t word : words) bits |= word;
    return bits == 0;
  }
  // Kept boxes that are tested at a time.
  static constexpr int64_t kAtATime = 8;

  const BoxColumns<A>& boxes_;
  const A threshold_, clear_;
  std::vector<A> over_;  // 1 if a box is suppressed, else 0; the boxes of padding do not matter
  std::vector<RankedBox<A>> kept_;
};

}  // namespace gluon_roi::cpu
