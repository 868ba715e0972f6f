// The taps of every RoI, for the operators whose bins are out = Ay . X . Ax^T: one axis of it.
#pragma once
#include <limits>
#include <vector>

#include "coverage.h"
#include "rois.h"
#include "threads.h"

namespace gluon_roi::cpu {

// One axis of out = Ay . X . Ax^T: the cells that a bin reads, with their weights. The samples of a
// bin that fall between the same cells are merged, so a bin has at most as many taps as the map has
// cells, however large the box or the sampling ratio.
template <class G>
struct Tap {
  int32_t cell;
  int32_t bin;
  G weight;
};

// The same for gradients of the RoI: d weight / d lower and upper coordinate, per image pixel.
template <class G>
struct GradientTap {
  int32_t cell;
  G weight, d_lo, d_hi;
};

// The taps of bin q, appended to taps. What an axis emits moves along it in one direction, so an
// equal cell stands among the last three.
template <class Axis, class T, class Add>
void append_taps(const Axis& axis, int q, std::vector<T>* taps, const Add& add) {
  const size_t begin = taps->size();
  axis.for_each_weight(q, [&](int32_t cell, auto weight, auto d_lo, auto d_hi) {
    size_t at = taps->size();
    const size_t stop = at - begin > 3 ? at - 3 : begin;
    while (at > stop && (*taps)[at - 1].cell != cell) --at;
    if (at == stop) {
      taps->push_back(T{});
      at = taps->size();
      taps->back().cell = cell;
    }
    add(&(*taps)[at - 1], weight, d_lo, d_hi);
  });
}

// Both axes of every RoI. A rule (SampleRule, PreciseRule) says what a bin weighs.
template <class G>
struct TapTable {
  struct Range {
    int64_t begin, end;
  };
  int rows, columns;
  std::vector<Tap<G>> taps;
  std::vector<Range> ranges;  // K * (rows + columns): the taps of each bin, rows first
  Coverage coverage;
  std::vector<int32_t> cells;  // the rows that RoIs read, if list_rows() was called
  std::vector<Range> lists;    // K: each RoI's part of it

