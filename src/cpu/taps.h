// SPDX-License-Identifier: Apache-2.0
// The taps of each RoI, for the operators with out = Ay . X . Ax^T (DESIGN.md, "Taps").
#pragma once
#include <vector>

#include "coverage.h"
#include "memory.h"
#include "rois.h"
#include "threads.h"

namespace gluon_roi::cpu {

// A nonzero element of Ay or Ax: a cell along one axis, a bin, and the cell's weight in it. Samples
// of a bin between the same cells share their taps, so a bin has at most as many taps as the map
// has cells, however large the box or the sampling ratio.
template <class G>
struct Tap {
  int32_t cell;
  int32_t bin;
  G weight;

  // The offset of the cell in a row of a block with `lanes` channels.
  ALWAYS_INLINE int64_t offset(int lanes) const { return int64_t{cell} * lanes; }
};

// A tap of Ay for the forward pass. `row` is an index into the rows that list_rows() lists for the
// RoI.
template <class G>
struct RowTap {
  int32_t row;
  G weight;
};

// A tap with the derivatives of its weight with respect to the box's lower and upper coordinate,
// per image pixel.
template <class G>
struct GradientTap {
  int32_t cell;
  G weight, d_lo, d_hi;
};

// The end of the run of taps at `begin` that have the same cell.
template <class G>
ALWAYS_INLINE int32_t end_of_cell(const Tap<G>* taps, int32_t begin, int32_t end) {
  int32_t i = begin + 1;
  while (i < end && taps[i].cell == taps[begin].cell) ++i;
  return i;
}

// The tap of a cell in the list of a bin, which begins at `begin`; a new one if there is none. Each
// sample emits its lower cell, then its upper one, and samples follow the axis in one direction.
// Where positions fall, cells 5 and 6 are followed by 4 and 5: the tap of a cell is among the last
// three.
template <class T>
T* tap_of(int32_t cell, size_t begin, Vector<T>* taps) {
  size_t found = taps->size();
  const size_t stop = found - begin > 3 ? found - 3 : begin;
  while (found > stop && (*taps)[found - 1].cell != cell) --found;
  if (found > stop) return &(*taps)[found - 1];
  taps->push_back(T{});
  taps->back().cell = cell;
  return &taps->back();
}

// Appends the taps of bin q, one for each cell.
template <class Axis, class T, class Add>
void append_taps(const Axis& axis, int q, Vector<T>* taps, const Add& add) {
  const size_t begin = taps->size();
  axis.for_each_weight(q, [&](int32_t cell, auto weight, auto d_lo, auto d_hi) {
    add(tap_of(cell, begin, taps), weight, d_lo, d_hi);
  });
}

// The taps of both axes for each RoI of a chunk, indexed in the table's order.
template <class G>
struct TapTable {
  struct Range {
    int32_t begin, end;
    int64_t count() const { return end - begin; }
  };
  struct RowList {
    int64_t begin, end;  // its rows in `map_rows`
    int64_t taps;        // its first RowTap
  };
  int pooled_height, pooled_width;
  Chunk chunk{0, 0};
  Coverage coverage;
  Vector<int32_t> map_rows;  // that each RoI reads, set by list_rows()

  TapTable(TapTable&&) = default;  // not copyable: pointers would point into the original
  TapTable(int bin_rows, int bin_columns, const Tensor& data)
      : pooled_height(bin_rows), pooled_width(bin_columns), data_(data) {}

  // Makes the taps of a chunk, reusing the memory of the previous chunk. A rule (SampleRule,
  // PreciseRule) gives the weights.
  template <class Rule>
  void make(const Rule& rule, const RoiTable<G>& table, const Chunk& rois) {
    const int ranges_per_roi = pooled_height + pooled_width;
    chunk = rois;
    coverage = Coverage(data_);
    map_rows.clear();
    row_lists_.clear();
    row_taps_.clear();
    const int64_t count = chunk.count(), shares = chunk.shares();
    ranges_.resize(static_cast<size_t>(count * ranges_per_roi));
    first_.resize(static_cast<size_t>(count));
    // In parallel, because making the taps of 2000 RoIs is a tenth of PSROIAlign's time.
    taps_.resize(std::max(taps_.size(), static_cast<size_t>(shares)));
    parallel_for(shares, count * ranges_per_roi * kElementsPerBin, [&](int64_t number) {
      Vector<Tap<G>>& taps = taps_[number];
      taps.clear();
      taps.reserve(static_cast<size_t>((count / shares + 1) * ranges_per_roi * 3));
      const Chunk share = chunk.share(number);
      for (int64_t i = share.begin; i < share.end; ++i) {
        const Roi<G>& roi = table.rois[table.order[i]];
        const size_t first = taps.size();
        Range* range = ranges_.data() + (i - chunk.begin) * ranges_per_roi;
        add_axis(rule.axis(roi.y1(), roi.y2(), pooled_height, static_cast<int32_t>(data_.shape[2])),
                 pooled_height, first, range, &taps);
        add_axis(rule.axis(roi.x1(), roi.x2(), pooled_width, static_cast<int32_t>(data_.shape[3])),
                 pooled_width, first, range + pooled_height, &taps);
      }
    });
    for (int64_t number = 0; number < shares; ++number) {
      Tap<G>* first = taps_[number].data();
      const Chunk share = chunk.share(number);
      for (int64_t i = share.begin; i < share.end; ++i) {
        first_[i - chunk.begin] = first;
        first += all_columns(i).end;
        coverage.add(table.rois[table.order[i]].image, cells_of(i, all_rows(i)),
                     cells_of(i, all_columns(i)), all_rows(i).count() * all_columns(i).count());
      }
    }
    coverage.finish();
  }
  // The approximate number of bytes for one RoI.
  int64_t bytes() const {
    return (pooled_height + int64_t{pooled_width}) * 4 * int64_t{sizeof(Tap<G>)};
  }

