// SPDX-License-Identifier: Apache-2.0
// A pair of a RoI and a class is a row of the tables, and a pair of an image and a class is an
// image for the shared code. No taps are stored: each thread of the forward pass visits the few
// samples of its bin, and each thread of the backward pass the samples next to its cell. One thread
// block per part sums the gradient of its offsets over bins and channels.
#include "../cuda/forward.h"
#include "../cuda/tiles.h"
#include "deformable_ps_roi_pool.h"

namespace gluon_roi {
namespace cuda {
namespace {

constexpr int kPartThreads = 32;

template <class T>
struct PartTable : RoiTable {
  using A = SumOf<T>;
  PartOffsets<T> offsets;
  int32_t samples;
  PsroiAxis<A>* axes;  // K * 2: y, then x

  PartTable(WorkspaceArena* arena, const DeformablePSROIPool::Params& p, const RoiArrays& in,
            int64_t classes_of_pairs)
      : RoiTable(arena, p, in, classes_of_pairs),
        offsets(DeformablePSROIPool::offsets<T>(p, in)),
        samples(p.sample_per_part),
        axes(arena->take<PsroiAxis<A>>(rows.count * 2)) {}

  HOST_DEVICE const PsroiAxis<A>* axes_of(int64_t pair) const { return axes + pair / classes * 2; }
};

// One thread block per pair.
template <class T>
__global__ void __launch_bounds__(kPartThreads) part_kernel(PartTable<T> tables, double scale) {
  using A = SumOf<T>;
  const int64_t pair = blockIdx.x;
  const int64_t k = pair / tables.classes;
  const int thread = static_cast<int>(threadIdx.x);
  const Roi<A> roi = tables.rows.template decode<A>(k);
  RoiExtent extent{};
  extent.state = roi.state;
  if (roi.state == RoiState::kValid) {
    const PsroiAxis<A> y = PsroiAxis<A>::make(roi.y1(), roi.y2(), scale, tables.pooled_height,
                                              tables.samples, tables.height);
    const PsroiAxis<A> x = PsroiAxis<A>::make(roi.x1(), roi.x2(), scale, tables.pooled_width,
                                              tables.samples, tables.width);
    // The minimum and maximum offsets. For a thread without parts the minimum exceeds the maximum.
    __shared__ A min_y[kPartThreads], max_y[kPartThreads];
    __shared__ A min_x[kPartThreads], max_x[kPartThreads];
    // 1. Over this thread's parts.
    const A infinity = bit_cast<float>(0x7f800000u);
    min_y[thread] = min_x[thread] = infinity;
    max_y[thread] = max_x[thread] = -infinity;
    for (int64_t part = thread; part < tables.offsets.parts(); part += kPartThreads) {
      A offset_y, offset_x;
      if (!tables.offsets.find(pair, part, &offset_y, &offset_x)) continue;
      if (offset_y < min_y[thread]) min_y[thread] = offset_y;
      if (offset_y > max_y[thread]) max_y[thread] = offset_y;
      if (offset_x < min_x[thread]) min_x[thread] = offset_x;
      if (offset_x > max_x[thread]) max_x[thread] = offset_x;
    }
    __syncthreads();
    // 2. Over all parts, which gives the cells that the bins read.
    if (thread == 0) {
      for (int i = 1; i < kPartThreads; ++i) {
        if (min_y[i] < min_y[0]) min_y[0] = min_y[i];
        if (max_y[i] > max_y[0]) max_y[0] = max_y[i];
        if (min_x[i] < min_x[0]) min_x[0] = min_x[i];
        if (max_x[i] > max_x[0]) max_x[0] = max_x[i];
      }
      extent.image = static_cast<int32_t>(roi.image * tables.classes + pair % tables.classes);
      if (min_y[0] <= max_y[0]) {
        y.cells(y.first_sample(0, min_y[0]), y.first_sample(tables.pooled_height - 1, max_y[0]),
                &extent.y_begin, &extent.y_end);
        x.cells(x.first_sample(0, min_x[0]), x.first_sample(tables.pooled_width - 1, max_x[0]),
                &extent.x_begin, &extent.x_end);
      }
      if (pair % tables.classes == 0) {
        tables.axes[2 * k] = y;
        tables.axes[2 * k + 1] = x;
      }
    }
  }
  if (thread == 0) tables.extents[pair] = extent;
}

template <class T>
struct PartRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = true;
  PartTable<T> tables;