  template <class Rule>
  TapTable(int pooled_height, int pooled_width, const Rule& rule, const RoiTable<G>& table,
           const Tensor& data)
      : rows(pooled_height), columns(pooled_width), coverage(data) {
    const int bins = rows + columns;
    ranges.resize(table.rois.size() * bins);
    // Parts of the RoIs at the same time, then one part behind the other. With 2000 RoIs the taps
    // take a tenth of PSROIAlign's time, in which the other threads had nothing to do.
    const int64_t count = static_cast<int64_t>(table.order.size());
    const int64_t parts = std::min<int64_t>((count + 31) / 32, 16);
    const auto for_each_roi = [&](int64_t part, const auto& body) {
      for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
        body(table.rois[table.order[i]], ranges.data() + table.order[i] * bins);
      }
    };
    std::vector<std::vector<Tap<G>>> taps_of(static_cast<size_t>(parts));
    parallel_for(parts, count * bins * kElementsPerBin, [&](int64_t part) {
      taps_of[part].reserve(static_cast<size_t>((count / parts + 1) * bins * 3));
      for_each_roi(part, [&](const Roi<G>& roi, Range* range) {
        add_axis(rule.axis(roi.y1(), roi.y2(), rows, static_cast<int32_t>(data.shape[2])), rows,
                 range, &taps_of[part]);
        add_axis(rule.axis(roi.x1(), roi.x2(), columns, static_cast<int32_t>(data.shape[3])),
                 columns, range + rows, &taps_of[part]);
      });
    });
    size_t total = 0;
    for (const auto& some : taps_of) total += some.size();
    taps.reserve(total);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t base = static_cast<int64_t>(taps.size());
      taps.insert(taps.end(), taps_of[part].begin(), taps_of[part].end());
      for_each_roi(part, [&](const Roi<G>& roi, Range* range) {
        for (int bin = 0; bin < bins; ++bin) {
          range[bin].begin += base;
          range[bin].end += base;
        }
        const Extent y = extent(range, rows), x = extent(range + rows, columns);
        coverage.add(roi.image, y.begin, y.end, x.begin, x.end, y.taps * x.taps);
      });
    }
    coverage.finish();
  }
  ALWAYS_INLINE const Range* row_ranges(int64_t k) const {
    return ranges.data() + k * (rows + columns);
  }
  ALWAYS_INLINE const Range* column_ranges(int64_t k) const { return row_ranges(k) + rows; }

  // Where tap t reads within a row of `lanes` channels.
  ALWAYS_INLINE int64_t offset(int64_t t, int lanes) const {
    return static_cast<int64_t>(taps[t].cell) * lanes;
  }
  template <class Values>
  ALWAYS_INLINE Values weighted(int64_t t, const Values& given) const {
    Values values = given;
    values *= Values::all(taps[t].weight);
    return values;
  }

  // Orders the taps of each axis of every RoI by cell instead of by bin, so that a row of the map,
  // and a cell in it, is visited once for all the bins that share it. The ranges of single bins are
  // lost.
  void sort_by_cell() {
    for (size_t at = 0; at < ranges.size(); at += rows + columns) {
      const Range* range = ranges.data() + at;
      sort_by_cell(range[0].begin, range[rows - 1].end);
      sort_by_cell(range[rows].begin, range[rows + columns - 1].end);
    }
  }
  // Lists the rows of the map that each RoI reads, in `cells`, and puts the place of a row in this
  // list into `bin` of its taps; those of each bin are ordered by cell.
  void list_rows() {
    lists.reserve(ranges.size() / (rows + columns));
    for (size_t at = 0; at < ranges.size(); at += rows + columns) {
      const Range* range = ranges.data() + at;
      const auto first = static_cast<int64_t>(cells.size());
      for (int64_t t = range[0].begin; t < range[rows - 1].end; ++t) cells.push_back(taps[t].cell);
      std::sort(cells.begin() + first, cells.end());
      cells.erase(std::unique(cells.begin() + first, cells.end()), cells.end());
      for (int bin = 0; bin < rows; ++bin) sort_by_cell(range[bin].begin, range[bin].end);
      for (int64_t t = range[0].begin; t < range[rows - 1].end; ++t) {
        const auto found = std::lower_bound(cells.begin() + first, cells.end(), taps[t].cell);
        taps[t].bin = static_cast<int32_t>(found - cells.begin() - first);
      }
      lists.push_back(Range{first, static_cast<int64_t>(cells.size())});
    }
  }
  // The end of the taps from `begin` on that share its cell.
  ALWAYS_INLINE int64_t same_cell(int64_t begin, int64_t end) const {
    int64_t i = begin + 1;
    while (i < end && taps[i].cell == taps[begin].cell) ++i;
    return i;
  }
  ALWAYS_INLINE Range all_rows(int64_t k) const {
    return Range{row_ranges(k)[0].begin, row_ranges(k)[rows - 1].end};
  }
  ALWAYS_INLINE Range all_columns(int64_t k) const {
    return Range{column_ranges(k)[0].begin, column_ranges(k)[columns - 1].end};
  }

 private:
  void sort_by_cell(int64_t begin, int64_t end) {
    std::stable_sort(taps.begin() + begin, taps.begin() + end,
                     [](const Tap<G>& a, const Tap<G>& b) { return a.cell < b.cell; });
  }

  // The taps of a bin take as long as this many elements touched by parallel_for's body.
  static constexpr int64_t kElementsPerBin = 200;

  struct Extent {
    int32_t begin, end;
    int64_t taps;
  };
  // From the first to the last cell that the taps of `bins` bins read, and how many these are. All
  // taps are looked at: where boxes are so wide that coordinates round to thousands of cells, the
  // outermost cell may belong to any of them.
  Extent extent(const Range* range, int bins) const {
    const int64_t begin = range[0].begin, end = range[bins - 1].end;
    Extent found{std::numeric_limits<int32_t>::max(), 0, end - begin};
    for (int64_t t = begin; t < end; ++t) {
      found.begin = std::min(found.begin, taps[t].cell);
      found.end = std::max(found.end, taps[t].cell + 1);
    }
    return found;
  }

  template <class Axis>
  static void add_axis(const Axis& axis, int bins, Range* range, std::vector<Tap<G>>* to) {
    std::vector<Tap<G>>& taps = *to;
    for (int q = 0; q < bins; ++q) {
      const size_t begin = taps.size();
      append_taps(axis, q, &taps, [](Tap<G>* tap, G weight, G, G) { tap->weight += weight; });
      // A cell of weight 0 is not read: its NaN must not leak.
      size_t end = begin;
      for (size_t i = begin; i < taps.size(); ++i) {
        if (taps[i].weight == 0) continue;
        taps[end] = taps[i];
        taps[end].bin = q;
        taps[end++].weight /= axis.divisor();
      }
      taps.resize(end);
      range[q] = Range{static_cast<int64_t>(begin), static_cast<int64_t>(end)};
    }
  }
};

}  // namespace gluon_roi::cpu
