// SPDX-License-Identifier: Apache-2.0
// Precise RoI pooling: the mean of the bilinear surface over a bin, as an integral in closed form.
//
// The surface interpolates bilinearly between cells, and falls to 0 within one cell beyond the
// outermost cells. It is therefore a sum over cells of the value times a hat function of x times a
// hat function of y, and the weight of a cell in the mean over a bin is a product of a weight for y
// and a weight for x.
//
// The hat functions are linear between neighbouring cells. So a bin is split at cells, and each
// piece contributes to the two cells around it, with its share of the bin. Positions within a bin
// are differences from its ends, so the shares add up to 1 for bins of any size.
//
// Everything is computed in double precision for every type of data, because positions in small
// bins far from the origin would lose most digits of a float. (No other library has CPU results to
// match.)
#pragma once
#include "saturate.h"

namespace gluon_roi {

// The weight of a cell in the mean over a bin, and its derivatives with respect to the bin's ends.
struct HatMean {
  double value, d_lo, d_hi;
};

// The piece of a bin between a cell and the next one.
struct BinPiece {
  double share;   // of the bin
  double height;  // of the next cell's hat function in the middle of the piece
  double middle;  // of the piece, as a fraction of the bin

  HOST_DEVICE static BinPiece make(double bin_begin, double bin_end, double cell) {
    const double length = bin_end - bin_begin;
    // A bin can be smaller than the distance between numbers; then it is a point.
    if (!(length > 0)) return {1.0, bin_begin - cell, 0.5};
    const double begin = bin_begin < cell ? cell : bin_begin;
    const double end = bin_end > cell + 1.0 ? cell + 1.0 : bin_end;
    return {(end - begin) / length, 0.5 * ((begin - cell) + (end - cell)),
            0.5 * ((begin - bin_begin) + (end - bin_begin)) / length};
  }
  // Of the next cell, whose hat function rises.
  HOST_DEVICE HatMean rising() const {
    return {share * height, share * (1.0 - middle), share * middle};
  }
  // Of the cell itself, whose hat function falls, added to another piece.
  HOST_DEVICE HatMean falling(const HatMean& other) const {
    return {other.value + share * (1.0 - height), other.d_lo - share * (1.0 - middle),
            other.d_hi - share * middle};
  }
};

// One axis of a box. G is the type of the weights.
template <class G>
struct PreciseAxis {
  double start;       // map coordinate where bin 0 begins
  double bin;         // cells per bin; if not positive, all bins are empty
  double scale;       // map cells per image pixel
  int32_t axis_bins;  // P or Q
  int32_t size;       // cells of the map along this axis

  // Calls emit(cell, weight, d_lo, d_hi) for the cells that contribute to bin q, in ascending
  // order. d_lo and d_hi are the derivatives of the weight with respect to the box coordinates, per
  // image pixel. An empty bin has no cells.
  template <class Emit>
  HOST_DEVICE void for_each_weight(int q, const Emit& emit) const {
    const double begin = start + static_cast<double>(q) * bin;
    const double end = start + static_cast<double>(q + 1) * bin;
    const double top = size;
    if (!(bin > 0) || !(end > -1.0) || !(begin < top)) return;
    // The two ends of the bin as weighted means of the box's two coordinates.
    const double begin_hi = static_cast<double>(q) / axis_bins, begin_lo = 1.0 - begin_hi;
    const double end_hi = static_cast<double>(q + 1) / axis_bins, end_lo = 1.0 - end_hi;
    const auto emit_mean = [&](int32_t cell, const HatMean& mean) {
      emit(cell, static_cast<G>(mean.value),
           narrow<G>(scale * (begin_lo * mean.d_lo + end_lo * mean.d_hi)),
           narrow<G>(scale * (begin_hi * mean.d_lo + end_hi * mean.d_hi)));
    };
    int32_t cell = begin < 0.0 ? -1 : static_cast<int32_t>(begin);
    HatMean mean{};  // of `cell`: what lies before it
    do {
      const BinPiece piece = BinPiece::make(begin, end, cell);
      if (cell >= 0) emit_mean(cell, piece.falling(mean));
      mean = piece.rising();
      ++cell;
    } while (cell < size && cell < end);
    if (cell < size) emit_mean(cell, mean);
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
    axis.scale = spatial_scale;
    axis.axis_bins = axis_bins;
    axis.size = size;
    return axis;
  }
  // The maximum number of cells with a weight in a bin.
  int64_t max_cells(int64_t size) const { return size; }
};

}  // namespace gluon_roi
