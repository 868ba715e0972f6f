// The loops that the CUDA kernels of all operators share: over the outputs of a RoI, forward; over
// the RoIs that touch a tile of the map, backward.
#pragma once
#include "cuda.h"

namespace gluon_roi {

// ---- Forward ------------------------------------------------------------------------------------

// A thread block owns some channels of one RoI. Its threads stand for (channel, p, q) in the order
// of the output, so that what they write is contiguous; each goes on to the channel `groups`
// further, and computes kUnroll of them at once, with the same bin and therefore the same table
// entries.
constexpr int kForwardThreads = 256;
constexpr int kUnroll = 4;
// Tables of a RoI up to this size are read from shared memory, larger ones through the L1 cache.
constexpr int kStageBytes = 8192;

struct ForwardPlan {
  PositionSensitive layout;  // group 1 x 1 where every bin reads its output's own channel
  int64_t data_channels;     // C
  int64_t cells;             // H * W
  int32_t width;             // W
  int32_t outputs;           // P * Q
  int32_t groups;            // output channels that the threads of a block stand for
  int32_t chunk;             // output channels of a block
  int64_t chunks;            // blocks a RoI

  ForwardPlan(const PositionSensitive& channels, const Tensor& data)
      : layout(channels),
        data_channels(data.shape[1]),
        cells(data.shape[2] * data.shape[3]),
        width(static_cast<int32_t>(data.shape[3])),
        outputs(channels.pooled_height * channels.pooled_width) {
    const int64_t wanted = std::max<int64_t>(1, (layout.output_dim + kUnroll - 1) / kUnroll);
    const int64_t fitting = std::max(1, kForwardThreads / outputs);
    groups = static_cast<int32_t>(std::min(wanted, fitting));
    chunk = groups * kUnroll * 2;
    chunks = (layout.output_dim + chunk - 1) / chunk;
  }
  int threads() const {
    return static_cast<int>(std::min<int64_t>(
        kForwardThreads, (static_cast<int64_t>(groups) * outputs + 31) / 32 * 32));
  }
};

// Copies count elements to *room, which moves on, if they fit; returns where to read them.
template <class X>
GR_DEVICE const X* stage(const X* source, int count, char** room, const char* end) {
  const int bytes = (count * static_cast<int>(sizeof(X)) + 15) / 16 * 16;
  if (count > kStageBytes / static_cast<int>(sizeof(X)) || bytes > end - *room) return source;
  X* copy = reinterpret_cast<X*>(*room);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    copy[i] = source[i];
  }
  *room += bytes;
  return copy;
}

// The bins of a RoI, for the two pooling operators: two edges a bin.
struct BinView {
  const int32_t *y, *x;
};
GR_DEVICE BinView stage_bins(const BinTables& tables, int64_t k, char* room, const char* end) {
  const int bins = tables.bins_y + tables.bins_x;
  const int32_t* edges = stage(tables.row_edges(k), 2 * bins, &room, end);
  return BinView{edges, edges + 2 * tables.bins_y};
}

// out[k, c, p, q] = rule of the map that bin (p, q) of output channel c reads. Rule has:
//   tables, kGrouped (false: layout is 1 x 1),
//   stage(k, room, end) -> View of the RoI's tables,
//   pool(view, p, q, width, plane, other[kUnroll], value[kUnroll]): of the map that begins at
//   plane,
//     and of those `other` elements further on. (With a pointer to each map, the compiler
//     multiplies channels by map sizes again for every cell.)
template <class T, class Rule>
__global__ void __launch_bounds__(kForwardThreads)
    forward_kernel(Rule rule, ForwardPlan plan, const T* data, T* out) {
  using A = SumOf<T>;
  const int64_t k = blockIdx.x / plan.chunks;
  const int64_t first = blockIdx.x % plan.chunks * plan.chunk;
  const int64_t channels = plan.layout.output_dim;
  const int64_t stop = first + plan.chunk < channels ? first + plan.chunk : channels;
  const int thread = static_cast<int>(threadIdx.x);
  T* row = out + k * channels * plan.outputs;
  const RoiHead head = rule.tables.heads[k];
  if (head.state != RoiState::kValid) {
    const float nan = bit_cast<float>(0x7fc00000u);
    const A value = head.state == RoiState::kPadding ? A(0) : A(nan);
    for (int64_t i = first * plan.outputs + thread; i < stop * plan.outputs; i += blockDim.x) {
      store(row + i, value);
    }
    return;
  }
  alignas(16) __shared__ char shared[kStageBytes];
  const auto view = rule.stage(k, shared, shared + kStageBytes);
  __syncthreads();

  const int group = thread / plan.outputs;
  if (group >= plan.groups) return;
  const int64_t step = Rule::kGrouped ? static_cast<int64_t>(plan.layout.group_height) *
                                            plan.layout.group_width * plan.cells
                                      : plan.cells;
  const T* image = data + head.image * plan.data_channels * plan.cells;
  // Several rounds only where the bins are more than the threads of a block.
  for (int bin = thread % plan.outputs; bin < plan.outputs; bin += kForwardThreads) {
    const int p = bin / plan.layout.pooled_width, q = bin % plan.layout.pooled_width;
    const T* plane = Rule::kGrouped ? image + plan.layout.channel(0, p, q) * plan.cells : image;
    for (int64_t c = first + group; c < stop; c += kUnroll * plan.groups) {
      int64_t other[kUnroll];
      A value[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        // Past the last channel the first is computed again, and not stored.
        other[u] = c + u * plan.groups < stop ? u * plan.groups * step : 0;
      }
      rule.pool(view, p, q, plan.width, plane + c * step, other, value);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int64_t channel = c + u * plan.groups;
        if (channel < stop) store(row + channel * plan.outputs + bin, value[u]);
      }
    }
  }
}

