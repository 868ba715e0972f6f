// SPDX-License-Identifier: Apache-2.0
// The samples of DeformablePSROIPool: positions, cells and offsets.
//
// As in bins.h, the order of operations is MXNet's, so the positions are equal bit for bit.
#pragma once
#include "bins.h"
#include "channels.h"

namespace gluon_roi {

// A cell that a bin reads along one axis. Samples that share a cell are merged.
template <class G>
struct PsroiTap {
  int32_t cell;
  G weight;  // the sum of the samples' bilinear weights, above 0
  G slope;   // derivative of the weight with respect to the sample positions
};

// One axis of a RoI, split into bins of `samples` evenly spaced samples each; the first sample lies
// on the edge of the bin. G is float, or double for float64 data.
template <class G>
struct PsroiAxis {
  G start;   // map coordinate where bin 0 begins
  G length;  // length of the box in cells, at least 0.1
  G bin;     // cells per bin
  G step;    // distance between samples in cells, > 0
  int32_t samples;
  int32_t size;  // cells of the map along this axis

  HOST_DEVICE static PsroiAxis make(G lo, G hi, double spatial_scale, int axis_bins,
                                    int32_t samples, int32_t size) {
    const G scale = static_cast<G>(spatial_scale), half = static_cast<G>(0.5);
    const G min_length = static_cast<G>(0.1);
    PsroiAxis axis;
    axis.start = saturate(round_half_away(lo) * scale - half);
    const G end = saturate((round_half_away(hi) + static_cast<G>(1)) * scale - half);
    axis.length = end - axis.start > min_length ? end - axis.start : min_length;
    axis.bin = axis.length / static_cast<G>(axis_bins);
    axis.step = axis.bin / static_cast<G>(samples);
    axis.samples = samples;
    axis.size = size;
    return axis;
  }

  // The map coordinate of the first sample of bin q, shifted by `offset` times the length of the
  // box. It increases with q and with `offset`.
  HOST_DEVICE G first_sample(int q, G offset) const {
    return static_cast<G>(q) * bin + start + offset * length;
  }

  // Computes sample i of a bin whose first sample is at `first`. Returns whether it is on the map.
  // It lies between *cell, with weight 1 - *high_weight, and the next cell.
  HOST_DEVICE bool sample(G first, int32_t i, int32_t* cell, G* high_weight) const {
    const G x = first + static_cast<G>(i) * step;
    const G half = static_cast<G>(0.5), last = static_cast<G>(size - 1);
    if (size == 0 || !(x >= -half && x <= static_cast<G>(size) - half)) return false;
    const G clipped = x < 0 ? 0 : x > last ? last : x;
    *cell = static_cast<int32_t>(clipped);
    *high_weight = clipped - static_cast<G>(*cell);
    if (*cell >= size - 1) {
      // Beyond 2^24 cells `last` may be rounded upwards.
      *cell = size - 1;
      *high_weight = 0;
    }
    return true;
  }

  // Calls emit(PsroiTap) for the cells that the samples of a bin read, in ascending order. Returns
  // the number of samples on the map, by which the caller divides the weights.
  template <class Emit>
  HOST_DEVICE int32_t for_each_tap(G first, const Emit& emit) const {
    // Samples ascend, so two running sums suffice: for the two cells of the latest sample.
    PsroiTap<G> low{0, 0, 0}, high{1, 0, 0};
    int32_t count = 0;
    for (int32_t i = 0; i <= samples; ++i) {
      int32_t cell = 0;
      G high_weight = 0;
      const bool at_end = i == samples;
      if (!at_end && !sample(first, i, &cell, &high_weight)) continue;
      while (low.weight > 0 && (at_end || low.cell != cell)) {
        emit(low);
        low = high;
        high = PsroiTap<G>{low.cell + 1, 0, 0};
      }
      if (at_end) break;
      ++count;
      low.cell = cell;
      high.cell = cell + 1;
      low.weight += static_cast<G>(1) - high_weight;
      // On a cell the bilinear surface has a kink, and the derivative is taken as 0, as at the
      // border.
      if (high_weight > 0) {
        high.weight += high_weight;
        low.slope -= static_cast<G>(1);
        high.slope += static_cast<G>(1);
      }
    }
    return count;
  }

  // Returns the weight of one cell, and sets *count to the number of samples on the map, both as
  // for_each_tap computes them.
  HOST_DEVICE G weight_of(G first, int32_t wanted, int32_t* count) const {
    G weight = 0;
    *count = 0;
    for (int32_t i = 0; i < samples; ++i) {
      int32_t cell;
      G high_weight;
      if (!sample(first, i, &cell, &high_weight)) continue;
      ++*count;
      if (cell == wanted) weight += static_cast<G>(1) - high_weight;
      if (cell + 1 == wanted) weight += high_weight;
    }
    return weight;
  }

  // Sets [*begin, *end) to a range with all cells of the bins whose first samples lie in [from,
  // to].
  HOST_DEVICE void cells(G from, G to, int32_t* begin, int32_t* end) const {
    const G half = static_cast<G>(0.5), last = static_cast<G>(size - 1);
    const G stop = to + static_cast<G>(samples - 1) * step;
    *begin = *end = 0;
    if (size == 0 || !(stop >= -half && from <= static_cast<G>(size) - half)) return;
    *begin = static_cast<int32_t>(from < 0 ? 0 : from > last ? last : from);
    *end = static_cast<int32_t>(ceil(stop < 0 ? 0 : stop > last ? last : stop)) + 1;
    if (*begin > size - 1) *begin = size - 1;
    if (*end > size) *end = size;
  }
};

// The offsets of the bins for each pair of a RoI and a class, in units of the box size.
template <class T>
struct PartOffsets {
  const T* trans;         // (pairs, 2, height, width): x, then y; nullptr: no offsets
  int32_t height, width;  // parts
  int32_t pooled_height, pooled_width;
  SumOf<T> scale;  // trans_std

  // The shift of a part along an axis in map cells per unit of trans. It is clamped to a finite
  // value, because infinity times a gradient of 0 would be NaN.
  HOST_DEVICE SumOf<T> gradient_scale(const PsroiAxis<SumOf<T>>& axis) const {
    return narrow<SumOf<T>>(static_cast<double>(scale) * axis.length);
  }

  HOST_DEVICE int64_t parts() const { return static_cast<int64_t>(height) * width; }
  // The part of bin (p, q).
  HOST_DEVICE int64_t part_of(int p, int q) const {
    // The usual case, in which parts are bins, avoids the slow 64-bit divisions.
    const int32_t y =
        height == pooled_height ? p : ChannelLayout::group_of(p, height, pooled_height);
    const int32_t x = width == pooled_width ? q : ChannelLayout::group_of(q, width, pooled_width);
    return static_cast<int64_t>(y) * width + x;
  }
  // Sets the offsets of a part. Returns false if one is NaN or infinite.
  HOST_DEVICE bool find(int64_t pair, int64_t part, SumOf<T>* y, SumOf<T>* x) const {
    *y = *x = 0;
    if (trans == nullptr) return true;
    const T* offset = trans + pair * 2 * parts() + part;
    const SumOf<T> raw_x = load(offset), raw_y = load(offset + parts());
    // x - x is 0 unless x is NaN or infinite.
    if (!(raw_x - raw_x == 0 && raw_y - raw_y == 0)) return false;
    *x = raw_x * scale;
    *y = raw_y * scale;
    return true;
  }
};

}  // namespace gluon_roi