  // The taps of a RoI: first those of the rows, then those of the columns.
  ALWAYS_INLINE const Tap<G>* taps(int64_t i) const { return first_[i - chunk.begin]; }
  // The range of taps of each row and column of bins.
  ALWAYS_INLINE const Range* row_ranges(int64_t i) const {
    return ranges_.data() + (i - chunk.begin) * (pooled_height + pooled_width);
  }
  ALWAYS_INLINE const Range* column_ranges(int64_t i) const {
    return row_ranges(i) + pooled_height;
  }
  // The map rows that a RoI reads, and its taps of Ay; valid after list_rows().
  ALWAYS_INLINE const RowList& row_list(int64_t i) const { return row_lists_[i - chunk.begin]; }
  ALWAYS_INLINE const RowTap<G>* row_taps(int64_t i) const {
    return row_taps_.data() + row_list(i).taps;
  }
  // One past the last map row of a list.
  ALWAYS_INLINE int64_t end_of(const RowList& list) const {
    return list.begin < list.end ? map_rows[list.end - 1] + 1 : 0;
  }

  ALWAYS_INLINE Range all_rows(int64_t i) const {
    return Range{row_ranges(i)[0].begin, row_ranges(i)[pooled_height - 1].end};
  }
  ALWAYS_INLINE Range all_columns(int64_t i) const {
    return Range{column_ranges(i)[0].begin, column_ranges(i)[pooled_width - 1].end};
  }

  // Sorts the taps of each axis of each RoI by cell instead of by bin, so that a row of the map,
  // and a cell in it, is visited once for all bins that read it. The ranges of single bins become
  // invalid.
  void sort_by_cell() {
    for (int64_t i = chunk.begin; i < chunk.end; ++i) {
      sort_by_cell(i, all_rows(i));
      sort_by_cell(i, all_columns(i));
    }
  }
  // Lists the map rows that each RoI reads in `map_rows`, and makes its row_taps(), sorted by bin
  // and then by cell.
  void list_rows() {
    row_lists_.reserve(first_.size());
    for (int64_t i = chunk.begin; i < chunk.end; ++i) {
      const Range all = all_rows(i);
      Tap<G>* const taps = first_[i - chunk.begin];
      const auto first = static_cast<int64_t>(map_rows.size());
      for (int32_t t = all.begin; t < all.end; ++t) map_rows.push_back(taps[t].cell);
      std::sort(map_rows.begin() + first, map_rows.end());
      map_rows.erase(std::unique(map_rows.begin() + first, map_rows.end()), map_rows.end());
      row_lists_.push_back(RowList{first, static_cast<int64_t>(map_rows.size()),
                                   static_cast<int64_t>(row_taps_.size())});
      for (int bin = 0; bin < pooled_height; ++bin) sort_by_cell(i, row_ranges(i)[bin]);
      for (int32_t t = all.begin; t < all.end; ++t) {
        const auto found = std::lower_bound(map_rows.begin() + first, map_rows.end(), taps[t].cell);
        row_taps_.push_back(
            {static_cast<int32_t>(found - map_rows.begin() - first), taps[t].weight});
      }
    }
  }

 private:
  Tensor data_;
  Vector<Vector<Tap<G>>> taps_;  // for each share of the RoIs
  Vector<Tap<G>*> first_;        // of each RoI
  Vector<Range> ranges_;         // for each RoI: rows of bins, then columns
  Vector<RowList> row_lists_;    // of each RoI
  Vector<RowTap<G>> row_taps_;

  void sort_by_cell(int64_t i, const Range& range) {
    Tap<G>* const taps = first_[i - chunk.begin];
    std::stable_sort(taps + range.begin, taps + range.end,
                     [](const Tap<G>& a, const Tap<G>& b) { return a.cell < b.cell; });
  }

  // The cost of making a bin's taps, in the unit of parallel_for's `work`.
  static constexpr int64_t kElementsPerBin = 200;

  // The range from the first to the last cell that the taps of an axis read. All taps are examined,
  // because the outermost cell may belong to any of them if a box is so wide that its coordinates
  // are rounded to thousands of cells.
  Run cells_of(int64_t i, const Range& axis) const {
    Run found;
    for (int32_t t = axis.begin; t < axis.end; ++t) found.include(taps(i)[t].cell);
    return found;
  }

  template <class Axis>
  static void add_axis(const Axis& axis, int axis_bins, size_t first, Range* range,
                       Vector<Tap<G>>* to) {
    Vector<Tap<G>>& taps = *to;
    for (int q = 0; q < axis_bins; ++q) {
      const size_t begin = taps.size();
      append_taps(axis, q, &taps, [](Tap<G>* tap, G weight, G, G) { tap->weight += weight; });
      // A cell of weight 0 is not read, so a NaN in it does not spread.
      size_t end = begin;
      for (size_t i = begin; i < taps.size(); ++i) {
        if (taps[i].weight == 0) continue;
        taps[end] = taps[i];
        taps[end].bin = q;
        taps[end++].weight /= axis.divisor();
      }
      taps.resize(end);
      range[q] = Range{static_cast<int32_t>(begin - first), static_cast<int32_t>(end - first)};
    }
  }
};

}  // namespace gluon_roi::cpu
