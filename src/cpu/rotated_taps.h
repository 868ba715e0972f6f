// SPDX-License-Identifier: Apache-2.0
// The taps of rotated boxes. The weights of a rotated box do not factor per axis, so a tap is a
// cell of the map with the sum of its weights over the samples of one bin.
//
// The cost is that of the samples on the map and of the cells that they read, whatever the size of
// the map. Taps are in the order in which the samples reach their cells.
//
// Example: a bin with two samples on row 0, at x = 1.25 and x = 2, has two taps: cell 1 with the
// weight 0.75 / 2, and cell 2 with (0.25 + 1) / 2.
#pragma once
#include <limits>
#include <type_traits>

#include "../core/geometry/rotated.h"
#include "memory.h"

namespace gluon_roi::cpu {

template <class G>
struct WeightTap {
  int64_t cell;
  G weight;
};

// The derivatives of a tap's weight with respect to the coordinates of the box.
template <class G>
struct TapSlopes {
  G of[kRotatedCoordinates];
};

// An estimate of the taps of a RoI, rarely too low: four cells per sample, but not more than the
// cells of the box and the overlap of its bins.
template <class G>
int64_t estimated_taps(const RotatedRule& rule, const SampledBox<G>& box) {
  const double bins = static_cast<double>(rule.bins());
  const double cells = static_cast<double>(box.cells().count());
  return static_cast<int64_t>(std::min(4 * box.divisor() * bins, 2 * cells + 4 * bins));
}

// A number for each cell of a rectangle of the map. The caller sets all numbers back to 0 before
// move().
template <class N>
class CellWindow {
 public:
  void move(const CellRect& rect, int64_t map_width) {
    y0_ = rect.y0, x0_ = rect.x0, map_width_ = map_width;
    for (row_bits_ = 0; (int64_t{1} << row_bits_) < rect.x1 - rect.x0; ++row_bits_) {
    }
    const size_t size = static_cast<size_t>(rect.y1 - rect.y0) << row_bits_;
    if (size > numbers_.size()) numbers_.resize(size);
  }
  size_t size() const { return numbers_.size(); }
  ALWAYS_INLINE N* numbers() { return numbers_.data(); }
  // The index of a cell in numbers(), and the cell with an index.
  ALWAYS_INLINE int64_t index(int64_t row, int64_t column) const {
    return ((row - y0_) << row_bits_) + column - x0_;
  }
  ALWAYS_INLINE int64_t cell(int64_t index) const {
    const int64_t row = index >> row_bits_, column = index & ((int64_t{1} << row_bits_) - 1);
    return (y0_ + row) * map_width_ + x0_ + column;
  }

 private:
  Vector<N> numbers_;
  int64_t y0_ = 0, x0_ = 0, map_width_ = 0;
  int row_bits_ = 0;  // rows lie 2^row_bits_ numbers apart
};

// The samples along one side of a box that may lie on the map, bin by bin.
template <class G>
class SideSamples {
 public:
  struct List {
    const SideOffset<G>*begin, *end;
    OffsetBounds<G> bounds;
    bool empty() const { return begin == end; }
  };

  // range(bin, &first, &last) gives the samples of a bin, and offset(bin, i) the offset of one.
  template <class Range, class Offset>
  void make(int bins, const Range& range, const Offset& offset) {
    offsets_.clear();
    ends_.assign(1, 0);
    bounds_.clear();
    for (int bin = 0; bin < bins; ++bin) {
      int64_t first, last;
      range(bin, &first, &last);
      for (int64_t i = first; i <= last; ++i) offsets_.push_back(offset(bin, i));
      ends_.push_back(offsets_.size());
      bounds_.push_back(bounds_of(ends_[bin], ends_[bin + 1]));
    }
  }
  List of_bin(int bin) const {
    return {offsets_.data() + ends_[bin], offsets_.data() + ends_[bin + 1], bounds_[bin]};
  }
  List all() const {
    return {offsets_.data(), offsets_.data() + offsets_.size(), bounds_of(0, offsets_.size())};
  }

 private:
  Vector<SideOffset<G>> offsets_;
  Vector<size_t> ends_;  // 0, and the end of each bin
  Vector<OffsetBounds<G>> bounds_;

