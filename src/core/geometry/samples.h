// SPDX-License-Identifier: Apache-2.0
// The bilinear samples of ROIAlign and its variants: positions and cells.
//
// As in bins.h, the order of operations is that of MXNet, torchvision and Paddle, so the positions
// are equal bit for bit.
#pragma once
#include <algorithm>

#include "saturate.h"

namespace gluon_roi {

// A bilinear sample along one axis, between the cells `low` and `high`.
template <class G>
struct Sample {
  bool inside;   // a sample outside the map is 0, but is counted in the mean
  bool clamped;  // clamped to the border, where the derivative is 0
  int32_t low, high;
  G low_weight, high_weight;
};

// The sample at map coordinate x, along an axis of `size` cells.
template <class G>
HOST_DEVICE Sample<G> sample_at(G x, int32_t size) {
  Sample<G> s{};
  s.inside = size > 0 && x >= static_cast<G>(-1) && x <= static_cast<G>(size);
  if (!s.inside) return s;
  s.clamped = x < 0;
  if (x < 0) x = 0;
  s.low = static_cast<int32_t>(x);
  if (s.low >= size - 1) {
    s.low = s.high = size - 1;
    s.clamped = true;
    s.low_weight = 1;
  } else {
    s.high = s.low + 1;
    s.high_weight = x - static_cast<G>(s.low);
    s.low_weight = static_cast<G>(1) - s.high_weight;
  }
  return s;
}

// Sets [begin, end) to the cells that the samples between two map coordinates read.
template <class G>
HOST_DEVICE void cells_between(G low, G high, int32_t size, int32_t* begin, int32_t* end) {
  const G first = static_cast<G>(-1), last = static_cast<G>(size);
  *begin = *end = 0;
  if (size <= 0 || high < first || low > last) return;
  *begin = sample_at(low < first ? first : low, size).low;
  *end = sample_at(high > last ? last : high, size).high + 1;
}

// One side of a box, split into bins of `samples` evenly spaced samples each. G is float, or double
// for float64 data.
template <class G>
struct SampleLine {
  G start;                 // map coordinate where bin 0 begins
  G bin;                   // cells per bin; negative for an inverted box
  G samples;               // samples per bin, an integer >= 1
  int32_t axis_bins;       // P or Q
  int32_t has_min_length;  // 1: the side is shorter than a cell, and gets the length of one

  // Makes a line of a given length in map cells; the caller sets `start`.
  HOST_DEVICE static SampleLine make(G length, bool aligned, int axis_bins, int sampling_ratio) {
    SampleLine line{};
    line.axis_bins = axis_bins;
    line.has_min_length = !aligned && length < static_cast<G>(1);
    if (line.has_min_length) length = static_cast<G>(1);
    line.bin = length / static_cast<G>(axis_bins);
    const G adaptive = ceil(length / static_cast<G>(axis_bins));
    line.samples = sampling_ratio > 0 ? static_cast<G>(sampling_ratio)
                   : adaptive > 1     ? adaptive
                                      : static_cast<G>(1);
    return line;
  }

  // The position of sample i of bin q.
  HOST_DEVICE G coordinate(int q, int64_t i) const {
    return start + static_cast<G>(q) * bin +
           static_cast<G>(static_cast<G>(i) + static_cast<G>(0.5)) * bin / samples;
  }
  // The same position as a fraction of the side, from 0 to 1.
  HOST_DEVICE G fraction(int q, int64_t i) const {
    return (static_cast<G>(q) + (static_cast<G>(i) + static_cast<G>(0.5)) / samples) /
           static_cast<G>(axis_bins);
  }

  // Sets [first, last] to the samples of bin q that may lie in [low, high]. Visiting only these
  // bounds the work by the size of the map for boxes of any size. `reach` is an upper bound of the
  // magnitudes in the computation of a coordinate.
  HOST_DEVICE void range(int q, double low, double high, double reach, int64_t* first,
                         int64_t* last) const {
    *first = 0;
    *last = -1;
    // With more than 2^53 samples per bin, the weight of each vanishes, and the mean is 0.
    if (samples > static_cast<G>(9007199254740992.0)) return;
    const int64_t count = static_cast<int64_t>(samples);
    *last = count - 1;
    if (count <= 4 || bin == 0) return;
    clip(static_cast<double>(start + static_cast<G>(q) * bin), low, high, reach, first, last);
  }
  // The same for the samples of all bins; sample i of bin q has the index q * samples + i.
  HOST_DEVICE void range_of_all(double low, double high, double reach, int64_t* first,
                                int64_t* last) const {
    *first = 0;
    *last = -1;
    const double count = static_cast<double>(samples) * axis_bins;
    if (count > 9007199254740992.0) return;
    *last = static_cast<int64_t>(count) - 1;
    if (bin != 0) clip(static_cast<double>(start), low, high, reach, first, last);
  }

