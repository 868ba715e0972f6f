// SPDX-License-Identifier: Apache-2.0
// Tables that a call computes on the device before its main kernel: decoded RoIs, their bins or
// taps, and the RoIs of each image.
#pragma once
#include <algorithm>

#include "../core/geometry/bins.h"
#include "../core/geometry/precise.h"
#include "../core/geometry/pyramid.h"
#include "../core/geometry/roi_decode.h"
#include "../core/geometry/samples.h"
#include "workspace.h"

namespace gluon_roi::cuda {

// The state, map and image of a row of rois, and the cells [begin, end) that its bins read.
struct RoiExtent {
  RoiState state;
  int32_t map, image;  // valid if state is kValid, otherwise 0
  int32_t y_begin, y_end, x_begin, x_end;
};

// Base class of all tables. For an operator with offsets for each class, a row is a pair of a RoI
// and a class, and an image is a pair of an image and a class.
struct RoiTable {
  RoiRows rows;
  int64_t classes;                      // 1 for most operators
  int32_t pooled_height, pooled_width;  // P, Q
  int32_t maps;
  int32_t heights[GLUON_ROI_MAX_MAPS], widths[GLUON_ROI_MAX_MAPS];  // cells of each map
  int32_t height, width;                                            // the largest height and width
  RoiExtent* extents;                                               // K * classes

  RoiTable(WorkspaceArena* arena, const RoiArrays& in, int32_t bin_rows, int32_t bin_columns,
           int32_t bad_index, int64_t classes_of_pairs);
  template <class Params>
  RoiTable(WorkspaceArena* arena, const Params& p, const RoiArrays& in,
           int64_t classes_of_pairs = 1)
      : RoiTable(arena, in, p.pooled_height, p.pooled_width, p.bad_index, classes_of_pairs) {}

  int64_t all_pairs() const { return rows.count * classes; }
  int64_t all_images() const { return rows.images * classes; }  // of each map
};

// The cells [begin, end) of each bin of each RoI along both axes.
struct BinTable : RoiTable {
  int32_t* edges;  // K * 2 * (P + Q): two edges per bin, rows first

  template <class Params>
  BinTable(WorkspaceArena* arena, const Params& p, const RoiArrays& in)
      : RoiTable(arena, p, in),
        edges(arena->take<int32_t>(rows.count * 2 * (pooled_height + pooled_width))) {}

  void build(const Gpu& gpu, BinRule rule, double spatial_scale) const;

  HOST_DEVICE int32_t* row_edges(int64_t k) const {
    return edges + k * 2 * (static_cast<int64_t>(pooled_height) + pooled_width);
  }
  HOST_DEVICE int32_t* column_edges(int64_t k) const { return row_edges(k) + 2 * pooled_height; }
};

// An integer as wide as G, so that the structs below have no padding, which would be uninitialised
// memory.
template <class G>
using CellIndex = std::conditional_t<sizeof(G) == 8, int64_t, int32_t>;

// A cell that a bin reads, its weight, and the derivatives of the weight with respect to the box's
// lower and upper coordinate. Samples of a bin that share a cell are merged.
template <class G>
struct GradientTap {
  CellIndex<G> cell;
  G weight, d_lo, d_hi;

  HOST_DEVICE GradientTap mean(G samples) const {
    return {cell, weight / samples, d_lo / samples, d_hi / samples};
  }
  HOST_DEVICE bool is_zero() const { return weight == 0 && d_lo == 0 && d_hi == 0; }
};
// The same without derivatives.
template <class G>
struct Tap {
  CellIndex<G> cell;
  G weight;

