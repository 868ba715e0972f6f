// The bilinear samples of the align operators: where they lie, and which cells each reads.
//
// Results must not depend on the instruction set, so nothing here may be contracted into fused
// multiply-adds: these files are compiled with -ffp-contract=off and -fmad=false.
// The order of operations is that of MXNet, torchvision and Paddle, which makes the positions equal
// bit for bit.
#pragma once
#include "saturate.h"

namespace gluon_roi {

// One bilinear sample along one axis: weight `low_weight` on cell `low`, the rest on `high`.
template <class G>
struct Sample {
  bool inside;   // outside the map a sample counts in the divisor as 0
  bool clamped;  // at a border: the value does not change with the coordinate
  int32_t low, high;
  G low_weight, high_weight;
};

// One axis of a RoI, split into bins of `samples` evenly spaced samples each. G is float, or
// double for float64 data.
template <class G>
struct SampleAxis {
  G start;       // map coordinate where bin 0 begins
  G bin;         // cells per bin; negative for an inverted box
  G samples;     // samples per bin, a whole number of at least 1
  int32_t size;  // cells of the map along this axis
  bool floored;  // the minimum size of one cell is in force

  HOST_DEVICE static SampleAxis make(G lo, G hi, double spatial_scale, bool aligned, int bins,
                                     int sampling_ratio, int size) {
    const G scale = narrow<G>(spatial_scale);
    const G offset = aligned ? static_cast<G>(0.5) : static_cast<G>(0);
    SampleAxis axis;
    axis.size = size;
    axis.start = saturate(lo * scale - offset);
    G length = saturate(hi * scale - offset) - axis.start;
    axis.floored = !aligned && length < static_cast<G>(1);
    if (axis.floored) length = static_cast<G>(1);
    axis.bin = length / static_cast<G>(bins);
    const G adaptive = ceil(length / static_cast<G>(bins));
    axis.samples = sampling_ratio > 0 ? static_cast<G>(sampling_ratio)
                   : adaptive > 1     ? adaptive
                                      : static_cast<G>(1);
    return axis;
  }

  // The samples of bin q that can fall on the map: [first, last]. Enumerating only these keeps the
  // work bounded by the size of the map, however large the box.
  HOST_DEVICE void sample_range(int q, int64_t* first, int64_t* last) const {
    *first = 0;
    *last = -1;
    // A bin of 2^53 samples has an average of 0 to well below the precision of the sums.
    if (samples > static_cast<G>(9007199254740992.0)) return;
    const int64_t count = static_cast<int64_t>(samples);
    *last = count - 1;
    if (count <= 4 || bin == 0) return;
    const double base = static_cast<double>(start + static_cast<G>(q) * bin);
    const double step = static_cast<double>(bin) / static_cast<double>(samples);
    double lo = (-1.0 - base) / step - 0.5, hi = (size - base) / step - 0.5;
    if (step < 0) {
      const double swap = lo;
      lo = hi;
      hi = swap;
    }
    // Room for the rounding of coordinate() below, within reason.
    const double epsilon = sizeof(G) == 4 ? 1.2e-7 : 2.3e-16;
    double room = 2.0 + 8.0 * epsilon * (2.0 * fabs(static_cast<double>(bin)) + size) / fabs(step);
    if (room > 64.0) room = 64.0;
    lo = floor(lo - room);
    hi = ceil(hi + room);
    if (lo > static_cast<double>(*last) || hi < 0) {
      *last = -1;
      return;
    }
    if (lo > 0) *first = static_cast<int64_t>(lo);
    if (hi < static_cast<double>(*last)) *last = static_cast<int64_t>(hi);
  }

  // Map coordinate of sample i of bin q.
  HOST_DEVICE G coordinate(int q, int64_t i) const {
    return start + static_cast<G>(q) * bin +
           static_cast<G>(static_cast<G>(i) + static_cast<G>(0.5)) * bin / samples;
  }

  HOST_DEVICE Sample<G> sample(int q, int64_t i) const {
    Sample<G> s{};
    G x = coordinate(q, i);
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

  // d coordinate(q, i) / d lo and / d hi, in map cells per image pixel.
  HOST_DEVICE void coordinate_gradient(int q, int64_t i, int bins, double spatial_scale, G* d_lo,
                                       G* d_hi) const {
    const G scale = narrow<G>(spatial_scale);
    const G t = (static_cast<G>(q) + (static_cast<G>(i) + static_cast<G>(0.5)) / samples) /
                static_cast<G>(bins);
    *d_lo = floored ? scale : scale * (static_cast<G>(1) - t);
    *d_hi = floored ? static_cast<G>(0) : scale * t;
  }
};

}  // namespace gluon_roi
