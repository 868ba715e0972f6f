// SPDX-License-Identifier: Apache-2.0
#include "../cuda/tiles.h"
#include "deformable_sampling.h"

namespace gluon_roi {
namespace cuda {
namespace {

constexpr int kThreads = kTileThreads;

// The index of the n-th sample of a row of output positions.
DEVICE_INLINE int64_t index_in_row(const DeformKernel& kernel, int64_t row, int64_t n) {
  return kernel.run_begin(n / kernel.run_length(), row) + n % kernel.run_length();
}

// The output position (y, x) and kernel cell (i, j) of a sample, computed from its index.
struct SamplePosition {
  int64_t y, x;
  int32_t i, j;

  DEVICE_INLINE SamplePosition(const DeformKernel& kernel, int64_t index) {
    const auto part = [&](int64_t size) {
      const int64_t rest = index % size;
      index /= size;
      return rest;
    };
    if (kernel.columns) {
      x = part(kernel.out_width);
      y = part(kernel.out_height);
      j = static_cast<int32_t>(part(kernel.kernel_width));
      i = static_cast<int32_t>(index);
    } else {
      j = static_cast<int32_t>(part(kernel.kernel_width));
      x = part(kernel.out_width);
      i = static_cast<int32_t>(part(kernel.kernel_height));
      y = index;
    }
  }
};
template <class T>
DEVICE_INLINE SampleCells<SumOf<T>> cells_of(const DeformSampler<T>& sampler, int64_t pair,
                                             const SamplePosition& position) {
  return sampler.find(pair, position.y, position.x, position.i, position.j);
}
template <class T>
DEVICE_INLINE SampleTaps<SumOf<T>> taps_of(const DeformSampler<T>& sampler, int64_t pair,
                                           const SamplePosition& position) {
  return sampler.taps(cells_of(sampler, pair, position),
                      sampler.mask_of(pair, position.y, position.x, position.i, position.j));
}

// ---- Forward ------------------------------------------------------------------------------------

// One thread computes a sample in kChannels channels; neighbouring threads write adjacent memory.
constexpr int kChannels = 16;

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(SampledPairs<T> plan, const T* data, T* out, int64_t channel_blocks,
                   int64_t blocks) {
  using A = SumOf<T>;
  const int64_t index = blockIdx.x % blocks * kThreads + threadIdx.x;
  const int64_t first = blockIdx.x / blocks % channel_blocks * kChannels;
  const int64_t pair = blockIdx.x / blocks / channel_blocks;
  if (index >= plan.samples) return;
  const SampleTaps<A> taps =
      taps_of(plan.sampler, pair, SamplePosition(plan.sampler.kernel, index));
  const int64_t left = plan.channels - first;
  const int channels = left < kChannels ? static_cast<int>(left) : kChannels;
  const T* map = data + (pair * plan.channels + first) * plan.cells;
  T* target = out + (pair * plan.channels + first) * plan.samples + index;
  for (int c = 0; c < channels; ++c, map += plan.cells, target += plan.samples) {
    A sum = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (taps.cell[k] != plan.cells) sum += taps.weight[k] * load(map + taps.cell[k]);
    }
    store(target, sum);
  }
}

// ---- Backward -----------------------------------------------------------------------------------

// The rows [begin, end) of the map that a row of output positions reads.
struct RowRange {
  int32_t begin, end;
};

// A thread block finds the range of a row of output positions.
template <class T>
__global__ void __launch_bounds__(kThreads) range_kernel(SampledPairs<T> plan, RowRange* ranges) {
  const DeformKernel& kernel = plan.sampler.kernel;
  const int64_t pair = blockIdx.x / kernel.out_height, y = blockIdx.x % kernel.out_height;
  const int64_t row_samples = kernel.runs() * kernel.run_length();
  const int thread = static_cast<int>(threadIdx.x);
  __shared__ RowRange found[kThreads];
  RowRange range{kernel.height, 0};
  for (int64_t n = thread; n < row_samples; n += kThreads) {
    const auto sample =
        cells_of(plan.sampler, pair, SamplePosition(kernel, index_in_row(kernel, y, n)));
    for (int k = 0; k < 4; ++k) {
      if (sample.cell[k] == kernel.no_cell()) continue;
      const int32_t row = sample.cell[k] / kernel.width;
      range.begin = row < range.begin ? row : range.begin;
      range.end = row + 1 > range.end ? row + 1 : range.end;
    }
  }
  found[thread] = range;
  __syncthreads();
  if (thread != 0) return;
  for (int other = 1; other < kThreads; ++other) {
    range.begin = found[other].begin < range.begin ? found[other].begin : range.begin;
    range.end = found[other].end > range.end ? found[other].end : range.end;
  }
  ranges[blockIdx.x] = range;
}

// A thread block owns a tile of the map in kTileChannels channels. Each thread owns a cell, sums
// the gradients of the samples that read it in their order, and writes the result once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    data_gradient_kernel(SampledPairs<T> plan, const RowRange* ranges, const T* d_out, T* d_data,
                         int32_t tiles_y, int32_t tiles_x, int64_t channel_blocks) {
  using A = SumOf<T>;
  const DeformKernel& kernel = plan.sampler.kernel;
  // 1. The tile of this block and the cell of this thread.
  int64_t rest = blockIdx.x;
  const int32_t x_begin = static_cast<int32_t>(rest % tiles_x) * kTileWidth;
  rest /= tiles_x;
  const int32_t y_begin = static_cast<int32_t>(rest % tiles_y) * kTileHeight;
  rest /= tiles_y;
  const int64_t first = rest % channel_blocks * kTileChannels, pair = rest / channel_blocks;
  const int64_t left = plan.channels - first;
  const int channels = left < kTileChannels ? static_cast<int>(left) : kTileChannels;
  const int thread = static_cast<int>(threadIdx.x);
  const int32_t y = y_begin + thread / kTileWidth, x = x_begin + thread % kTileWidth;
  const bool on_map = y < kernel.height && x < kernel.width;
  const int32_t own_cell = on_map ? y * kernel.width + x : -1;
  const T* d_pair = d_out + (pair * plan.channels + first) * plan.samples;
  const int64_t row_samples = kernel.runs() * kernel.run_length();
  A sum[kTileChannels] = {};
  __shared__ SampleTaps<A> taps[kThreads];
  __shared__ int64_t indices[kThreads];
  __shared__ bool meets[kThreads];
  // 2. Visit the rows of output positions that read the tile.
  for (int64_t row = 0; row < kernel.out_height; ++row) {
    const RowRange range = ranges[pair * kernel.out_height + row];
    if (range.begin >= y_begin + kTileHeight || range.end <= y_begin) continue;
    for (int64_t base = 0; base < row_samples; base += kThreads) {
      // 3. Each thread computes the taps of a sample.
      meets[thread] = false;
      if (base + thread < row_samples) {
        indices[thread] = index_in_row(kernel, row, base + thread);
        taps[thread] = taps_of(plan.sampler, pair, SamplePosition(kernel, indices[thread]));
        for (int k = 0; k < 4; ++k) {
          const int32_t cell = taps[thread].cell[k];
          if (cell == kernel.no_cell()) continue;
          const int32_t cell_y = cell / kernel.width, cell_x = cell % kernel.width;
          meets[thread] = meets[thread] || (cell_y >= y_begin && cell_y < y_begin + kTileHeight &&
                                            cell_x >= x_begin && cell_x < x_begin + kTileWidth);
        }
      }
      __syncthreads();
      // 4. All threads walk over the samples that read the tile; each adds those that read its
      // cell.
      for (int n = 0; n < kThreads; ++n) {
        if (!meets[n]) continue;
        A weight = 0;
        bool hit = false;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          if (taps[n].cell[k] != own_cell) continue;
          weight = taps[n].weight[k];
          hit = true;
        }
        if (!hit) continue;
        const T* from = d_pair + indices[n];
#pragma unroll
        for (int c = 0; c < kTileChannels; ++c) {
          if (c < channels) sum[c] += weight * load(from + c * plan.samples);
        }
      }
      __syncthreads();
    }
  }
  // 5. Write the gradients of the cell.
  if (!on_map) return;
  T* target = d_data + (pair * plan.channels + first) * plan.cells + own_cell;
#pragma unroll
  for (int c = 0; c < kTileChannels; ++c) {
    if (c < channels) store(target + c * plan.cells, sum[c]);
  }
}

