// The bins of every RoI, for the pooling operators.
#pragma once
#include <algorithm>
#include <vector>

#include "../core/geometry/bins.h"
#include "coverage.h"
#include "rois.h"

namespace gluon_roi::cpu {

// The cells [begin, end) of every bin of every RoI along both axes: K * 2 * (P + Q) numbers.
struct BinTable {
  int rows, columns;
  std::vector<int32_t> edges;
  Coverage coverage;

  BinTable(BinRule rule, int pooled_height, int pooled_width, double spatial_scale,
           const RoiTable<float>& table, const Tensor& data)
      : rows(pooled_height), columns(pooled_width), coverage(data) {
    const float scale = narrow<float>(spatial_scale);
    const int height = static_cast<int>(data.shape[2]), width = static_cast<int>(data.shape[3]);
    edges.resize(table.rois.size() * 2 * (rows + columns));
    for (const int64_t k : table.order) {
      const Roi<float>& roi = table.rois[k];
      const BinAxis y = BinAxis::make(rule, roi.y1(), roi.y2(), scale, rows, height);
      const BinAxis x = BinAxis::make(rule, roi.x1(), roi.x2(), scale, columns, width);
      int32_t* edge = edges.data() + k * 2 * (rows + columns);
      const int64_t high = set_edges(y, rows, edge);
      const int64_t wide = set_edges(x, columns, edge + 2 * rows);
      // Edges grow with the bin.
      const int32_t* x_edge = edge + 2 * rows;
      coverage.add(roi.image, edge[0], edge[2 * rows - 1], x_edge[0], x_edge[2 * columns - 1],
                   high * wide);
    }
    coverage.finish();
  }
  // Two numbers a bin.
  ALWAYS_INLINE const int32_t* row_edges(int64_t k) const {
    return edges.data() + k * 2 * (rows + columns);
  }
  ALWAYS_INLINE const int32_t* column_edges(int64_t k) const { return row_edges(k) + 2 * rows; }

 private:
  // Returns the cells of all bins together.
  static int64_t set_edges(const BinAxis& axis, int bins, int32_t* edge) {
    int64_t sum = 0;
    for (int i = 0; i < bins; ++i, edge += 2) {
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

// Calls body(place) for the cells of a bin in row-major order: where a cell begins in a block with
// `lanes` numbers for each cell. (With the cell's number on the map instead, the processor keeps
// two counters, and ROIPool takes 1.08 times as long.)
template <int64_t lanes, class Body>
ALWAYS_INLINE void for_each_cell(const int32_t* y, const int32_t* x, int64_t width,
                                 const Body& body) {
  const int64_t run = (x[1] - int64_t{x[0]}) * lanes;
  int64_t first = (y[0] * width + x[0]) * lanes;
  for (int64_t row = y[0]; row < y[1]; ++row, first += width * lanes) {
    for (int64_t place = first; place < first + run; place += lanes) body(place);
  }
}

}  // namespace gluon_roi::cpu