template <class T, class Rule>
void launch_forward(const char* op, const Gpu& gpu, const Rule& rule,
                    const PositionSensitive& layout, const Tensor& data, const Tensor& out) {
  const ForwardPlan plan(layout, data);
  launch(op, gpu, forward_kernel<T, Rule>, out.shape[0] * plan.chunks, plan.threads(), rule, plan,
         static_cast<const T*>(data.data), static_cast<T*>(out.data));
}

// The channel layout of an operator whose bins all read their output's own channel.
inline PositionSensitive own_channels(int64_t channels, int32_t pooled_height,
                                      int32_t pooled_width) {
  return PositionSensitive{channels, 1, 1, pooled_height, pooled_width};
}

// ---- Backward -----------------------------------------------------------------------------------

// A thread block owns a tile of kTileHeight x kTileWidth cells in kTileChannels channels of one
// image and of one channel group; each of its threads owns one cell, gathers the gradients that
// fall on it from the RoIs in their order, and writes it once.
constexpr int kTileWidth = 16, kTileHeight = 8;
constexpr int kTileThreads = kTileWidth * kTileHeight;
constexpr int kTileChannels = 8;

struct TilePlan {
  PositionSensitive layout;
  int32_t height, width;
  int32_t tiles_y, tiles_x;
  int64_t outputs;  // P * Q
  int64_t chunks;   // blocks of kTileChannels output channels
  int64_t images;

  TilePlan(const PositionSensitive& channels, const Tensor& data)
      : layout(channels),
        height(static_cast<int32_t>(data.shape[2])),
        width(static_cast<int32_t>(data.shape[3])),
        tiles_y((height + kTileHeight - 1) / kTileHeight),
        tiles_x((width + kTileWidth - 1) / kTileWidth),
        outputs(static_cast<int64_t>(layout.pooled_height) * layout.pooled_width),
        chunks((layout.output_dim + kTileChannels - 1) / kTileChannels),
        images(data.shape[0]) {}
  int64_t blocks() const {
    return images * layout.group_height * layout.group_width * chunks * tiles_y * tiles_x;
  }
};

// What this thread owns.
struct Tile {
  int32_t image, group_y, group_x;
  int64_t channel;   // first output channel
  int32_t channels;  // up to kTileChannels
  int32_t y_begin, x_begin;
  int32_t y, x;          // the thread's cell; may lie past the edge of the map
  int64_t offset, step;  // in data: the cell of the first channel, and from one channel to the next
  // In d_out: from the first channel to each; to itself where there is none.
  int64_t channel_offset[kTileChannels];
  bool on_map;

  GR_DEVICE explicit Tile(const TilePlan& plan) {
    // Tiles of one channel block are neighbours: they read the same gradients.
    int64_t rest = blockIdx.x;
    x_begin = static_cast<int32_t>(rest % plan.tiles_x) * kTileWidth;
    rest /= plan.tiles_x;
    y_begin = static_cast<int32_t>(rest % plan.tiles_y) * kTileHeight;
    rest /= plan.tiles_y;
    channel = rest % plan.chunks * kTileChannels;
    rest /= plan.chunks;
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
    for (int i = 0; i < kTileChannels; ++i) channel_offset[i] = i < channels ? i * plan.outputs : 0;
  }
  // Whether the cells [y0, y1) x [x0, x1) touch the tile, or hold the thread's cell.
  GR_DEVICE bool meets(int32_t y0, int32_t y1, int32_t x0, int32_t x1) const {
    return y0 < y1 && x0 < x1 && y0 < y_begin + kTileHeight && y1 > y_begin &&
           x0 < x_begin + kTileWidth && x1 > x_begin;
  }
  GR_DEVICE bool inside(int32_t y0, int32_t y1, int32_t x0, int32_t x1) const {
    return y >= y0 && y < y1 && x >= x0 && x < x1;
  }
};

// Calls body(k) for the rows of an image for which meets(k), in their order. All threads of the
// block take part: each tests one row in kTileThreads, then all walk over the rows that passed.
// body may use barriers.
template <class Meets, class Body>
GR_DEVICE void for_each_roi(const RoiLists& lists, int32_t image, const Meets& meets,
                            const Body& body) {
  __shared__ uint8_t passed[kTileThreads];
  __shared__ uint32_t words[kTileThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t stop = lists.begin[image + 1];
  for (int32_t base = lists.begin[image]; base < stop; base += kTileThreads) {
    const int32_t at = base + thread;
    passed[thread] = at < stop && meets(static_cast<int64_t>(lists.order[at]));
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

// Adds weight * d_out[k, channel + i, bin] to sum[i] for the channels of the tile; what lies behind
// them in sum is of no use.
template <class T, class A>
GR_DEVICE void add_gradients(const Tile& tile, const TilePlan& plan, const T* d_out, int64_t k,
                             int64_t bin, A weight, A* sum) {
  const T* source = d_out + (k * plan.layout.output_dim + tile.channel) * plan.outputs + bin;
#pragma unroll
  for (int i = 0; i < kTileChannels; ++i) {
    sum[i] += weight * load(source + tile.channel_offset[i]);
  }
}

template <class T, class A>
GR_DEVICE void store_tile(const Tile& tile, const A* sum, T* d_data) {
  if (!tile.on_map) return;
#pragma unroll
  for (int i = 0; i < kTileChannels; ++i) {
    if (i < tile.channels) store(d_data + tile.offset + i * tile.step, sum[i]);
  }
}

}  // namespace gluon_roi
