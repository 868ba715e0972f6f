// SPDX-License-Identifier: Apache-2.0
// The bins of each RoI, for ROIPool and PSROIPool.
#pragma once
#include <algorithm>
#include <vector>

#include "../core/geometry/bins.h"
#include "coverage.h"
#include "memory.h"
#include "rois.h"

namespace gluon_roi::cpu {

// The cells [begin, end) of each bin along both axes, for the RoIs of a chunk in the table's order.
struct BinTable {
  int pooled_height, pooled_width;
  Chunk chunk{0, 0};
  Coverage coverage;

  BinTable(int bin_rows, int bin_columns, const Tensor& data)
      : pooled_height(bin_rows), pooled_width(bin_columns), data_(data) {}

  // Computes the bins of a chunk, reusing the memory of the previous chunk.
  void make(BinRule rule, double spatial_scale, const RoiTable<float>& table, const Chunk& rois) {
    const float scale = static_cast<float>(spatial_scale);
    const int height = static_cast<int>(data_.shape[2]), width = static_cast<int>(data_.shape[3]);
    chunk = rois;
    coverage = Coverage(data_);
    edges_.resize(static_cast<size_t>(chunk.count() * 2 * (pooled_height + pooled_width)));
    int32_t* edge = edges_.data();
    for (int64_t i = chunk.begin; i < chunk.end; ++i, edge += 2 * (pooled_height + pooled_width)) {
      const Roi<float>& roi = table.rois[table.order[i]];
      const BinAxis y = BinAxis::make(rule, roi.y1(), roi.y2(), scale, pooled_height, height);
      const BinAxis x = BinAxis::make(rule, roi.x1(), roi.x2(), scale, pooled_width, width);
      const int64_t row_reads = set_edges(y, pooled_height, edge);
      const int64_t column_reads = set_edges(x, pooled_width, edge + 2 * pooled_height);
      // Edges increase with the bin, so the first and the last bin bound all cells.
      const int32_t* x_edge = edge + 2 * pooled_height;
      coverage.add(roi.image, {edge[0], edge[2 * pooled_height - 1]},
                   {x_edge[0], x_edge[2 * pooled_width - 1]}, row_reads * column_reads);
    }
    coverage.finish();
  }
  // The bytes that the bins of one RoI take.
  int64_t bytes() const {
    return (pooled_height + int64_t{pooled_width}) * 2 * int64_t{sizeof(int32_t)};
  }

  // Two edges per bin: [begin, end).
  ALWAYS_INLINE const int32_t* row_edges(int64_t i) const {
    return edges_.data() + (i - chunk.begin) * 2 * (pooled_height + pooled_width);
  }
  ALWAYS_INLINE const int32_t* column_edges(int64_t i) const {
    return row_edges(i) + 2 * pooled_height;
  }

 private:
  Tensor data_;
  Vector<int32_t> edges_;

  // Sets the edges of all bins of an axis. Returns the total number of cells.
  static int64_t set_edges(const BinAxis& axis, int axis_bins, int32_t* edge) {
    int64_t sum = 0;
    for (int i = 0; i < axis_bins; ++i, edge += 2) {
      edge[0] = axis.begin(i);
      edge[1] = axis.end(i);
      sum += std::max(edge[1] - edge[0], 0);
    }
    return sum;
  }
};

ALWAYS_INLINE int64_t bin_area(const int32_t* y, const int32_t* x) {
  return y[1] > y[0] && x[1] > x[0] ? static_cast<int64_t>(y[1] - y[0]) * (x[1] - x[0]) : 0;
}

// Calls body(offset) for the cells of a bin in row-major order, with the offset of the cell in a
// block of `lanes` numbers per cell. (With the index of the cell instead, the loop needs two
// counters, and ROIPool takes 1.08 times as long.)
template <int64_t lanes, class Body>
ALWAYS_INLINE void for_each_cell(const int32_t* y, const int32_t* x, int64_t width,
                                 const Body& body) {
  const int64_t run = (x[1] - int64_t{x[0]}) * lanes;
  int64_t first = (y[0] * width + x[0]) * lanes;
  for (int64_t row = y[0]; row < y[1]; ++row, first += width * lanes) {
    for (int64_t offset = first; offset < first + run; offset += lanes) body(offset);
  }
}

}  // namespace gluon_roi::cpu
