// SPDX-License-Identifier: Apache-2.0
// The backward loop of the CUDA kernels, over the RoIs that touch a tile of the map.
#pragma once
#include "../core/geometry/channels.h"
#include "tables.h"

namespace gluon_roi::cuda {

// A thread block owns a tile of kTileHeight x kTileWidth cells in kTileChannels channels of one
// image and one channel group. Each thread owns one cell, sums the gradients of the RoIs that read
// it in their order, and writes the result once.
constexpr int kTileWidth = 16, kTileHeight = 8;
constexpr int kTileThreads = kTileWidth * kTileHeight;
constexpr int kTileChannels = 8;

struct TilePlan {
  ChannelLayout layout;
  int32_t height, width;
  int32_t tiles_y, tiles_x;
  int64_t bins;            // P * Q
  int64_t channel_blocks;  // number of blocks of kTileChannels output channels
  int64_t images;

  TilePlan(const ChannelLayout& channels, const Tensor& data)
      : layout(channels),
        height(static_cast<int32_t>(data.shape[2])),
        width(static_cast<int32_t>(data.shape[3])),
        tiles_y(div_up(height, kTileHeight)),
        tiles_x(div_up(width, kTileWidth)),
        bins(layout.bins()),
        channel_blocks(div_up(layout.output_dim, kTileChannels)),
        images(data.shape[0]) {}
  int64_t blocks() const {
    return images * layout.group_height * layout.group_width * channel_blocks * tiles_y * tiles_x;
  }
};

// The tile of this thread block, and the cell of this thread.
struct Tile {
  int32_t image, group_y, group_x;
  int64_t channel;   // first output channel
  int32_t channels;  // up to kTileChannels
  int32_t y_begin, x_begin;
  int32_t y, x;  // the thread's cell, which may lie outside the map
  int64_t offset,
      step;  // in data: offset of the cell in the first channel, and distance between channels
  // In d_out: the offset from the first channel to channel i, or 0 if there is none.
  int64_t channel_offset[kTileChannels];
  bool on_map;

  DEVICE_INLINE explicit Tile(const TilePlan& plan) {
    // Tiles of the same channels have adjacent block indices, because they read the same gradients.
    int64_t rest = blockIdx.x;
    x_begin = static_cast<int32_t>(rest % plan.tiles_x) * kTileWidth;
    rest /= plan.tiles_x;
    y_begin = static_cast<int32_t>(rest % plan.tiles_y) * kTileHeight;
    rest /= plan.tiles_y;
    channel = rest % plan.channel_blocks * kTileChannels;
    rest /= plan.channel_blocks;
    group_x = static_cast<int32_t>(rest % plan.layout.group_width);
    rest /= plan.layout.group_width;
    group_y = static_cast<int32_t>(rest % plan.layout.group_height);
    image = static_cast<int32_t>(rest / plan.layout.group_height);
    const int64_t left = plan.layout.output_dim - channel;
    channels = static_cast<int32_t>(left < kTileChannels ? left : kTileChannels);
    y = y_begin + static_cast<int32_t>(threadIdx.x) / kTileWidth;
    x = x_begin + static_cast<int32_t>(threadIdx.x) % kTileWidth;
    on_map = y < plan.height && x < plan.width;
    const int64_t groups = static_cast<int64_t>(plan.layout.group_height) * plan.layout.group_width;
    const int64_t cells = static_cast<int64_t>(plan.height) * plan.width;
    const int64_t map = (image * plan.layout.output_dim + channel) * groups +
                        static_cast<int64_t>(group_y) * plan.layout.group_width + group_x;
    offset = map * cells + static_cast<int64_t>(y) * plan.width + x;
    step = groups * cells;
#pragma unroll
    for (int i = 0; i < kTileChannels; ++i) channel_offset[i] = i < channels ? i * plan.bins : 0;
  }
  // Whether the cells [y0, y1) x [x0, x1) intersect the tile, and whether they contain the thread's
  // cell.
  DEVICE_INLINE bool meets(int32_t y0, int32_t y1, int32_t x0, int32_t x1) const {
    return y0 < y1 && x0 < x1 && y0 < y_begin + kTileHeight && y1 > y_begin &&
           x0 < x_begin + kTileWidth && x1 > x_begin;
  }
  DEVICE_INLINE bool inside(int32_t y0, int32_t y1, int32_t x0, int32_t x1) const {
    return y >= y0 && y < y1 && x >= x0 && x < x1;
  }
  // The same for the extent of a RoI.
  DEVICE_INLINE bool meets(const RoiExtent& roi) const {
    return meets(roi.y_begin, roi.y_end, roi.x_begin, roi.x_end);
  }
  DEVICE_INLINE bool inside(const RoiExtent& roi) const {
    return inside(roi.y_begin, roi.y_end, roi.x_begin, roi.x_end);
  }
  // The bins that read the tile's channel group.
  DEVICE_INLINE BinBlock bin_block(const ChannelLayout& layout) const {
    return layout.bins_of(group_y, group_x, layout.group_height, layout.group_width);
  }
};

// Calls body(k) for the rows of an image for which meets(k) is true, in their order. All threads of
// the block take part: each tests one of kTileThreads rows, then all of them walk over the rows
// that passed. body may use barriers.
template <class Meets, class Body>
DEVICE_INLINE void for_each_roi(const RoiLists& lists, int32_t image, const Meets& meets,
                                const Body& body) {
  __shared__ uint8_t passed[kTileThreads];
  __shared__ uint32_t words[kTileThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t stop = lists.begin[image + 1];
  for (int32_t base = lists.begin[image]; base < stop; base += kTileThreads) {
    const int32_t place = base + thread;
    passed[thread] = place < stop && meets(static_cast<int64_t>(lists.order[place]));
    __syncthreads();
    if (thread < kTileThreads / 32) {
      uint32_t word = 0;
      for (int bit = 0; bit < 32; ++bit) {
        word |= static_cast<uint32_t>(passed[thread * 32 + bit]) << bit;
      }
      words[thread] = word;
    }
    __syncthreads();
    for (int i = 0; i < kTileThreads / 32; ++i) {
      for (uint32_t word = words[i]; word != 0; word &= word - 1) {
        body(static_cast<int64_t>(lists.order[base + i * 32 + __ffs(word) - 1]));
      }
    }
  }
}

// Adds weight * d_out[k, channel + i, bin] to sum[i] for the channels of the tile; the other
// elements of sum are undefined.
template <class T, class A>
DEVICE_INLINE void add_gradients(const Tile& tile, const TilePlan& plan, const T* d_out, int64_t k,
                                 int64_t bin, A weight, A* sum) {
  const T* from = d_out + (k * plan.layout.output_dim + tile.channel) * plan.bins + bin;
#pragma unroll
  for (int i = 0; i < kTileChannels; ++i) {
    sum[i] += weight * load(from + tile.channel_offset[i]);
  }
}

template <class T, class A>
DEVICE_INLINE void store_tile(const Tile& tile, const A* sum, T* d_data) {
  if (!tile.on_map) return;
#pragma unroll
  for (int i = 0; i < kTileChannels; ++i) {
    if (i < tile.channels) store(d_data + tile.offset + i * tile.step, sum[i]);
  }
}

}  // namespace gluon_roi::cuda
