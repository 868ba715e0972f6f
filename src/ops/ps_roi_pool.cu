// SPDX-License-Identifier: Apache-2.0
// In the backward pass a tile belongs to one channel group, which only the bins of that group read.
#include "../cuda/pool.h"
#include "ps_roi_pool.h"

namespace gluon_roi {
namespace cuda {
namespace {

template <class T>
struct MeanRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = true;
  BinTable tables;

  DEVICE_INLINE BinView stage(int64_t k, char* buffer, const char* end) const {
    return stage_bins(tables, k, buffer, end);
  }
  DEVICE_INLINE void pool(const BinView& view, int p, int q, int width, const T* plane,
                          const int64_t* other, A* value) const {
    const int32_t y_begin = view.y[2 * p], y_end = view.y[2 * p + 1];
    const int32_t x_begin = view.x[2 * q], x_end = view.x[2 * q + 1];
    if (y_begin >= y_end || x_begin >= x_end) return;
    for (int32_t y = y_begin; y < y_end; ++y) {
      const T* line = plane + static_cast<int64_t>(y) * width;
      for (int32_t x = x_begin; x < x_end; ++x) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) value[u] += load(line + x + other[u]);
      }
    }
    const A area = static_cast<A>(static_cast<int64_t>(y_end - y_begin) * (x_end - x_begin));
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] /= area;
  }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(BinTable tables, RoiLists lists, TilePlan plan, const T*, const T* d_out,
                    T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  const ChannelLayout& layout = plan.layout;
  const BinBlock block = tile.bin_block(layout);
  A sum[kTileChannels] = {};

  const auto meets = [&](int64_t k) {
    if (block.p_begin == block.p_end || block.q_begin == block.q_end) return false;
    const int32_t *y = tables.row_edges(k), *x = tables.column_edges(k);
    return tile.meets(y[2 * block.p_begin], y[2 * block.p_end - 1], x[2 * block.q_begin],
                      x[2 * block.q_end - 1]);
  };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    for (int p = block.p_begin; p < block.p_end; ++p) {
      const int32_t* y = tables.row_edges(k) + 2 * p;
      for (int q = block.q_begin; q < block.q_end; ++q) {
        const int32_t* x = tables.column_edges(k) + 2 * q;
        if (!tile.inside(y[0], y[1], x[0], x[1])) continue;
        const A area = static_cast<A>(static_cast<int64_t>(y[1] - y[0]) * (x[1] - x[0]));
        add_gradients(tile, plan, d_out, k, static_cast<int64_t>(p) * layout.pooled_width + q,
                      A(1) / area, sum);
      }
    }
  });
  store_tile(tile, sum, d_data);
}

}  // namespace

template <class T>
struct Call<PSROIPool, T> : PoolCall<PSROIPool, T> {
  using PoolCall<PSROIPool, T>::PoolCall;

  void forward(const Gpu& gpu, const Tensor& out) const {
    this->pool(gpu, MeanRule<T>{this->tables}, out);
  }
  void backward(const Gpu& gpu, const Tensor& d_out, const RoiArrays& d) const {
    this->pool_backward(gpu, backward_kernel<T>, d_out, d);
  }
};

}  // namespace cuda

template struct CudaKernels<PSROIPool>;

}  // namespace gluon_roi
