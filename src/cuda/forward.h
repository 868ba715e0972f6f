// SPDX-License-Identifier: Apache-2.0
// The forward loop of the CUDA kernels, over the outputs of a RoI.
#pragma once
#include "../core/geometry/channels.h"
#include "tables.h"

namespace gluon_roi::cuda {

// A thread block computes `block_channels` channels of one RoI. Its threads are mapped to (channel,
// p, q) in the order of the output, so their writes are contiguous, for `channels_at_once`
// channels. Each thread then continues with the channel that is this many further, and computes
// kUnroll of them at once, which share the bin and therefore the table entries.
constexpr int kForwardThreads = 256;
constexpr int kUnroll = 4;
// Tables of a RoI up to this size are copied to shared memory; larger ones are read through the L1
// cache.
constexpr int kStageBytes = 8192;

struct ForwardPlan {
  ChannelLayout layout;      // groups are 1 x 1 if the operator is not position-sensitive
  int64_t data_channels;     // C
  int64_t cells;             // H * W
  int32_t width;             // W
  int32_t bins;              // P * Q
  int32_t channels_at_once;  // output channels that the threads of a block are mapped to
  int32_t block_channels;    // output channels of a block
  int64_t channel_blocks;    // blocks per RoI
  int32_t map;               // index of the map; RoIs of other maps are skipped
  int64_t first;             // row of rois for row 0 of out; > 0 for the lists after the first

  ForwardPlan(const ChannelLayout& channels, const Tensor& data, int32_t map_number = 0,
              int64_t first_row = 0)
      : layout(channels),
        data_channels(data.shape[1]),
        cells(data.shape[2] * data.shape[3]),
        width(static_cast<int32_t>(data.shape[3])),
        bins(channels.pooled_height * channels.pooled_width),
        map(map_number),
        first(first_row) {
    const int64_t wanted = std::max<int64_t>(1, div_up(layout.output_dim, kUnroll));
    const int64_t fitting = std::max(1, kForwardThreads / bins);
    channels_at_once = static_cast<int32_t>(std::min(wanted, fitting));
    block_channels = channels_at_once * kUnroll * 2;
    channel_blocks = div_up(layout.output_dim, block_channels);
  }
  int threads() const {
    return static_cast<int>(
        std::min<int64_t>(kForwardThreads, round_up(int64_t{channels_at_once} * bins, 32)));
  }
};

// Copies `count` elements to *buffer and advances it, if they fit. Returns the pointer to read
// from.
template <class X>
DEVICE_INLINE X* stage(X* source, int count, char** buffer, const char* end) {
  const int bytes = round_up(count * static_cast<int>(sizeof(X)), 16);
  if (count > kStageBytes / static_cast<int>(sizeof(X)) || bytes > end - *buffer) return source;
  X* copy = reinterpret_cast<X*>(*buffer);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    copy[i] = source[i];
  }
  *buffer += bytes;
  return copy;
}

// out[k, c, p, q] = rule of the map that bin (p, q) of output channel c reads; or, for the lists
// after the first, that is added. Rule has:
//   tables, kGrouped (false: layout is 1 x 1),
//   stage(k, buffer, end) -> View of the RoI's tables,
//   pool(view, p, q, width, plane, other[kUnroll], value[kUnroll]): value, which is 0, becomes that
//     of the map at plane, and of those `other` elements further on. (With a pointer to each map,
//     the compiler would multiply channels by map sizes for every cell.)
template <class T, class Rule>
__global__ void __launch_bounds__(kForwardThreads)
    forward_kernel(Rule rule, ForwardPlan plan, const T* data, T* out) {
  using A = SumOf<T>;
  const int64_t k = blockIdx.x / plan.channel_blocks;
  const int64_t first = blockIdx.x % plan.channel_blocks * plan.block_channels;
  const int64_t channels = plan.layout.output_dim;
  const int64_t stop =
      first + plan.block_channels < channels ? first + plan.block_channels : channels;
  const int thread = static_cast<int>(threadIdx.x);
  T* row = out + k * channels * plan.bins;
  const RoiExtent extent = rule.tables.extents[plan.first + k];
  if (plan.first == 0 && extent.map != plan.map) return;
  // 1. Rows that belong to no image.
  if (extent.state != RoiState::kValid) {
    if (plan.first > 0 && extent.state == RoiState::kPadding) return;
    const float nan = bit_cast<float>(0x7fc00000u);
    const A value = extent.state == RoiState::kPadding ? A(0) : A(nan);
    for (int64_t i = first * plan.bins + thread; i < stop * plan.bins; i += blockDim.x) {
      store(row + i, value);
    }
    return;
  }
  // 2. The RoI's tables, in shared memory.
  alignas(16) __shared__ char shared[kStageBytes];
  const auto view = rule.stage(plan.first + k, shared, shared + kStageBytes);
  __syncthreads();

  // 3. The outputs of this thread.
  const int group = thread / plan.bins;
  if (group >= plan.channels_at_once) return;
  const int64_t step = Rule::kGrouped ? static_cast<int64_t>(plan.layout.group_height) *
                                            plan.layout.group_width * plan.cells
                                      : plan.cells;
  const T* image = data + extent.image * plan.data_channels * plan.cells;
  // More than one round only if there are more bins than threads in a block.
  for (int bin = thread % plan.bins; bin < plan.bins; bin += kForwardThreads) {
    const int p = bin / plan.layout.pooled_width, q = bin % plan.layout.pooled_width;
    const T* plane = Rule::kGrouped ? image + plan.layout.channel(0, p, q) * plan.cells : image;
    for (int64_t c = first + group; c < stop; c += kUnroll * plan.channels_at_once) {
      int64_t other[kUnroll];
      A value[kUnroll] = {};
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        // Past the last channel, the first is computed again but not stored.
        other[u] = c + u * plan.channels_at_once < stop ? u * plan.channels_at_once * step : 0;
      }
      rule.pool(view, p, q, plan.width, plane + c * step, other, value);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t channel = c + u * plan.channels_at_once;
        if (channel >= stop) continue;
        T* const to = row + channel * plan.bins + bin;
        store(to, plan.first > 0 ? load(to) + value[u] : value[u]);
      }
    }
  }
}

template <class T, class Rule>
void launch_forward(const Gpu& gpu, const Rule& rule, const ChannelLayout& layout,
                    const Tensor& data, const Tensor& out, int32_t map = 0, int64_t first_row = 0) {
  const ForwardPlan plan(layout, data, map, first_row);
  launch(gpu, forward_kernel<T, Rule>, out.shape[0] * plan.channel_blocks, plan.threads(), rule,
         plan, data_of<const T>(data), data_of<T>(out));
}

}  // namespace gluon_roi::cuda
