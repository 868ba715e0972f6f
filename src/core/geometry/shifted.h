// SPDX-License-Identifier: Apache-2.0
// The samples of DeformableROIAlign: those of ROIAlign, shifted by an offset for each bin.
//
// A sample lies at start + (t + gamma * offset) * length along an axis, where t is its place along
// the side of the box, from 0 to 1. For a box from 2 to 6 on the map, two bins of one sample, and
// gamma * offset = 0.25 for the first bin, the samples lie at 3 + 1 = 4 and at 5.
#pragma once
#include "samples.h"

namespace gluon_roi {

// A cell that a bin reads along one axis.
template <class G>
struct ShiftedTap {
  int32_t cell;
  G weight;  // of the cell, out of 1 for all samples of the bin
  // Derivatives of the weight: with respect to the position of the bin's samples in cells, and the
  // same with each sample times its t.
  G slope, slope_by_t;

  HOST_DEVICE bool is_zero() const { return weight == 0 && slope == 0 && slope_by_t == 0; }
};

// One axis of a box. Its bins have an offset each.
template <class G>
struct ShiftedAxis {
  SampleAxis<G> axis;  // without offsets, which do not change the number of samples
  G cells_per_offset;  // gamma * length

  HOST_DEVICE static ShiftedAxis make(const SampleAxis<G>& axis, double gamma) {
    const G length = axis.bin * static_cast<G>(axis.axis_bins);
    return {axis, narrow<G>(static_cast<double>(narrow<G>(gamma) * length))};
  }

  // The axis for a bin with this offset, which is finite.
  HOST_DEVICE SampleAxis<G> shifted(G offset) const {
    SampleAxis<G> bin = axis;
    bin.start = saturate(axis.start + cells_per_offset * offset);
    return bin;
  }

  // Calls emit(ShiftedTap) for both cells of every sample of bin q that is on the map. The caller
  // sums the taps of a cell.
  template <class Emit>
  HOST_DEVICE void for_each_tap(int q, G offset, const Emit& emit) const {
    const SampleAxis<G> bin = shifted(offset);
    int64_t first, last;
    bin.sample_range(q, &first, &last);
    const G share = static_cast<G>(1) / bin.samples;
    for (int64_t i = first; i <= last; ++i) {
      const Sample<G> s = bin.sample(q, i);
      if (!s.inside) continue;
      const G slope = s.clamped ? static_cast<G>(0) : share;
      const G slope_by_t = slope * bin.fraction(q, i);
      emit(ShiftedTap<G>{s.low, s.low_weight * share, -slope, -slope_by_t});
      emit(ShiftedTap<G>{s.high, s.high_weight * share, slope, slope_by_t});
    }
  }

  // The weight that for_each_tap gives to one cell.
  HOST_DEVICE G weight_of(int q, G offset, int32_t cell) const {
    G weight = 0;
    for_each_tap(q, offset, [&](const ShiftedTap<G>& tap) {
      if (tap.cell == cell) weight += tap.weight;
    });
    return weight;
  }

  // A sample lies at lo + (t + gamma * offset) * (hi - lo), which gives the derivatives of a bin:
  // by_offset(), and by_low() and by_high() with respect to lo and hi in map cells. `slope` is the
  // sum over the cells of value * slope along this axis * weight along the other one, and
  // `slope_by_t` likewise.
  HOST_DEVICE double by_offset(double slope) const {
    return static_cast<double>(cells_per_offset) * slope;
  }
  HOST_DEVICE double by_high(double slope, double slope_by_t, double gamma, double offset) const {
    return axis.has_min_length ? 0.0 : slope_by_t + gamma * offset * slope;
  }
  HOST_DEVICE double by_low(double slope, double slope_by_t, double gamma, double offset) const {
    return slope - by_high(slope, slope_by_t, gamma, offset);
  }
};

// The offsets and factors of the bins of all RoIs.
template <class T>
struct BinOffsets {
  using A = SumOf<T>;
  struct Bin {
    bool valid;  // false: an offset is NaN or infinite
    A y, x;      // offsets
    A factor;    // of the bin
  };
  const T* offset;  // (K, 2, P, Q): x, then y; nullptr: no offsets
  const T* mask;    // (K, 1, P, Q); nullptr: 1
  int64_t bins;     // P * Q

  HOST_DEVICE Bin find(int64_t k, int64_t bin) const {
    Bin found{true, 0, 0, 1};
    if (mask != nullptr) found.factor = load(mask + k * bins + bin);
    if (offset == nullptr) return found;
    found.x = load(offset + 2 * k * bins + bin);
    found.y = load(offset + (2 * k + 1) * bins + bin);
    // x - x is 0 unless x is NaN or infinite.
    found.valid = found.x - found.x == 0 && found.y - found.y == 0;
    return found;
  }
};

}  // namespace gluon_roi