// One thread computes the gradients of the offsets and the mask of a sample, in a loop over
// channels.
template <class T>
__global__ void __launch_bounds__(kThreads)
    offset_gradient_kernel(SampledPairs<T> plan, const T* data, const T* d_out, T* d_offset,
                           T* d_mask, int64_t blocks) {
  using A = SumOf<T>;
  const DeformSampler<T>& sampler = plan.sampler;
  const int64_t pair = blockIdx.x / blocks;
  const int64_t index = blockIdx.x % blocks * kThreads + threadIdx.x;
  if (index >= plan.samples) return;
  const SamplePosition position(sampler.kernel, index);
  const SampleCells<A> sample = cells_of(sampler, pair, position);
  const T* map = data + pair * plan.channels * plan.cells;
  const T* d_samples = d_out + pair * plan.channels * plan.samples + index;
  A sum[4] = {};
  for (int64_t c = 0; c < plan.channels; ++c, map += plan.cells, d_samples += plan.samples) {
    const A d_sample = load(d_samples);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (sample.cell[k] != plan.cells) sum[k] += d_sample * load(map + sample.cell[k]);
    }
  }
  sampler.store_gradients(pair, position.y, position.x, position.i, position.j, sample, sum,
                          d_offset, d_mask);
}

}  // namespace