  struct View {
    int64_t pair;
    PsroiAxis<A> y, x;
  };
  DEVICE_INLINE View stage(int64_t pair, char*, const char*) const {
    const PsroiAxis<A>* axes = tables.axes_of(pair);
    return View{pair, axes[0], axes[1]};
  }
  DEVICE_INLINE void pool(const View& view, int p, int q, int width, const T* plane,
                          const int64_t* other, A* value) const {
    A offset_y, offset_x;
    const PartOffsets<T>& offsets = tables.offsets;
    const bool known = offsets.find(view.pair, offsets.part_of(p, q), &offset_y, &offset_x);
    const A nan = bit_cast<float>(0x7fc00000u);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] = known ? A(0) : nan;
    if (!known) return;
    const A first_y = view.y.first_sample(p, offset_y), first_x = view.x.first_sample(q, offset_x);
    int32_t x_samples = 0;
    const int32_t y_samples = view.y.for_each_tap(first_y, [&](const PsroiTap<A>& y) {
      const T* line = plane + static_cast<int64_t>(y.cell) * width;
      A sum[kUnroll] = {};
      x_samples = view.x.for_each_tap(first_x, [&](const PsroiTap<A>& x) {
        const T* cell = line + x.cell;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) sum[u] += x.weight * load(cell + other[u]);
      });
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) value[u] += y.weight * sum[u];
    });
    const A samples = static_cast<A>(y_samples) * static_cast<A>(x_samples);
    if (samples == 0) return;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] /= samples;
  }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(PartTable<T> tables, RoiLists lists, TilePlan plan, const T* d_out, T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  const ChannelLayout& layout = plan.layout;
  const BinBlock block = tile.bin_block(layout);
  A sum[kTileChannels] = {};

  const auto meets = [&](int64_t pair) { return tile.meets(tables.extents[pair]); };
  for_each_roi(lists, tile.image, meets, [&](int64_t pair) {
    if (!tile.inside(tables.extents[pair])) return;
    const PsroiAxis<A>*y = tables.axes_of(pair), *x = y + 1;
    for (int p = block.p_begin; p < block.p_end; ++p) {
      for (int q = block.q_begin; q < block.q_end; ++q) {
        A offset_y, offset_x;
        const int64_t part = tables.offsets.part_of(p, q);
        if (!tables.offsets.find(pair, part, &offset_y, &offset_x)) continue;
        int32_t y_samples, x_samples;
        const A weight_y = y->weight_of(y->first_sample(p, offset_y), tile.y, &y_samples);
        if (weight_y == 0) continue;
        const A weight_x = x->weight_of(x->first_sample(q, offset_x), tile.x, &x_samples);
        if (weight_x == 0) continue;
        add_gradients(tile, plan, d_out, pair, static_cast<int64_t>(p) * layout.pooled_width + q,
                      weight_y * weight_x / (static_cast<A>(y_samples) * static_cast<A>(x_samples)),
                      sum);
      }
    }
  });
  store_tile(tile, sum, d_data);
}