  OffsetBounds<G> bounds_of(size_t begin, size_t end) const {
    constexpr G kInfinity = std::numeric_limits<G>::infinity();
    OffsetBounds<G> bounds{kInfinity, -kInfinity, kInfinity, -kInfinity};
    for (size_t i = begin; i < end; ++i) {
      bounds.x_low = std::min(bounds.x_low, offsets_[i].x);
      bounds.x_high = std::max(bounds.x_high, offsets_[i].x);
      bounds.y_low = std::min(bounds.y_low, offsets_[i].y);
      bounds.y_high = std::max(bounds.y_high, offsets_[i].y);
    }
    return bounds;
  }
};

// The samples along both sides of a box.
template <class G>
struct BoxSamples {
  SideSamples<G> u, v;

  void make(const RotatedRule& rule, const SampledBox<G>& box) {
    const auto frame = box.map_frame();
    u.make(
        rule.pooled_width,
        [&](int q, int64_t* first, int64_t* last) { box.u_range(frame, q, first, last); },
        [&](int q, int64_t i) { return box.u_offset(q, i); });
    v.make(
        rule.pooled_height,
        [&](int p, int64_t* first, int64_t* last) { box.v_range(frame, p, first, last); },
        [&](int p, int64_t j) { return box.v_offset(p, j); });
  }
};

// The taps of the bins of a box, one bin after the other.
template <class G>
class BinTaps {
 public:
  // Starts with a box. Returns the part of the map with all cells that it reads.
  CellRect begin(const RotatedRule& rule, const SampledBox<G>& box) {
    constexpr int64_t kMaxWindow = 1 << 14;  // cells, 64 KB in float32
    samples_.make(rule, box);
    box_ = box;
    share_ = static_cast<G>(1) / box.divisor();
    are_apart_ = box.samples_share_no_cells();
    const CellRect all = box.cells_within(samples_.u.all().bounds, samples_.v.all().bounds);
    moves_ = all.count() > kMaxWindow;
    if (!moves_) move_window(all);
    return all;
  }
  int64_t max_taps(int p, int q) const {
    const List u = samples_.u.of_bin(q), v = samples_.v.of_bin(p);
    return 4 * (u.end - u.begin) * (v.end - v.begin);
  }
  // Calls emit(tap) for the taps of bin (p, q).
  template <class Emit>
  ALWAYS_INLINE void for_each(int p, int q, const Emit& emit) {
    const List u = samples_.u.of_bin(q), v = samples_.v.of_bin(p);
    if (are_apart_) {
      const int64_t width = box_.width;
      for_each_part(
          u, v, [&](int64_t row, int64_t column) INLINE_LAMBDA { return row * width + column; },
          [&](int64_t cell, G part) INLINE_LAMBDA { emit(WeightTap<G>{cell, part}); });
      return;
    }
    if (moves_) move_window(box_.cells_within(u.bounds, v.bounds));
    const int64_t count = sum_parts(u, v);
    for (int64_t i = 0; i < count; ++i) {
      G& sum = window_.numbers()[order_[i]];
      emit(WeightTap<G>{window_.cell(order_[i]), sum});
      sum = 0;
    }
  }

 private:
  using List = typename SideSamples<G>::List;
  BoxSamples<G> samples_;
  SampledBox<G> box_;
  G share_;         // of a sample in the mean over a bin
  bool are_apart_;  // whether no two samples of a bin read the same cell, so that nothing is summed
  CellWindow<G> window_;   // the sums of weights
  bool moves_;             // whether the window has the cells of one bin, not of the box
  Vector<int64_t> order_;  // indices in the window, in the order of the taps

