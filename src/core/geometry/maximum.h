// SPDX-License-Identifier: Apache-2.0
// The largest bilinear sample of a bin, for ROIAlign with mode='max'.
//
// As in mmcv's RoIAlign with pool_mode='max', a sample outside the map is 0 and takes part. NaN
// samples do not. On the map [[1, 2], [3, 4]] the bin from (0, 0) to (1, 1) with 2 x 2 samples, at
// 0.25 and 0.75, has the samples 1.75, 2.25, 2.75 and 3.25.
#pragma once
#include "samples.h"

namespace gluon_roi {

// The value of a sample on the map. Cells of weight 0 are not read.
template <class T, class G>
HOST_DEVICE G bilinear_value(const T* plane, int64_t width, const Sample<G>& y,
                             const Sample<G>& x) {
  const auto row = [&](int32_t cell) {
    const T* const line = plane + cell * width;
    G value = load(line + x.low) * x.low_weight;
    if (x.high_weight != 0) value += load(line + x.high) * x.high_weight;
    return value;
  };
  G value = row(y.low) * y.low_weight;
  if (y.high_weight != 0) value += row(y.high) * y.high_weight;
  return value;
}

template <class G>
struct LargestSample {
  G value;         // of the bin
  bool on_map;     // false: no sample on the map is as large
  Sample<G> y, x;  // valid if on_map
  int64_t j, i;    // its numbers in the bin
};

// The first of the largest samples of bin (p, q). `lowest` is the lowest finite number of the data,
// the value of a bin whose samples are all NaN.
template <class T, class G>
HOST_DEVICE LargestSample<G> largest_sample(const SampleAxis<G>& y_axis, int p,
                                            const SampleAxis<G>& x_axis, int q, const T* plane,
                                            int64_t width, G lowest) {
  LargestSample<G> best{};
  best.value = lowest;
  int64_t j_first, j_last, i_first, i_last;
  y_axis.sample_range(p, &j_first, &j_last);
  x_axis.sample_range(q, &i_first, &i_last);
  int64_t y_count = 0, x_count = 0;  // samples on the map
  for (int64_t j = j_first; j <= j_last; ++j) {
    const Sample<G> y = y_axis.sample(p, j);
    if (!y.inside) continue;
    ++y_count;
    x_count = 0;
    for (int64_t i = i_first; i <= i_last; ++i) {
      const Sample<G> x = x_axis.sample(q, i);
      if (!x.inside) continue;
      ++x_count;
      const G value = bilinear_value(plane, width, y, x);
      if (value > best.value) best = {value, true, y, x, j, i};
    }
  }
  const bool has_outside =
      static_cast<G>(y_count) < y_axis.samples || static_cast<G>(x_count) < x_axis.samples;
  if (has_outside && best.value < 0) {
    best.value = 0;
    best.on_map = false;
  }
  return best;
}

// Adds the derivatives of the largest sample with respect to x1, y1, x2 and y2, times `factor`.
template <class T, class G, class Sum>
HOST_DEVICE void add_largest_slopes(const LargestSample<G>& best, const SampleAxis<G>& y_axis,
                                    int p, const SampleAxis<G>& x_axis, int q, const T* plane,
                                    int64_t width, Sum factor, Sum* gradient) {
  if (!best.on_map) return;
  // The slope along an axis is the value with weights of -1 and 1.
  const auto slope_of = [](Sample<G> sample) {
    sample.low_weight = -1;
    sample.high_weight = 1;
    return sample;
  };
  G d_lo, d_hi;
  if (!best.x.clamped) {
    x_axis.coordinate_gradient(q, best.i, &d_lo, &d_hi);
    const Sum slope = factor * bilinear_value(plane, width, best.y, slope_of(best.x));
    gradient[0] += slope * d_lo;
    gradient[2] += slope * d_hi;
  }
  if (!best.y.clamped) {
    y_axis.coordinate_gradient(p, best.j, &d_lo, &d_hi);
    const Sum slope = factor * bilinear_value(plane, width, slope_of(best.y), best.x);
    gradient[1] += slope * d_lo;
    gradient[3] += slope * d_hi;
  }
}

}  // namespace gluon_roi