 private:
  // Shortens [0, last] to the samples that may lie in [low, high], if sample 0 lies half a step
  // after `base`.
  HOST_DEVICE void clip(double base, double low, double high, double reach, int64_t* first,
                        int64_t* last) const {
    const double step = static_cast<double>(bin) / static_cast<double>(samples);
    double lo = (low - base) / step - 0.5, hi = (high - base) / step - 0.5;
    if (step < 0) {
      const double swap = lo;
      lo = hi;
      hi = swap;
    }
    // 8 epsilons of the largest term bound the rounding of coordinate(). Samples that the limit of
    // 64 leaves out lie on the map only by rounding.
    const double epsilon = sizeof(G) == 4 ? 1.2e-7 : 2.3e-16;
    double margin = 2.0 + 8.0 * epsilon * reach / fabs(step);
    if (margin > 64.0) margin = 64.0;
    lo = floor(lo - margin);
    hi = ceil(hi + margin);
    if (lo > static_cast<double>(*last) || hi < 0) {
      *last = -1;
      return;
    }
    if (lo > 0) *first = static_cast<int64_t>(lo);
    if (hi < static_cast<double>(*last)) *last = static_cast<int64_t>(hi);
  }
};

// One axis of an upright box on the map.
template <class G>
struct SampleAxis : SampleLine<G> {
  int32_t size;  // cells of the map along this axis
  G scale;       // map cells per image pixel

  // The samples of bin q that may lie on the map: [first, last].
  HOST_DEVICE void sample_range(int q, int64_t* first, int64_t* last) const {
    const double length = fabs(static_cast<double>(this->bin));
    this->range(q, -1.0, size, 2.0 * length + size, first, last);
  }

  HOST_DEVICE Sample<G> sample(int q, int64_t i) const {
    return sample_at(this->coordinate(q, i), size);
  }

  // Extends [*begin, *end) by the cells that bin q reads.
  HOST_DEVICE void include_cells(int q, int32_t* begin, int32_t* end) const {
    int64_t first, last;
    sample_range(q, &first, &last);
    if (first > last) return;
    // Rounded positions are monotonic in the number of the sample.
    const G one = this->coordinate(q, first), other = this->coordinate(q, last);
    int32_t low, high;
    cells_between(one < other ? one : other, one < other ? other : one, size, &low, &high);
    if (low >= high) return;
    if (*begin >= *end) *begin = low, *end = high;
    if (low < *begin) *begin = low;
    if (high > *end) *end = high;
  }
  // Whether a sample of bin q gives a weight to a cell.
  HOST_DEVICE bool reads(int q, int32_t cell) const {
    int64_t first, last;
    sample_range(q, &first, &last);
    for (int64_t i = first; i <= last; ++i) {
      const Sample<G> s = sample(q, i);
      if (!s.inside) continue;
      if (s.low == cell && s.low_weight != 0) return true;
      if (s.high == cell && s.high_weight != 0) return true;
    }
    return false;
  }

  // The derivatives of coordinate(q, i) with respect to lo and hi, in map cells per image pixel.
  HOST_DEVICE void coordinate_gradient(int q, int64_t i, G* d_lo, G* d_hi) const {
    const G t = this->fraction(q, i);
    *d_lo = this->has_min_length ? scale : scale * (static_cast<G>(1) - t);
    *d_hi = this->has_min_length ? static_cast<G>(0) : scale * t;
  }

  // Calls emit(cell, weight, d_lo, d_hi) for both cells of every sample of bin q that is on the
  // map: the weight, and its derivatives with respect to the box coordinates, per image pixel.
  // The caller sums them for each cell and divides by divisor().
  template <class Emit>
  HOST_DEVICE void for_each_weight(int q, const Emit& emit) const {
    int64_t first, last;
    sample_range(q, &first, &last);
    for (int64_t i = first; i <= last; ++i) {
      const Sample<G> s = sample(q, i);
      if (!s.inside) continue;
      G d_lo = 0, d_hi = 0;
      if (!s.clamped) coordinate_gradient(q, i, &d_lo, &d_hi);
      emit(s.low, s.low_weight, -d_lo, -d_hi);
      emit(s.high, s.high_weight, d_lo, d_hi);
    }
  }
  HOST_DEVICE G divisor() const { return this->samples; }
};

// Converts an upright box to samples.
struct SampleRule {
  double spatial_scale;
  int32_t aligned, sampling_ratio;

  // `lo` and `hi` are the box coordinates along the axis, in image pixels.
  template <class G>
  HOST_DEVICE SampleAxis<G> axis(G lo, G hi, int axis_bins, int32_t size) const {
    const G scale = static_cast<G>(spatial_scale);
    const G offset = aligned != 0 ? static_cast<G>(0.5) : static_cast<G>(0);
    const G start = saturate(lo * scale - offset);
    SampleAxis<G> axis{};
    static_cast<SampleLine<G>&>(axis) = SampleLine<G>::make(
        saturate(hi * scale - offset) - start, aligned != 0, axis_bins, sampling_ratio);
    axis.start = start;
    axis.size = size;
    axis.scale = scale;
    return axis;
  }
  // The maximum number of cells with a weight in a bin.
  int64_t max_cells(int64_t size) const {
    return sampling_ratio > 0 ? std::min<int64_t>(2 * int64_t{sampling_ratio}, size) : size;
  }
};

}  // namespace gluon_roi
