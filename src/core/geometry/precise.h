// SPDX-License-Identifier: Apache-2.0
// Precise RoI pooling: the mean of the bilinear surface over a bin, an integral in closed form.
//
// Between cells the surface is their bilinear interpolation; beyond the outermost cells it falls to
// 0 within one cell. So each cell contributes its value times a hat function of x times one of y,
// and its weight in the mean over a bin is a product of a weight for y and one for x.
//
// Everything is computed in double precision, for every type of data. A weight is a difference of
// positions divided by the size of the bin, which for small bins far from the origin leaves few
// digits of a float. (There are no CPU results of another library to match.)
#pragma once
#include "saturate.h"

namespace gluon_roi {

// The mean from lo to hi of the hat function, which is 1 at 0 and falls to 0 at -1 and 1, and its
// derivatives by lo and hi.
struct HatMean {
  double value, d_lo, d_hi;

  HOST_DEVICE static HatMean over(double lo, double hi, double length) {
    HatMean mean{};
    // The rising side, then the falling side. Shares of the length keep their digits, where a
    // difference of heights divided by a small length would lose them.
    for (int side = 0; side < 2; ++side) {
      const double bottom = side - 1, rise = side == 0 ? 1.0 : -1.0;
      const double begin = lo < bottom ? bottom : lo;
      const double end = hi > bottom + 1.0 ? bottom + 1.0 : hi;
      if (!(end > begin)) continue;
      const double share = (end - begin) / length, middle = 0.5 * (begin + end);
      mean.value += share * (1.0 + rise * middle);
      mean.d_lo += rise * share * ((hi - middle) / length);
      mean.d_hi += rise * share * ((middle - lo) / length);
    }
    return mean;
  }
};

// One axis of a box. G is the type of the weights.
template <class G>
struct PreciseAxis {
  double start;  // map coordinate where bin 0 begins
  double bin;    // cells per bin; if not positive, all bins are empty
  double scale;  // map cells per image pixel, without its excess<G>()
  int32_t bins;  // P or Q
  int32_t size;  // cells of the map along this axis

  // Calls emit(cell, weight, d_lo, d_hi) for the cells with a weight in bin q, in ascending order.
  // d_lo and d_hi are the weight's derivatives by the box's coordinates, per image pixel, without
  // excess<G>(). A bin without length has no cells.
  template <class Emit>
  HOST_DEVICE void for_each_weight(int q, const Emit& emit) const {
    const double begin = start + static_cast<double>(q) * bin;
    const double end = start + static_cast<double>(q + 1) * bin;
    const double top = size;
    if (!(end > begin) || !(end > -1.0) || !(begin < top)) return;
    const double length = end - begin;
    // The weights of the box's two coordinates in each end of the bin.
    const double begin_hi = static_cast<double>(q) / bins, begin_lo = 1.0 - begin_hi;
    const double end_hi = static_cast<double>(q + 1) / bins, end_lo = 1.0 - end_hi;
    const int32_t first = begin < 0.0 ? 0 : static_cast<int32_t>(begin);
    const int32_t last = end < top ? static_cast<int32_t>(ceil(end)) : size - 1;
    for (int32_t cell = first; cell <= last && cell < size; ++cell) {
      const HatMean mean = HatMean::over(begin - cell, end - cell, length);
      emit(cell, static_cast<G>(mean.value),
           narrow<G>(scale * (begin_lo * mean.d_lo + end_lo * mean.d_hi)),
           narrow<G>(scale * (begin_hi * mean.d_lo + end_hi * mean.d_hi)));
    }
  }
  HOST_DEVICE G divisor() const { return 1; }
};

// Converts an upright box to bins of the surface.
struct PreciseRule {
  double spatial_scale;

  // From the coordinates of the box along the axis, in image pixels.
  template <class G>
  HOST_DEVICE PreciseAxis<G> axis(G lo, G hi, int bins, int32_t size) const {
    PreciseAxis<G> axis{};
    axis.start = saturate(static_cast<double>(lo) * spatial_scale);
    axis.bin = (saturate(static_cast<double>(hi) * spatial_scale) - axis.start) / bins;
    axis.scale = spatial_scale / excess<G>(spatial_scale);
    axis.bins = bins;
    axis.size = size;
    return axis;
  }
  // The maximum number of cells with a weight in a bin.
  int64_t max_cells(int64_t size) const { return size; }
};

}  // namespace gluon_roi
