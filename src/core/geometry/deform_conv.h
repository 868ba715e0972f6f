// SPDX-License-Identifier: Apache-2.0
// The sampling of a deformable convolution: the cells and weights that each sample reads.
//
// As in bins.h, the order of operations is MXNet's, so the samples are equal bit for bit.
#pragma once
#include "../types.h"

namespace gluon_roi {

// The two cells around a sample along one axis.
template <class G>
struct AxisCells {
  int32_t low, high;  // -1: outside the map
  G high_weight;      // the weight of `low` is 1 - high_weight
};

// The four cells around a sample, in row-major order. The index no_cell(), which is H * W, marks a
// cell outside the map; its value is 0.
template <class G>
struct SampleCells {
  int32_t cell[4];
  G high_y, high_x;  // weights of the cells with the higher y, and with the higher x
};

// The geometry of the convolution: the positions of the kernel's cells before offsets are added,
// and the treatment of samples at the map's border.
struct DeformKernel {
  int32_t kernel_height, kernel_width;
  int32_t stride_height, stride_width;
  int32_t dilate_height, dilate_width;
  int32_t pad_height, pad_width;
  bool zero_border;       // the map is padded with zeros, so samples decrease to 0 within one cell
  bool columns;           // output layout "columns" instead of "map"
  int32_t height, width;  // of the map
  int64_t out_height, out_width;  // outputs of the convolution

  HOST_DEVICE int32_t map_cells() const { return height * width; }
  HOST_DEVICE int32_t no_cell() const { return map_cells(); }
  HOST_DEVICE int64_t cells() const { return int64_t{kernel_height} * kernel_width; }
  HOST_DEVICE int64_t samples() const { return out_height * out_width * cells(); }

  // The index of a sample in a channel of the output. In layout "map", each output position is a
  // block of kernel_height x kernel_width samples of one image; in layout "columns", there is an
  // image of output positions for each kernel cell.
  HOST_DEVICE int64_t sample_index(int64_t oy, int64_t ox, int32_t i, int32_t j) const {
    if (columns) return ((int64_t{i} * kernel_width + j) * out_height + oy) * out_width + ox;
    return ((oy * kernel_height + i) * out_width + ox) * kernel_width + j;
  }
  // The samples of a row of output positions form runs of consecutive indices.
  HOST_DEVICE int64_t runs() const { return columns ? cells() : 1; }
  HOST_DEVICE int64_t run_length() const { return columns ? out_width : out_width * cells(); }
  HOST_DEVICE int64_t run_begin(int64_t run, int64_t oy) const {
    return (run * out_height + oy) * run_length();
  }

  // The sample at output position (oy, ox) and kernel cell (i, j). A sample outside the map, or
  // with a NaN offset, has no cells.
  template <class G>
  HOST_DEVICE SampleCells<G> find(int64_t oy, int64_t ox, int32_t i, int32_t j, G offset_y,
                                  G offset_x) const {
    const int64_t from_y = oy * stride_height - pad_height + int64_t{i} * dilate_height;
    const int64_t from_x = ox * stride_width - pad_width + int64_t{j} * dilate_width;
    AxisCells<G> y{-1, -1, 0}, x{-1, -1, 0};
    const bool valid = cells_around(static_cast<G>(from_y) + offset_y, height, &y) &&
                       cells_around(static_cast<G>(from_x) + offset_x, width, &x);
    return {{cell(valid, y.low, x.low), cell(valid, y.low, x.high), cell(valid, y.high, x.low),
             cell(valid, y.high, x.high)},
            y.high_weight,
            x.high_weight};
  }

 private:
  // Sets the cells around a position. Returns false if a sample there is 0.
  template <class G>
  HOST_DEVICE bool cells_around(G position, int32_t size, AxisCells<G>* cells) const {
    const G lowest = static_cast<G>(zero_border ? -1 : 0);
    const bool inside = zero_border ? position > lowest : position >= lowest;
    if (!(inside && position < static_cast<G>(size))) return false;
    const int32_t last = size - 1;
    const G low = floor(position);
    cells->low = static_cast<int32_t>(low);
    cells->high = cells->low + 1;
    cells->high_weight = position - low;
    if (cells->low >= last) {  // `low` may exceed it, because sizes beyond 2^24 are rounded
      cells->low = last;
      cells->high = zero_border ? -1 : last;
      if (!zero_border) cells->high_weight = 0;
    }
    return true;
  }
  HOST_DEVICE int32_t cell(bool valid, int32_t y, int32_t x) const {
    return valid && y >= 0 && x >= 0 ? y * width + x : no_cell();
  }
};

// Cells and weights of a sample, whose value is the weighted sum.
template <class G>
struct SampleTaps {
  int32_t cell[4];  // as in SampleCells; a cell of weight 0 is not read and becomes no_cell()
  G weight[4];      // multiplied by the mask
};

// The samples of a call with their offsets and masks. A pair is an image and a deformable group,
// whose channels share the same samples.
template <class T>
struct DeformSampler {
  using G = SumOf<T>;
  DeformKernel kernel;
  const T *offset, *mask;  // mask may be nullptr