// One thread block per part of a pair.
template <class T>
__global__ void __launch_bounds__(kPartThreads)
    offset_kernel(PartTable<T> tables, ForwardPlan plan, const T* data, const T* d_out,
                  T* d_trans) {
  using A = SumOf<T>;
  const PartOffsets<T>& offsets = tables.offsets;
  const ChannelLayout& layout = plan.layout;
  const int64_t pair = blockIdx.x / offsets.parts(), part = blockIdx.x % offsets.parts();
  const int thread = static_cast<int>(threadIdx.x);
  const RoiExtent extent = tables.extents[pair];
  // 1. Sum the derivatives with respect to the positions of the part's bins, over this thread's
  // bins and channels.
  A d_y = 0, d_x = 0, offset_y, offset_x;
  if (extent.state == RoiState::kValid && offsets.find(pair, part, &offset_y, &offset_x)) {
    const PsroiAxis<A>*y_axis = tables.axes_of(pair), *x_axis = y_axis + 1;
    const int part_y = static_cast<int>(part / offsets.width);
    const int part_x = static_cast<int>(part % offsets.width);
    const BinBlock block = layout.bins_of(part_y, part_x, offsets.height, offsets.width);
    const int64_t columns = block.q_end - block.q_begin;
    const int64_t count = (block.p_end - block.p_begin) * columns;
    const T* image = data + extent.image * plan.data_channels * plan.cells;
    for (int64_t n = thread; n < layout.output_dim * count; n += kPartThreads) {
      const int64_t c = n / count;
      const int p = block.p_begin + static_cast<int>(n % count / columns);
      const int q = block.q_begin + static_cast<int>(n % count % columns);
      const T* plane = image + layout.channel(c, p, q) * plan.cells;
      const A first_y = y_axis->first_sample(p, offset_y),
              first_x = x_axis->first_sample(q, offset_x);
      A by_y = 0, by_x = 0;
      int32_t x_samples = 0;
      const int32_t y_samples = y_axis->for_each_tap(first_y, [&](const PsroiTap<A>& y) {
        const T* line = plane + static_cast<int64_t>(y.cell) * plan.width;
        A sum = 0, along = 0;
        x_samples = x_axis->for_each_tap(first_x, [&](const PsroiTap<A>& x) {
          const A value = load(line + x.cell);
          sum += x.weight * value;
          along += x.slope * value;
        });
        by_y += y.slope * sum;
        by_x += y.weight * along;
      });
      if (y_samples == 0 || x_samples == 0) continue;
      const A d_bin = load(d_out + (pair * layout.output_dim + c) * plan.bins +
                           static_cast<int64_t>(p) * layout.pooled_width + q) /
                      (static_cast<A>(y_samples) * static_cast<A>(x_samples));
      d_y += d_bin * by_y;
      d_x += d_bin * by_x;
    }
  }
  // 2. Sum over the threads.
  __shared__ A sums[2][kPartThreads];
  sums[0][thread] = d_y;
  sums[1][thread] = d_x;
  sum_over_threads(sums);
  if (thread != 0) return;
  // 3. Scale to derivatives with respect to the offsets. Axes are written only for valid RoIs.
  const bool valid = extent.state == RoiState::kValid;
  const A scale_y = valid ? offsets.gradient_scale(tables.axes_of(pair)[0]) : A(0);
  const A scale_x = valid ? offsets.gradient_scale(tables.axes_of(pair)[1]) : A(0);
  T* d_pair = d_trans + pair * 2 * offsets.parts() + part;
  store(d_pair, sums[1][0] * scale_x);
  store(d_pair + offsets.parts(), sums[0][0] * scale_y);
}

}  // namespace

template <class T>
struct Call<DeformablePSROIPool, T> {
  const DeformablePSROIPool::Params& p;
  const RoiArrays& in;
  DeformablePSROIPool::ByClass by_class;
  PartTable<T> tables;
  RoiLists lists;

  Call(WorkspaceArena* arena, const DeformablePSROIPool::Params& params, const RoiArrays& inputs,
       bool)
      : p(params),
        in(inputs),
        by_class(p, in),
        tables(arena, p, in, by_class.classes),
        lists(arena, tables) {}

  void build(const Gpu& gpu) const {
    launch(gpu, part_kernel<T>, tables.all_pairs(), kPartThreads, tables, p.spatial_scale);
  }
  void forward(const Gpu& gpu, const Tensor& out) const {
    build(gpu);
    Tensor pairs = out;
    pairs.shape[0] = tables.all_pairs();
    launch_forward<T>(gpu, PartRule<T>{tables}, by_class.layout, by_class.data, pairs);
  }
  void backward(const Gpu& gpu, const Tensor& d_out_tensor, const RoiArrays& d) const {
    if (d_out_tensor.shape[0] == 0) return zero_fill(gpu, d.data);
    build(gpu);
    lists.build(gpu, tables);
    const TilePlan plan(by_class.layout, by_class.data);
    const T* d_out = data_of<const T>(d_out_tensor);
    launch(gpu, backward_kernel<T>, plan.blocks(), kTileThreads, tables, lists, plan, d_out,
           data_of<T>(d.data));
    if (is_absent(d.offsets)) return;
    launch(gpu, offset_kernel<T>, tables.all_pairs() * tables.offsets.parts(), kPartThreads, tables,
           ForwardPlan(by_class.layout, by_class.data), data_of<const T>(in.data), d_out,
           data_of<T>(d.offsets));
  }
};

}  // namespace cuda

template struct CudaKernels<DeformablePSROIPool>;

}  // namespace gluon_roi
