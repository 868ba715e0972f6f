// SPDX-License-Identifier: Apache-2.0
// The samples of DeformablePSROIPool: their positions, the cells that each reads, their offsets.
//
// As in bins.h, the order of operations is that of MXNet, so the positions are equal bit for bit.
#pragma once
#include "bins.h"
#include "channels.h"

namespace gluon_roi {

// A cell that a bin reads along one axis: samples that share it are merged.
template <class G>
struct PartTap {
  int32_t cell;
  G weight;  // the sum of the samples' bilinear weights, above 0
  G slope;   // its derivative by the position of the samples
};

// One axis of a RoI, split into bins of `samples` evenly spaced samples each; the first sample lies
// on the edge of the bin. G is float, or double for float64 data.
template <class G>
struct PartAxis {
  G start;   // of bin 0, in map cells
  G length;  // cells of the box, at least 0.1
  G bin;     // cells per bin
  G step;    // cells from a sample to the next, above 0
  int32_t samples;
  int32_t size;  // cells of the map along this axis

  HOST_DEVICE static PartAxis make(G lo, G hi, double spatial_scale, int bins, int32_t samples,
                                   int32_t size) {
    const G scale = narrow<G>(spatial_scale), half = static_cast<G>(0.5);
    const G least = static_cast<G>(0.1);
    PartAxis axis;
    axis.start = saturate(round_half_away(lo) * scale - half);
    const G end = saturate((round_half_away(hi) + static_cast<G>(1)) * scale - half);
    axis.length = end - axis.start > least ? end - axis.start : least;
    axis.bin = axis.length / static_cast<G>(bins);
    axis.step = axis.bin / static_cast<G>(samples);
    axis.samples = samples;
    axis.size = size;
    return axis;
  }

  // Map coordinate of the first sample of bin q, moved by `offset` lengths of the box. It increases
  // with q and with offset.
  HOST_DEVICE G first_sample(int q, G offset) const {
    return static_cast<G>(q) * bin + start + offset * length;
  }

  // Sample i of the bin with this first sample. Returns whether it is on the map. It lies between
  // *cell, with weight 1 - *high_weight, and the next cell.
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

  // Calls emit(PartTap) for the cells that the samples of a bin read, in ascending order. Returns
  // the number of samples on the map, by which the caller divides the weights.
  template <class Emit>
  HOST_DEVICE int32_t for_each_tap(G first, const Emit& emit) const {
    // Samples ascend, so two running sums suffice: for the two cells of the latest sample.
    PartTap<G> low{0, 0, 0}, high{1, 0, 0};
    int32_t count = 0;
    for (int32_t i = 0; i <= samples; ++i) {
      int32_t cell = 0;
      G high_weight = 0;
      const bool at_end = i == samples;
      if (!at_end && !sample(first, i, &cell, &high_weight)) continue;
      while (low.weight > 0 && (at_end || low.cell != cell)) {
        emit(low);
        low = high;
        high = PartTap<G>{low.cell + 1, 0, 0};
      }
      if (at_end) break;
      ++count;
      low.cell = cell;
      high.cell = cell + 1;
      low.weight += static_cast<G>(1) - high_weight;
      // On a cell the surface has a kink; its derivative counts as 0, as at the border.
      if (high_weight > 0) {
        high.weight += high_weight;
        low.slope -= static_cast<G>(1);
        high.slope += static_cast<G>(1);
      }
    }
    return count;
  }

  // The weight of one cell in for_each_tap, and in *count the number that it returns.
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

  // [*begin, *end) holds all cells of bins whose first samples lie in [from, to].
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

// The offsets of the bins of each pair of a RoI and a class, in lengths of the box.
template <class T>
struct PartOffsets {
  const T* trans;         // (pairs, 2, height, width): x, then y; nullptr: no offsets
  int32_t height, width;  // parts
  int32_t pooled_height, pooled_width;
  SumOf<T> scale;  // trans_std

  // Map cells by which a part moves along an axis per unit of trans. It is never infinite, which
  // would make NaN of a gradient of 0.
  HOST_DEVICE SumOf<T> gradient_scale(const PartAxis<SumOf<T>>& axis) const {
    return narrow<SumOf<T>>(static_cast<double>(scale) * axis.length);
  }

  HOST_DEVICE int64_t parts() const { return static_cast<int64_t>(height) * width; }
  // The part of bin (p, q).
  HOST_DEVICE int64_t part_of(int p, int q) const {
    // Usually the parts are the bins, and 64-bit divisions are slow.
    const int32_t y =
        height == pooled_height ? p : PositionSensitive::group_of(p, height, pooled_height);
    const int32_t x =
        width == pooled_width ? q : PositionSensitive::group_of(q, width, pooled_width);
    return static_cast<int64_t>(y) * width + x;
  }
  // The offsets of a part; false if one is NaN or infinite.
  HOST_DEVICE bool find(int64_t pair, int64_t part, SumOf<T>* y, SumOf<T>* x) const {
    *y = *x = 0;
    if (trans == nullptr) return true;
    const T* offset = trans + pair * 2 * parts() + part;
    const SumOf<T> raw_x = load(offset), raw_y = load(offset + parts());
    // A difference with itself is 0 unless it is NaN or infinite.
    if (!(raw_x - raw_x == 0 && raw_y - raw_y == 0)) return false;
    *x = raw_x * scale;
    *y = raw_y * scale;
    return true;
  }
};

}  // namespace gluon_roi