  HOST_DEVICE int64_t outputs() const { return kernel.out_height * kernel.out_width; }
  // The index of a sample's mask, and of its y offset; the x offset is in the next channel.
  HOST_DEVICE int64_t mask_index(int64_t pair, int64_t oy, int64_t ox, int32_t i, int32_t j) const {
    return channel(pair, i, j) * outputs() + oy * kernel.out_width + ox;
  }
  HOST_DEVICE int64_t offset_index(int64_t pair, int64_t oy, int64_t ox, int32_t i,
                                   int32_t j) const {
    return 2 * channel(pair, i, j) * outputs() + oy * kernel.out_width + ox;
  }
  HOST_DEVICE SampleCells<G> find(int64_t pair, int64_t oy, int64_t ox, int32_t i,
                                  int32_t j) const {
    const T* offsets = offset + offset_index(pair, oy, ox, i, j);
    return kernel.find<G>(oy, ox, i, j, load(offsets), load(offsets + outputs()));
  }
  HOST_DEVICE G mask_of(int64_t pair, int64_t oy, int64_t ox, int32_t i, int32_t j) const {
    return mask == nullptr ? G(1) : load(mask + mask_index(pair, oy, ox, i, j));
  }

  HOST_DEVICE SampleTaps<G> taps(const SampleCells<G>& sample, G mask_value) const {
    SampleTaps<G> taps;
    weights(sample, taps.weight);
    for (int k = 0; k < 4; ++k) {
      const bool read = sample.cell[k] != kernel.no_cell() && taps.weight[k] != 0;
      taps.cell[k] = read ? sample.cell[k] : kernel.no_cell();
      taps.weight[k] = read ? taps.weight[k] * mask_value : G(0);
    }
    return taps;
  }

  // Writes the gradients of a sample's offsets and mask, unless the pointer is nullptr. sum[k] is
  // the sum over channels of the value of cell k times the output gradient. On a cell, where the
  // bilinear surface has a kink, this is the derivative towards higher positions.
  HOST_DEVICE void store_gradients(int64_t pair, int64_t oy, int64_t ox, int32_t i, int32_t j,
                                   const SampleCells<G>& sample, G* sum, T* d_offset,
                                   T* d_mask) const {
    const G mask_value = mask_of(pair, oy, ox, i, j);
    G weight[4], by_mask = 0;
    weights(sample, weight);
    bool valid = false;
    for (int k = 0; k < 4; ++k) {
      const bool on_map = sample.cell[k] != kernel.no_cell();
      if (!on_map) sum[k] = 0;
      if (weight[k] != 0) by_mask += weight[k] * sum[k];
      valid = valid || on_map;
    }
    const G above = sum[1] - sum[0], below = sum[3] - sum[2];
    const G by_y = ((sum[2] - sum[0]) + sample.high_x * (below - above)) * mask_value;
    const G by_x = (above + sample.high_y * (below - above)) * mask_value;
    if (d_offset != nullptr) {
      T* const target = d_offset + offset_index(pair, oy, ox, i, j);
      store(target, valid ? by_y : G(0));
      store(target + outputs(), valid ? by_x : G(0));
    }
    if (d_mask != nullptr) store(d_mask + mask_index(pair, oy, ox, i, j), by_mask);
  }

 private:
  HOST_DEVICE int64_t channel(int64_t pair, int32_t i, int32_t j) const {
    return (pair * kernel.kernel_height + i) * kernel.kernel_width + j;
  }
  HOST_DEVICE static void weights(const SampleCells<G>& sample, G* weight) {
    const G upper = static_cast<G>(1) - sample.high_y, left = static_cast<G>(1) - sample.high_x;
    weight[0] = upper * left;
    weight[1] = upper * sample.high_x;
    weight[2] = sample.high_y * left;
    weight[3] = sample.high_y * sample.high_x;
  }
};

}  // namespace gluon_roi
