// SPDX-License-Identifier: Apache-2.0
// The samples of a deformable convolution: which cells of the map each reads, with which weights.
//
// As in bins.h, the order of operations is that of MXNet, which makes the samples equal bit for
// bit.
#pragma once
#include "../types.h"

namespace gluon_roi {

// The two cells around a sample along one axis.
template <class G>
struct AxisCells {
  int32_t low, high;  // -1: there is none
  G part;             // weight of the high one; the low one has 1 - part
};

// The four cells around a sample, in row-major order. DeformedKernel::none() stands for one that is
// not there, and is 0.
template <class G>
struct SampleCells {
  int32_t cell[4];
  G y, x;  // weights of the lower row and of the right column
};

// Where the kernel's cells lie before they are moved, and how samples end at the map's edge.
struct DeformedKernel {
  int32_t kernel_height, kernel_width;
  int32_t stride_height, stride_width;
  int32_t dilate_height, dilate_width;
  int32_t pad_height, pad_width;
  bool fades;                     // to 0 within a cell around the map
  bool columns;                   // samples of a kernel cell are neighbours, not those of an output
  int32_t height, width;          // of the map
  int64_t out_height, out_width;  // outputs of the convolution

  HOST_DEVICE int32_t map_cells() const { return height * width; }
  HOST_DEVICE int32_t none() const { return map_cells(); }
  HOST_DEVICE int64_t cells() const { return int64_t{kernel_height} * kernel_width; }
  HOST_DEVICE int64_t samples() const { return out_height * out_width * cells(); }

  // The number of a sample, which is its place in a channel of the output: as a map, an image in
  // which each output is kernel_height x kernel_width; as columns, an image for each kernel cell.
  HOST_DEVICE int64_t number(int64_t oy, int64_t ox, int32_t i, int32_t j) const {
    if (columns) return ((int64_t{i} * kernel_width + j) * out_height + oy) * out_width + ox;
    return ((oy * kernel_height + i) * out_width + ox) * kernel_width + j;
  }
  // The samples of a row of outputs have runs of consecutive numbers.
  HOST_DEVICE int64_t runs() const { return columns ? cells() : 1; }
  HOST_DEVICE int64_t run_length() const { return columns ? out_width : out_width * cells(); }
  HOST_DEVICE int64_t run_begin(int64_t run, int64_t oy) const {
    return (run * out_height + oy) * run_length();
  }

  // The sample of output (oy, ox) and kernel cell (i, j). One off the map, or moved by NaN, has no
  // cells.
  template <class G>
  HOST_DEVICE SampleCells<G> find(int64_t oy, int64_t ox, int32_t i, int32_t j, G move_y,
                                  G move_x) const {
    const int64_t from_y = oy * stride_height - pad_height + int64_t{i} * dilate_height;
    const int64_t from_x = ox * stride_width - pad_width + int64_t{j} * dilate_width;
    AxisCells<G> y{-1, -1, 0}, x{-1, -1, 0};
    const bool counts = around(static_cast<G>(from_y) + move_y, height, &y) &&
                        around(static_cast<G>(from_x) + move_x, width, &x);
    return {{cell(counts, y.low, x.low), cell(counts, y.low, x.high), cell(counts, y.high, x.low),
             cell(counts, y.high, x.high)},
            y.part,
            x.part};
  }

 private:
  // False if a sample at this position does not count.
  template <class G>
  HOST_DEVICE bool around(G position, int32_t size, AxisCells<G>* cells) const {
    const G least = static_cast<G>(fades ? -1 : 0);
    const bool inside = fades ? position > least : position >= least;
    if (!(inside && position < static_cast<G>(size))) return false;
    const int32_t last = size - 1;
    const G low = floor(position);
    cells->low = static_cast<int32_t>(low);
    cells->high = cells->low + 1;
    cells->part = position - low;
    if (cells->low >= last) {  // or above it, as sizes beyond 2^24 are rounded
      cells->low = last;
      cells->high = fades ? -1 : last;
      if (!fades) cells->part = 0;
    }
    return true;
  }
  HOST_DEVICE int32_t cell(bool counts, int32_t y, int32_t x) const {
    return counts && y >= 0 && x >= 0 ? y * width + x : none();
  }
};

// The taps of a sample: out is their sum.
template <class G>
struct SampleTaps {
  int32_t cell[4];  // as in SampleCells, but one of weight 0 is not read, and none stands for it
  G weight[4];      // times the mask
};

// The samples of a call and what moves them. A pair is an image and a deformable group; its
// channels share their samples.
template <class T>
struct MovedSamples {
  using G = SumOf<T>;
  DeformedKernel kernel;
  const T *offset, *mask;  // mask may be nullptr

