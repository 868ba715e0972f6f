// SPDX-License-Identifier: Apache-2.0
// Precise RoI pooling: the mean of the bilinear surface over a bin, as an integral in closed form.
//
// The surface interpolates bilinearly between cells, and falls to 0 within one cell beyond the
// outermost cells. It is therefore a sum over cells of the value times a hat function of x times a
// hat function of y, and the weight of a cell in the mean over a bin is a product of a weight for y
// and a weight for x.
//
// Everything is computed in double precision for every type of data: a weight is a difference of
// positions divided by the size of the bin, which would lose most digits of a float for small bins
// far from the origin. (No other library has CPU results to match.)
#pragma once
#include "saturate.h"

namespace gluon_roi {

// The mean of the hat function over [lo, hi], and its derivatives with respect to lo and hi. The
// hat function is 1 at 0 and falls to 0 at -1 and 1.
struct HatMean {
  double value, d_lo, d_hi;

  HOST_DEVICE static HatMean over(double lo, double hi, double length) {
    HatMean mean{};
    // The rising side, then the falling side. Fractions of the length keep full precision; a
    // difference of integrals divided by a small length would not.
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
  double start;       // map coordinate where bin 0 begins
  double bin;         // cells per bin; if not positive, all bins are empty
  double scale;       // map cells per image pixel, divided by pow2_scale<G>()
  int32_t axis_bins;  // P or Q
  int32_t size;       // cells of the map along this axis

  // Calls emit(cell, weight, d_lo, d_hi) for the cells that contribute to bin q, in ascending
  // order. d_lo and d_hi are the derivatives of the weight with respect to the box coordinates, per
  // image pixel, divided by pow2_scale<G>(). A bin without length has no cells.
  template <class Emit>
  HOST_DEVICE void for_each_weight(int q, const Emit& emit) const {
    const double begin = start + static_cast<double>(q) * bin;
    const double end = start + static_cast<double>(q + 1) * bin;
    const double top = size;
    if (!(end > begin) || !(end > -1.0) || !(begin < top)) return;
    const double length = end - begin;
    // The two ends of the bin as weighted means of the box's two coordinates.
    const double begin_hi = static_cast<double>(q) / axis_bins, begin_lo = 1.0 - begin_hi;
    const double end_hi = static_cast<double>(q + 1) / axis_bins, end_lo = 1.0 - end_hi;
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

  // `lo` and `hi` are the box coordinates along the axis, in image pixels.
  template <class G>
  HOST_DEVICE PreciseAxis<G> axis(G lo, G hi, int axis_bins, int32_t size) const {
    PreciseAxis<G> axis{};
    axis.start = saturate(static_cast<double>(lo) * spatial_scale);
    axis.bin = (saturate(static_cast<double>(hi) * spatial_scale) - axis.start) / axis_bins;
    axis.scale = spatial_scale / pow2_scale<G>(spatial_scale);
    axis.axis_bins = axis_bins;
    axis.size = size;
    return axis;
  }
  // The maximum number of cells with a weight in a bin.
  int64_t max_cells(int64_t size) const { return size; }
};

}  // namespace gluon_roi
