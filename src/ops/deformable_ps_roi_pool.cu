// SPDX-License-Identifier: Apache-2.0
// A RoI and a class make a pair, and an image and a class what shared code calls an image. No taps
// are kept: each thread walks over the samples of its bin, which are few, or weighs those next to
// its cell. The offsets of a part are summed by one block, over its bins and channels.
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
  PartAxis<A>* axes;  // K * 2: y, then x

  PartTable(Carver* carver, const DeformablePSROIPool::Params& p, const Inputs& in,
            int64_t classes_of_pairs)
      : RoiTable(carver, p, in, classes_of_pairs),
        offsets(DeformablePSROIPool::offsets<T>(p, in)),
        samples(p.sample_per_part),
        axes(carver->take<PartAxis<A>>(rows.rows * 2)) {}

  HOST_DEVICE const PartAxis<A>* axes_of(int64_t pair) const { return axes + pair / classes * 2; }
};

// One block a pair.
template <class T>
__global__ void __launch_bounds__(kPartThreads) part_kernel(PartTable<T> tables, double scale) {
  using A = SumOf<T>;
  const int64_t pair = blockIdx.x;
  const int64_t k = pair / tables.classes;
  const int thread = static_cast<int>(threadIdx.x);
  const Roi<A> roi = tables.rows.template decode<A>(k);
  RoiHead head{};
  head.state = roi.state;
  if (roi.state == RoiState::kValid) {
    const PartAxis<A> y =
        PartAxis<A>::make(roi.y1(), roi.y2(), scale, tables.bins_y, tables.samples, tables.height);
    const PartAxis<A> x =
        PartAxis<A>::make(roi.x1(), roi.x2(), scale, tables.bins_x, tables.samples, tables.width);
    // The least and the greatest offsets; those of a thread without any are the wrong way round.
    __shared__ A least_y[kPartThreads], most_y[kPartThreads];
    __shared__ A least_x[kPartThreads], most_x[kPartThreads];
    // 1. Those of this thread's parts.
    const A infinity = bit_cast<float>(0x7f800000u);
    least_y[thread] = least_x[thread] = infinity;
    most_y[thread] = most_x[thread] = -infinity;
    for (int64_t part = thread; part < tables.offsets.parts(); part += kPartThreads) {
      A move_y, move_x;
      if (!tables.offsets.find(pair, part, &move_y, &move_x)) continue;
      if (move_y < least_y[thread]) least_y[thread] = move_y;
      if (move_y > most_y[thread]) most_y[thread] = move_y;
      if (move_x < least_x[thread]) least_x[thread] = move_x;
      if (move_x > most_x[thread]) most_x[thread] = move_x;
    }
    __syncthreads();
    // 2. Those of all parts, and the cells that all bins read.
    if (thread == 0) {
      for (int i = 1; i < kPartThreads; ++i) {
        if (least_y[i] < least_y[0]) least_y[0] = least_y[i];
        if (most_y[i] > most_y[0]) most_y[0] = most_y[i];
        if (least_x[i] < least_x[0]) least_x[0] = least_x[i];
        if (most_x[i] > most_x[0]) most_x[0] = most_x[i];
      }
      head.image = static_cast<int32_t>(roi.image * tables.classes + pair % tables.classes);
      if (least_y[0] <= most_y[0]) {
        y.cells(y.first_sample(0, least_y[0]), y.first_sample(tables.bins_y - 1, most_y[0]),
                &head.y_begin, &head.y_end);
        x.cells(x.first_sample(0, least_x[0]), x.first_sample(tables.bins_x - 1, most_x[0]),
                &head.x_begin, &head.x_end);
      }
      if (pair % tables.classes == 0) {
        tables.axes[2 * k] = y;
        tables.axes[2 * k + 1] = x;
      }
    }
  }
  if (thread == 0) tables.heads[pair] = head;
}

template <class T>
struct PartRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = true;
  PartTable<T> tables;

  struct View {
    int64_t pair;
    PartAxis<A> y, x;
  };
  DEVICE_INLINE View stage(int64_t pair, char*, const char*) const {
    const PartAxis<A>* axes = tables.axes_of(pair);
    return View{pair, axes[0], axes[1]};
  }
  DEVICE_INLINE void pool(const View& view, int p, int q, int width, const T* plane,
                          const int64_t* other, A* value) const {
    A move_y, move_x;
    const PartOffsets<T>& offsets = tables.offsets;
    const bool known = offsets.find(view.pair, offsets.part_of(p, q), &move_y, &move_x);
    const A nan = bit_cast<float>(0x7fc00000u);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] = known ? A(0) : nan;
    if (!known) return;
    const A first_y = view.y.first_sample(p, move_y), first_x = view.x.first_sample(q, move_x);
    int32_t wide = 0;
    const int32_t high = view.y.for_each_tap(first_y, [&](const PartTap<A>& y) {
      const T* line = plane + static_cast<int64_t>(y.cell) * width;
      A sum[kUnroll] = {};
      wide = view.x.for_each_tap(first_x, [&](const PartTap<A>& x) {
        const T* cell = line + x.cell;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) sum[u] += x.weight * load(cell + other[u]);
      });
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) value[u] += y.weight * sum[u];
    });
    const A samples = static_cast<A>(high) * static_cast<A>(wide);
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
  const PositionSensitive& layout = plan.layout;
  const BinBlock bins = tile.bins(layout);
  A sum[kTileChannels] = {};

  const auto meets = [&](int64_t pair) { return tile.meets(tables.heads[pair]); };
  for_each_roi(lists, tile.image, meets, [&](int64_t pair) {
    if (!tile.inside(tables.heads[pair])) return;
    const PartAxis<A>*y = tables.axes_of(pair), *x = y + 1;
    for (int p = bins.p_begin; p < bins.p_end; ++p) {
      for (int q = bins.q_begin; q < bins.q_end; ++q) {
        A move_y, move_x;
        const int64_t part = tables.offsets.part_of(p, q);
        if (!tables.offsets.find(pair, part, &move_y, &move_x)) continue;
        int32_t high, wide;
        const A weight_y = y->weight_of(y->first_sample(p, move_y), tile.y, &high);
        if (weight_y == 0) continue;
        const A weight_x = x->weight_of(x->first_sample(q, move_x), tile.x, &wide);
        if (weight_x == 0) continue;
        add_gradients(tile, plan, d_out, pair, static_cast<int64_t>(p) * layout.pooled_width + q,
                      weight_y * weight_x / (static_cast<A>(high) * static_cast<A>(wide)), sum);
      }
    }
  });
  store_tile(tile, sum, d_data);
}