template <class T>
struct Call<DeformableSampling, T> {
  const DeformableSampling::View& in;
  SampledPairs<T> plan;
  RowRange* ranges;  // for each row of output positions of each pair; backward only
  int64_t blocks;    // blocks for one thread per sample of a pair

  Call(WorkspaceArena* arena, const DeformableSampling::Params& p,
       const DeformableSampling::View& inputs, bool backward)
      : in(inputs),
        plan(p, in),
        ranges(arena->take<RowRange>(backward ? plan.pairs * plan.sampler.kernel.out_height : 0)),
        blocks(div_up(plan.samples, kThreads)) {}

  void forward(const Gpu& gpu, const Tensor& out) const {
    const int64_t channel_blocks = div_up(plan.channels, kChannels);
    launch(gpu, forward_kernel<T>, plan.pairs * channel_blocks * blocks, kThreads, plan,
           data_of<const T>(in.data), data_of<T>(out), channel_blocks, blocks);
  }
  void backward(const Gpu& gpu, const Tensor& d_out_tensor,
                const DeformableSampling::View& d) const {
    const T* data = data_of<const T>(in.data);
    const T* d_out = data_of<const T>(d_out_tensor);
    launch(gpu, range_kernel<T>, plan.pairs * plan.sampler.kernel.out_height, kThreads, plan,
           ranges);
    const DeformKernel& kernel = plan.sampler.kernel;
    const int64_t channel_blocks = div_up(plan.channels, kTileChannels);
    const auto tiles_y = static_cast<int32_t>(div_up(kernel.height, kTileHeight));
    const auto tiles_x = static_cast<int32_t>(div_up(kernel.width, kTileWidth));
    launch(gpu, data_gradient_kernel<T>, plan.pairs * channel_blocks * tiles_y * tiles_x, kThreads,
           plan, ranges, d_out, data_of<T>(d.data), tiles_y, tiles_x, channel_blocks);
    if (is_absent(d.offset) && is_absent(d.mask)) return;
    launch(gpu, offset_gradient_kernel<T>, plan.pairs * blocks, kThreads, plan, data, d_out,
           data_of<T>(d.offset), data_of<T>(d.mask), blocks);
  }
};

}  // namespace cuda

template struct CudaKernels<DeformableSampling>;

}  // namespace gluon_roi
