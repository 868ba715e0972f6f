// Precise RoI pooling: the mean of the bilinear surface over a bin, an integral in closed form.
//
// Between the cells the surface is their bilinear interpolation, beyond the outermost it falls to 0
// within a cell. So each cell contributes its value times a hat function of x times one of y, and
// the mean over a bin is a weight of y times one of x.
//
// In double precision whatever the type of the data: a weight is a difference of positions over the
// size of the bin, which for small bins far from the origin leaves few digits of a float. (No other
// library's CPU results are to be matched.)
#pragma once
#include "saturate.h"

namespace gluon_roi {

// The mean of the hat function, which is 1 at 0 and falls to 0 at -1 and 1, from lo to hi, and its
// derivatives by these two.
struct HatMean {
  double value, d_lo, d_hi;

  HOST_DEVICE static HatMean over(double lo, double hi, double length) {
    HatMean mean{};
    // The side that rises, then the one that falls. Shares of the length do not lose their digits
    // where a difference of heights over a small length would.
    for (int side = 0; side < 2; ++side) {
      const double bottom = side - 1, slope = side == 0 ? 1.0 : -1.0;
      const double begin = lo < bottom ? bottom : lo;
      const double end = hi > bottom + 1.0 ? bottom + 1.0 : hi;
      if (!(end > begin)) continue;
      const double share = (end - begin) / length, middle = 0.5 * (begin + end);
      mean.value += share * (1.0 + slope * middle);
      mean.d_lo += slope * share * ((hi - middle) / length);
      mean.d_hi += slope * share * ((middle - lo) / length);
    }
    return mean;
  }
};

// One axis of a box. G is the type of the weights.
template <class G>
struct PreciseAxis {
  double start;  // map coordinate where bin 0 begins
  double bin;    // cells per bin; not positive: all bins are empty
  double scale;  // map cells per image pixel, without its excess<G>()
  int32_t bins;  // P or Q
  int32_t size;  // cells of the map along this axis

  // Calls emit(cell, weight, d_lo, d_hi) for the cells that bin q weighs, in ascending order: the
  // weight, and its derivatives by the box's coordinates per image pixel, without excess<G>(). A
  // bin without a length has none.
  template <class Emit>
  HOST_DEVICE void for_each_weight(int q, const Emit& emit) const {
    const double begin = start + static_cast<double>(q) * bin;
    const double end = start + static_cast<double>(q + 1) * bin;
    const double top = size;
    if (!(end > begin) || !(end > -1.0) || !(begin < top)) return;
    const double length = end - begin;
    // The shares of the box's two coordinates in the two ends of the bin.
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

// How an upright box becomes bins of the surface.
struct PreciseRule {
  double spatial_scale;

  // From the box's coordinates along the axis, in image pixels.
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
  // The most cells that a bin weighs.
  int64_t most_cells(int64_t size) const { return size; }
};

}  // namespace gluon_roi