  Tap() = default;
  HOST_DEVICE explicit Tap(const GradientTap<G>& tap) : cell(tap.cell), weight(tap.weight) {}
  HOST_DEVICE bool is_zero() const { return weight == 0; }
};
// A tap in the list of a cell.
template <class G>
struct BinTap {
  CellIndex<G> bin;
  G weight;
};

// The first of the taps [begin, end) of a bin whose cell is >= `cell`.
template <class AnyTap>
DEVICE_INLINE int32_t lower_bound(const AnyTap* taps, int32_t begin, int32_t end, int32_t cell) {
  while (begin < end) {
    const int32_t middle = begin + (end - begin) / 2;
    if (taps[middle].cell < cell) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The taps of a RoI along both axes: bin (or cell) i has the taps [begin[i], begin[i + 1]).
template <class AnyTap>
struct TapView {
  int32_t *y_begin, *x_begin;
  AnyTap *y_taps, *x_taps;
};

// Ay and Ax of each RoI as sparse matrices: the taps of each bin sorted by cell, and optionally the
// taps of each cell sorted by bin. A cell without weight has no tap, so a NaN in it does not
// spread. A rule (SampleRule, PreciseRule) gives the weights of a bin on a map of the rule's scale;
// a pyramid gives the map and the scale of a RoI.
template <class G, class AnyTap>
struct TapTable : RoiTable {
  Pyramid pyramid;
  int64_t max_taps_y, max_taps_x;  // capacity of the tables, per RoI and axis
  int32_t* begin;        // K * (P + 1 + Q + 1): bin q has the taps [begin[q], begin[q + 1])
  AnyTap* taps;          // K * (max_taps_y + max_taps_x)
  int32_t* cell_begin;   // K * (H + 1 + W + 1), set for the cells of the RoI's extent; or nullptr
  BinTap<G>* cell_taps;  // K * (max_taps_y + max_taps_x), or nullptr

  template <class Params, class Rule>
  TapTable(WorkspaceArena* arena, const Params& p, const RoiArrays& in, const Pyramid& maps_of_rois,
           const Rule& rule, bool with_cells)
      : RoiTable(arena, p, in),
        pyramid(maps_of_rois),
        max_taps_y(max_taps(pooled_height, height, rule.max_cells(height))),
        max_taps_x(max_taps(pooled_width, width, rule.max_cells(width))),
        begin(arena->take<int32_t>(rows.count *
                                   (static_cast<int64_t>(pooled_height) + pooled_width + 2))),
        taps(arena->take<AnyTap>(rows.count * (max_taps_y + max_taps_x))),
        cell_begin(nullptr),
        cell_taps(nullptr) {
    if (!with_cells) return;
    cell_begin = arena->take<int32_t>(rows.count * (static_cast<int64_t>(height) + width + 2));
    cell_taps = arena->take<BinTap<G>>(rows.count * (max_taps_y + max_taps_x));
  }

  template <class Rule>
  void build(const Gpu& gpu, const Rule& rule) const;

  // The taps of a RoI, by bin and by cell.
  HOST_DEVICE TapView<AnyTap> by_bins(int64_t k) const {
    int32_t* const rows_begin = begin + k * (int64_t{pooled_height} + pooled_width + 2);
    AnyTap* const row_taps = taps + k * (max_taps_y + max_taps_x);
    return {rows_begin, rows_begin + pooled_height + 1, row_taps, row_taps + max_taps_y};
  }
  HOST_DEVICE TapView<BinTap<G>> by_cells(int64_t k) const {
    int32_t* const rows_begin = cell_begin + k * (int64_t{height} + width + 2);
    BinTap<G>* const row_taps = cell_taps + k * (max_taps_y + max_taps_x);
    return {rows_begin, rows_begin + height + 1, row_taps, row_taps + max_taps_y};
  }

 private:
  // The bins of a RoI are adjacent and share at most one cell at each end. For very large
  // coordinates rounding makes neighbouring bins overlap, but every second bin is still disjoint
  // from the others, so 2 * size is enough. This holds for axes of up to 2^20 cells; beyond, every
  // bin gets max_cells taps.
  static int64_t max_taps(int64_t axis_bins, int64_t size, int64_t max_cells) {
    const int64_t taps = size <= (1 << 20)
                             ? std::min(axis_bins * max_cells, 2 * size + 4 * axis_bins)
                             : axis_bins * max_cells;
    return std::min<int64_t>(taps, std::numeric_limits<int32_t>::max());
  }
};

// The valid rows of each image of each map, in ascending order.
struct RoiLists {
  int32_t* begin;  // maps * images + 1 offsets into `order`, map by map
  int32_t* order;  // row numbers

  RoiLists(WorkspaceArena* arena, const RoiTable& tables)
      : begin(arena->take<int32_t>(tables.all_images() * tables.maps + 1)),
        order(arena->take<int32_t>(tables.all_pairs())) {}

  void build(const Gpu& gpu, const RoiTable& tables) const;
  // The lists of one map.
  RoiLists of_map(const RoiTable& tables, int32_t map) const {
    RoiLists lists = *this;
    lists.begin += map * tables.all_images();
    return lists;
  }
};

}  // namespace gluon_roi::cuda
