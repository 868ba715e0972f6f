// SPDX-License-Identifier: Apache-2.0
// The backward pass searches for the maxima again instead of storing their indices.
#include "../cuda/pool.h"
#include "roi_pool.h"

namespace gluon_roi {
namespace cuda {
namespace {

template <class T>
struct MaxRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = false;
  BinTable tables;

  DEVICE_INLINE BinView stage(int64_t k, char* buffer, const char* end) const {
    return stage_bins(tables, k, buffer, end);
  }
  DEVICE_INLINE void pool(const BinView& view, int p, int q, int width, const T* plane,
                          const int64_t* other, A* value) const {
    const int32_t y_begin = view.y[2 * p], y_end = view.y[2 * p + 1];
    const int32_t x_begin = view.x[2 * q], x_end = view.x[2 * q + 1];
    constexpr A kStart = kLowest<T>;
    const A start = y_begin < y_end && x_begin < x_end ? kStart : A(0);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] = start;
    for (int32_t y = y_begin; y < y_end; ++y) {
      const T* line = plane + static_cast<int64_t>(y) * width;
      for (int32_t x = x_begin; x < x_end; ++x) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const A cell = load(line + x + other[u]);
          if (cell > value[u]) value[u] = cell;
        }
      }
    }
  }
};

// The number of bins whose edge is at or before the cell, by binary search: edges increase with the
// bin.
DEVICE_INLINE int edges_up_to(const int32_t* edges, int axis_bins, int32_t cell) {
  int low = 0, high = axis_bins;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (edges[2 * middle] <= cell) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The bins [begin, end) that intersect the cells [first, last].
struct BinRange {
  int begin, end;
  DEVICE_INLINE BinRange(const int32_t* edges, int axis_bins, int32_t first, int32_t last)
      : begin(edges_up_to(edges + 1, axis_bins, first)), end(edges_up_to(edges, axis_bins, last)) {}
  DEVICE_INLINE int count() const { return end > begin ? end - begin : 0; }
};

// The number of bins whose maxima are computed between two barriers, in kTileChannels channels.
constexpr int kBinBatch = 64;

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(BinTable tables, RoiLists lists, TilePlan plan, const T* data, const T* d_out,
                    T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t cells = static_cast<int64_t>(plan.height) * plan.width;
  const T* planes = data + (tile.image * plan.layout.output_dim + tile.channel) * cells;
  // For each channel and bin: the thread whose cell is the maximum (or -1), and the output's
  // gradient.
  __shared__ int16_t winner[kTileChannels][kBinBatch];
  __shared__ A d_bin[kTileChannels][kBinBatch];
  A sum[kTileChannels] = {};

  const auto meets = [&](int64_t k) { return tile.meets(tables.extents[k]); };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    const int32_t *y_edges = tables.row_edges(k), *x_edges = tables.column_edges(k);
    const BinRange rows(y_edges, tables.pooled_height, tile.y_begin,
                        tile.y_begin + kTileHeight - 1);
    const BinRange columns(x_edges, tables.pooled_width, tile.x_begin,
                           tile.x_begin + kTileWidth - 1);
    const BinRange cell_rows(y_edges, tables.pooled_height, tile.y, tile.y);
    const BinRange cell_columns(x_edges, tables.pooled_width, tile.x, tile.x);
    const T* d_roi = d_out + (k * plan.layout.output_dim + tile.channel) * plan.bins;
    const int tile_bins = rows.count() * columns.count();
    for (int first = 0; first < tile_bins; first += kBinBatch) {
      // 1. Find the maxima of a batch of bins, with a thread for each bin and channel.
      const int batch = tile_bins - first < kBinBatch ? tile_bins - first : kBinBatch;
      for (int task = thread; task < batch * tile.channels; task += kTileThreads) {
        const int channel = task / batch, n = task % batch;
        const int p = rows.begin + (first + n) / columns.count();
        const int q = columns.begin + (first + n) % columns.count();
        const T* plane = planes + channel * cells;
        A best = kLowest<T>;
        int32_t best_y = -1, best_x = -1;
        for (int32_t y = y_edges[2 * p]; y < y_edges[2 * p + 1]; ++y) {
          const T* line = plane + static_cast<int64_t>(y) * plan.width;
          for (int32_t x = x_edges[2 * q]; x < x_edges[2 * q + 1]; ++x) {
            const A cell = load(line + x);
            if (!(cell > best)) continue;
            best = cell;
            best_y = y;
            best_x = x;
          }
        }
        best_y -= tile.y_begin;
        best_x -= tile.x_begin;
        const bool in_tile =
            best_y >= 0 && best_y < kTileHeight && best_x >= 0 && best_x < kTileWidth;
        winner[channel][n] = static_cast<int16_t>(in_tile ? best_y * kTileWidth + best_x : -1);
        d_bin[channel][n] =
            load(d_roi + channel * plan.bins + static_cast<int64_t>(p) * tables.pooled_width + q);
      }
      __syncthreads();
      // 2. Add the gradients of the bins whose maximum is this thread's cell.
      for (int p = cell_rows.begin; p < cell_rows.end; ++p) {
        for (int q = cell_columns.begin; q < cell_columns.end; ++q) {
          const int n = (p - rows.begin) * columns.count() + (q - columns.begin) - first;
          if (n < 0 || n >= batch) continue;
#pragma unroll
          for (int i = 0; i < kTileChannels; ++i) {
            if (i < tile.channels && winner[i][n] == thread) sum[i] += d_bin[i][n];
          }
        }
      }
      __syncthreads();
    }
  });
  store_tile(tile, sum, d_data);
}

}  // namespace

template <class T>
struct Call<ROIPool, T> : PoolCall<ROIPool, T> {
  using PoolCall<ROIPool, T>::PoolCall;

  void forward(const Gpu& gpu, const Tensor& out) const {
    this->pool(gpu, MaxRule<T>{this->tables}, out);
  }
  void backward(const Gpu& gpu, const Tensor& d_out, const RoiArrays& d) const {
    this->pool_backward(gpu, backward_kernel<T>, d_out, d);
  }
};

}  // namespace cuda

template struct CudaKernels<ROIPool>;

}  // namespace gluon_roi