  HOST_DEVICE int64_t outputs() const { return kernel.out_height * kernel.out_width; }
  // Where a sample's mask is; its offsets are at twice the channel and behind it.
  HOST_DEVICE int64_t mask_place(int64_t pair, int64_t oy, int64_t ox, int32_t i, int32_t j) const {
    return channel(pair, i, j) * outputs() + oy * kernel.out_width + ox;
  }
  HOST_DEVICE int64_t offset_place(int64_t pair, int64_t oy, int64_t ox, int32_t i,
                                   int32_t j) const {
    return 2 * channel(pair, i, j) * outputs() + oy * kernel.out_width + ox;
  }
  HOST_DEVICE SampleCells<G> find(int64_t pair, int64_t oy, int64_t ox, int32_t i,
                                  int32_t j) const {
    const T* moves = offset + offset_place(pair, oy, ox, i, j);
    return kernel.find<G>(oy, ox, i, j, load(moves), load(moves + outputs()));
  }
  HOST_DEVICE G mask_of(int64_t pair, int64_t oy, int64_t ox, int32_t i, int32_t j) const {
    return mask == nullptr ? G(1) : load(mask + mask_place(pair, oy, ox, i, j));
  }

  HOST_DEVICE SampleTaps<G> taps(const SampleCells<G>& sample, G mask_value) const {
    SampleTaps<G> taps;
    weights(sample, taps.weight);
    for (int k = 0; k < 4; ++k) {
      const bool read = sample.cell[k] != kernel.none() && taps.weight[k] != 0;
      taps.cell[k] = read ? sample.cell[k] : kernel.none();
      taps.weight[k] = read ? taps.weight[k] * mask_value : G(0);
    }
    return taps;
  }

  // Writes the gradients of a sample's offsets and mask, where these are not nullptr, from the sums
  // over channels of value times gradient for each of the four cells. On a cell, where the surface
  // has a kink, the derivatives by the position are those towards higher positions.
  HOST_DEVICE void store_gradients(int64_t pair, int64_t oy, int64_t ox, int32_t i, int32_t j,
                                   const SampleCells<G>& sample, G* sum, T* d_offset,
                                   T* d_mask) const {
    const G mask_value = mask_of(pair, oy, ox, i, j);
    G weight[4], by_mask = 0;
    weights(sample, weight);
    bool counts = false;
    for (int k = 0; k < 4; ++k) {
      const bool on_map = sample.cell[k] != kernel.none();
      if (!on_map) sum[k] = 0;
      if (weight[k] != 0) by_mask += weight[k] * sum[k];
      counts = counts || on_map;
    }
    const G above = sum[1] - sum[0], below = sum[3] - sum[2];
    const G by_y = ((sum[2] - sum[0]) + sample.x * (below - above)) * mask_value;
    const G by_x = (above + sample.y * (below - above)) * mask_value;
    if (d_offset != nullptr) {
      T* const target = d_offset + offset_place(pair, oy, ox, i, j);
      store(target, counts ? by_y : G(0));
      store(target + outputs(), counts ? by_x : G(0));
    }
    if (d_mask != nullptr) store(d_mask + mask_place(pair, oy, ox, i, j), by_mask);
  }

 private:
  HOST_DEVICE int64_t channel(int64_t pair, int32_t i, int32_t j) const {
    return (pair * kernel.kernel_height + i) * kernel.kernel_width + j;
  }
  HOST_DEVICE static void weights(const SampleCells<G>& sample, G* weight) {
    const G upper = static_cast<G>(1) - sample.y, left = static_cast<G>(1) - sample.x;
    weight[0] = upper * left;
    weight[1] = upper * sample.x;
    weight[2] = sample.y * left;
    weight[3] = sample.y * sample.x;
  }
};

}  // namespace gluon_roi