// One block a part of a pair.
template <class T>
__global__ void __launch_bounds__(kPartThreads)
    offset_kernel(PartTable<T> tables, ForwardPlan plan, const T* data, const T* d_out,
                  T* d_trans) {
  using A = SumOf<T>;
  const PartOffsets<T>& offsets = tables.offsets;
  const PositionSensitive& layout = plan.layout;
  const int64_t pair = blockIdx.x / offsets.parts(), part = blockIdx.x % offsets.parts();
  const int thread = static_cast<int>(threadIdx.x);
  const RoiHead head = tables.heads[pair];
  // 1. The derivatives by the positions of the part's bins, in some of its channels.
  A d_y = 0, d_x = 0, move_y, move_x;
  if (head.state == RoiState::kValid && offsets.find(pair, part, &move_y, &move_x)) {
    const PartAxis<A>*y_axis = tables.axes_of(pair), *x_axis = y_axis + 1;
    const int part_y = static_cast<int>(part / offsets.width);
    const int part_x = static_cast<int>(part % offsets.width);
    const BinBlock bins = layout.bins_of(part_y, part_x, offsets.height, offsets.width);
    const int64_t columns = bins.q_end - bins.q_begin;
    const int64_t count = (bins.p_end - bins.p_begin) * columns;
    const T* image = data + head.image * plan.data_channels * plan.cells;
    for (int64_t n = thread; n < layout.output_dim * count; n += kPartThreads) {
      const int64_t c = n / count;
      const int p = bins.p_begin + static_cast<int>(n % count / columns);
      const int q = bins.q_begin + static_cast<int>(n % count % columns);
      const T* plane = image + layout.channel(c, p, q) * plan.cells;
      const A first_y = y_axis->first_sample(p, move_y), first_x = x_axis->first_sample(q, move_x);
      A by_y = 0, by_x = 0;
      int32_t wide = 0;
      const int32_t high = y_axis->for_each_tap(first_y, [&](const PartTap<A>& y) {
        const T* line = plane + static_cast<int64_t>(y.cell) * plan.width;
        A sum = 0, along = 0;
        wide = x_axis->for_each_tap(first_x, [&](const PartTap<A>& x) {
          const A value = load(line + x.cell);
          sum += x.weight * value;
          along += x.slope * value;
        });
        by_y += y.slope * sum;
        by_x += y.weight * along;
      });
      if (high == 0 || wide == 0) continue;
      const A d_bin = load(d_out + (pair * layout.output_dim + c) * plan.outputs +
                           static_cast<int64_t>(p) * layout.pooled_width + q) /
                      (static_cast<A>(high) * static_cast<A>(wide));
      d_y += d_bin * by_y;
      d_x += d_bin * by_x;
    }
  }
  // 2. Their sums over the threads.
  __shared__ A sums[2][kPartThreads];
  sums[0][thread] = d_y;
  sums[1][thread] = d_x;
  sum_over_threads(sums);
  if (thread != 0) return;
  // 3. By the offsets. The axes of other pairs were never written.
  const bool valid = head.state == RoiState::kValid;
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
  const Inputs& in;
  DeformablePSROIPool::ByClass by_class;
  PartTable<T> tables;
  RoiLists lists;

  Call(Carver* carver, const DeformablePSROIPool::Params& params, const Inputs& inputs, bool)
      : p(params),
        in(inputs),
        by_class(p, in),
        tables(carver, p, in, by_class.classes),
        lists(carver, tables) {}

  void build(const Gpu& gpu) const {
    launch(gpu, part_kernel<T>, tables.all_pairs(), kPartThreads, tables, p.spatial_scale);
  }
  void forward(const Gpu& gpu, const Tensor& out) const {
    build(gpu);
    Tensor pairs = out;
    pairs.shape[0] = tables.all_pairs();
    launch_forward<T>(gpu, PartRule<T>{tables}, by_class.layout, by_class.data, pairs);
  }
  void backward(const Gpu& gpu, const Tensor& d_out_tensor, const Gradients& d) const {
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

template struct CudaHalf<DeformablePSROIPool>;

}  // namespace gluon_roi
