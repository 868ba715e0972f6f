// SPDX-License-Identifier: Apache-2.0
// Tables that a call prepares on the device before its main kernel: decoded RoIs, their bins or
// taps, and the RoIs of each image.
#pragma once
#include <algorithm>

#include "../core/geometry/bins.h"
#include "../core/geometry/precise.h"
#include "../core/geometry/pyramid.h"
#include "../core/geometry/rows.h"
#include "../core/geometry/samples.h"
#include "workspace.h"

namespace gluon_roi::cuda {

// Row k of rois, decoded, and the cells [begin, end) of its map that its bins read.
struct RoiHead {
  RoiState state;
  int32_t map, image;  // if state is kValid, otherwise 0
  int32_t y_begin, y_end, x_begin, x_end;
};

// The common part of all tables. An operator whose classes have RoIs of their own takes each pair
// of a RoI and a class for a row, and each pair of an image and a class for an image.
struct RoiTable {
  RoiRows rows;
  int64_t classes;         // 1 for most operators
  int32_t bins_y, bins_x;  // P, Q
  int32_t maps;
  int32_t heights[GLUON_ROI_MOST_MAPS], widths[GLUON_ROI_MOST_MAPS];  // cells of each map
  int32_t height, width;                                              // of the largest
  RoiHead* heads;                                                     // K * classes

  RoiTable(Carver* carver, const Inputs& in, int32_t pooled_height, int32_t pooled_width,
           int32_t bad_index, int64_t classes_of_pairs);
  template <class Params>
  RoiTable(Carver* carver, const Params& p, const Inputs& in, int64_t classes_of_pairs = 1)
      : RoiTable(carver, in, p.pooled_height, p.pooled_width, p.bad_index, classes_of_pairs) {}

  int64_t all_pairs() const { return rows.rows * classes; }
  int64_t all_images() const { return rows.images * classes; }  // of each map
};

// The cells [begin, end) of every bin of every RoI along both axes.
struct BinTable : RoiTable {
  int32_t* edges;  // K * 2 * (P + Q): two numbers per bin, rows first

  template <class Params>
  BinTable(Carver* carver, const Params& p, const Inputs& in)
      : RoiTable(carver, p, in), edges(carver->take<int32_t>(rows.rows * 2 * (bins_y + bins_x))) {}

  void build(const Gpu& gpu, BinRule rule, double spatial_scale) const;

  HOST_DEVICE int32_t* row_edges(int64_t k) const {
    return edges + k * 2 * (static_cast<int64_t>(bins_y) + bins_x);
  }
  HOST_DEVICE int32_t* column_edges(int64_t k) const { return row_edges(k) + 2 * bins_y; }
};

// As wide as G, so that the structs below have no padding, which would be uninitialised memory.
template <class G>
using CellIndex = std::conditional_t<sizeof(G) == 8, int64_t, int32_t>;

// A cell that a bin reads, its weight, and the derivatives of the weight by the box's lower and
// upper coordinate: samples of a bin that share a cell are merged.
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
// A tap in the list of its cell.
template <class G>
struct BinTap {
  CellIndex<G> bin;
  G weight;
};

// The first of the taps [begin, end) of a bin at or after cell.
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

// The taps of a RoI along both axes: row or bin i has those of [begin[i], begin[i + 1]).
template <class AnyTap>
struct TapView {
  int32_t *y_begin, *x_begin;
  AnyTap *y_taps, *x_taps;
};

// Both axes of every RoI as sparse matrices: the taps of each bin in ascending order of cells, and
// optionally the same by cell, with bins in ascending order. A cell without weight is absent, so
// that its NaN cannot leak. A rule (SampleRule, PreciseRule) defines the weights of a bin on a map
// of the rule's scale. A pyramid defines the map of a RoI and its scale.
template <class G, class AnyTap>
struct TapTable : RoiTable {
  Pyramid pyramid;
  int64_t room_y, room_x;  // taps that the tables have room for, per RoI
  int32_t* begin;          // K * (P + 1 + Q + 1): bin q has the taps [begin[q], begin[q + 1])
  AnyTap* taps;            // K * (room_y + room_x)
  int32_t* cell_begin;     // K * (H + 1 + W + 1), set for the cells of the head; or nullptr
  BinTap<G>* cell_taps;    // K * (room_y + room_x), or nullptr

  template <class Params, class Rule>
  TapTable(Carver* carver, const Params& p, const Inputs& in, const Pyramid& maps_of_rois,
           const Rule& rule, bool with_cells)
      : RoiTable(carver, p, in),
        pyramid(maps_of_rois),
        room_y(room(bins_y, height, rule.max_cells(height))),
        room_x(room(bins_x, width, rule.max_cells(width))),
        begin(carver->take<int32_t>(rows.rows * (static_cast<int64_t>(bins_y) + bins_x + 2))),
        taps(carver->take<AnyTap>(rows.rows * (room_y + room_x))),
        cell_begin(nullptr),
        cell_taps(nullptr) {
    if (!with_cells) return;
    cell_begin = carver->take<int32_t>(rows.rows * (static_cast<int64_t>(height) + width + 2));
    cell_taps = carver->take<BinTap<G>>(rows.rows * (room_y + room_x));
  }

  template <class Rule>
  void build(const Gpu& gpu, const Rule& rule) const;

  // The taps of a RoI, by bin and by cell.
  HOST_DEVICE TapView<AnyTap> by_bins(int64_t k) const {
    int32_t* const rows_begin = begin + k * (int64_t{bins_y} + bins_x + 2);
    AnyTap* const row_taps = taps + k * (room_y + room_x);
    return {rows_begin, rows_begin + bins_y + 1, row_taps, row_taps + room_y};
  }
  HOST_DEVICE TapView<BinTap<G>> by_cells(int64_t k) const {
    int32_t* const rows_begin = cell_begin + k * (int64_t{height} + width + 2);
    BinTap<G>* const row_taps = cell_taps + k * (room_y + room_x);
    return {rows_begin, rows_begin + height + 1, row_taps, row_taps + room_y};
  }

 private:
  // The bins of a RoI lie side by side and share at most one cell at each end. For very large
  // coordinates, rounding pushes bins over their neighbours; every second bin is still apart from
  // the others, so 2 * size is enough. This holds on maps of up to 2^20 cells; beyond, every bin
  // gets its own room.
  static int64_t room(int64_t bins, int64_t size, int64_t max_cells) {
    const int64_t taps =
        size <= (1 << 20) ? std::min(bins * max_cells, 2 * size + 4 * bins) : bins * max_cells;
    return std::min<int64_t>(taps, std::numeric_limits<int32_t>::max());
  }
};

// The valid rows of each image of each map, in their order.
struct RoiLists {
  int32_t* begin;  // maps * images + 1 offsets into order: the images of the first map, ...
  int32_t* order;  // row numbers

  RoiLists(Carver* carver, const RoiTable& tables)
      : begin(carver->take<int32_t>(tables.all_images() * tables.maps + 1)),
        order(carver->take<int32_t>(tables.all_pairs())) {}

  void build(const Gpu& gpu, const RoiTable& tables) const;
  // The lists of one map.
  RoiLists of_map(const RoiTable& tables, int32_t map) const {
    RoiLists lists = *this;
    lists.begin += map * tables.all_images();
    return lists;
  }
};

}  // namespace gluon_roi::cuda