  void move_window(const CellRect& rect) {
    window_.move(rect, box_.width);
    // One more, because sum_parts() writes to the place behind the last.
    if (order_.size() <= window_.size()) order_.resize(window_.size() + 1);
  }
  // Calls add(index, part) for what each sample adds to the weights of its cells, if it is above 0.
  // index(row, column) numbers the cells; those of a row have consecutive numbers.
  template <class Index, class Add>
  ALWAYS_INLINE void for_each_part(const List& u_list, const List& v_list, const Index& index,
                                   const Add& add) const {
    const SampledBox<G> box = box_;
    const G share = share_;
    for (const SideOffset<G>* v = v_list.begin; v != v_list.end; ++v) {
      for (const SideOffset<G>* u = u_list.begin; u != u_list.end; ++u) {
        const RotatedSample<G> s = box.sample(*u, *v);
        if (!s.x.inside || !s.y.inside) continue;
        const int64_t low = index(s.y.low, s.x.low), high = index(s.y.high, s.x.low);
        const int64_t step = s.x.high - s.x.low;
        const G part0 = s.weight(0) * share, part1 = s.weight(1) * share;
        const G part2 = s.weight(2) * share, part3 = s.weight(3) * share;
        // Nearly always all are above 0, which takes one branch instead of four.
        if (std::min(std::min(part0, part1), std::min(part2, part3)) > 0) {
          add(low, part0);
          add(low + step, part1);
          add(high, part2);
          add(high + step, part3);
        } else {
          if (part0 > 0) add(low, part0);
          if (part1 > 0) add(low + step, part1);
          if (part2 > 0) add(high, part2);
          if (part3 > 0) add(high + step, part3);
        }
      }
    }
  }
  // Sums the weights of a bin in the window, and returns the number of its cells.
  int64_t sum_parts(const List& u, const List& v) {
    using Bits = std::conditional_t<sizeof(G) == 8, uint64_t, uint32_t>;
    const CellWindow<G>& window = window_;
    G* const sums = window_.numbers();
    int64_t* const order = order_.data();
    int64_t count = 0;
    for_each_part(
        u, v, [&](int64_t row, int64_t column) INLINE_LAMBDA { return window.index(row, column); },
        [&](int64_t index, G part) INLINE_LAMBDA {
          // No branch, because whether a cell is new is hard to predict. Sums are never -0 or NaN,
          // so their bits can be compared, which takes fewer instructions than comparing numbers.
          order[count] = index;
          count += bit_cast<Bits>(sums[index]) == 0;
          sums[index] += part;
        });
    return count;
  }
};

// The taps of several RoIs.
template <class G>
class RoiTaps {
 public:
  void clear() {
    size_ = 0;
    ends_.clear();
  }
  void reserve(int64_t count) { taps_.reserve(static_cast<size_t>(count)); }
  // Adds the taps of a RoI. Returns the part of the map with all cells that it reads.
  CellRect add(const RotatedRule& rule, const SampledBox<G>& box) {
    const CellRect cells = bin_taps_.begin(rule, box);
    ends_.push_back(size_);
    for (int p = 0; p < rule.pooled_height; ++p) {
      for (int q = 0; q < rule.pooled_width; ++q) {
        const size_t max_size = static_cast<size_t>(size_ + bin_taps_.max_taps(p, q));
        if (max_size > taps_.size()) taps_.resize(max_size);
        WeightTap<G>* next = taps_.data() + size_;
        bin_taps_.for_each(p, q, [&](const WeightTap<G>& tap) INLINE_LAMBDA { *next++ = tap; });
        size_ = next - taps_.data();
        ends_.push_back(size_);
      }
    }
    return cells;
  }
  const WeightTap<G>* taps() const { return taps_.data(); }
  // For each RoI 1 + bins offsets into taps(), where its bins begin and end.
  const int64_t* ends() const { return ends_.data(); }

 private:
  BinTaps<G> bin_taps_;
  Vector<WeightTap<G>> taps_;  // of which the first size_ are in use
  int64_t size_ = 0;
  Vector<int64_t> ends_;
};

// The taps of one RoI with derivatives, for the gradient of its box.
template <class G>
struct SlopeTaps {
  Vector<int64_t> cells;  // apart from the slopes, because they are read again for each channel
  Vector<TapSlopes<G>> slopes;
  Vector<int64_t> ends;  // of each bin

  SlopeTaps(const RotatedRule& rule, const SampledBox<G>& box) {
    BoxSamples<G> samples;
    samples.make(rule, box);
    cells.reserve(static_cast<size_t>(estimated_taps(rule, box)));
    slopes.reserve(cells.capacity());
    CellWindow<int64_t> numbers;  // of the taps of a bin, from 1 on
    Vector<int64_t> reached;      // indices in the window
    for (int p = 0; p < rule.pooled_height; ++p) {
      for (int q = 0; q < rule.pooled_width; ++q) {
        numbers.move(box.cells_within(samples.u.of_bin(q).bounds, samples.v.of_bin(p).bounds),
                     box.width);
        box.for_each_gradient(p, q, [&](int32_t row, int32_t column, const G* added) {
          const int64_t index = numbers.index(row, column);
          int64_t& number = numbers.numbers()[index];
          if (number == 0) {
            reached.push_back(index);
            cells.push_back(numbers.cell(index));
            slopes.emplace_back();
            number = static_cast<int64_t>(cells.size());
          }
          TapSlopes<G>& tap = slopes[number - 1];
          for (int i = 0; i < kRotatedCoordinates; ++i) tap.of[i] += added[i];
        });
        for (const int64_t index : reached) numbers.numbers()[index] = 0;
        reached.clear();
        ends.push_back(static_cast<int64_t>(cells.size()));
      }
    }
  }
};

}  // namespace gluon_roi::cpu
