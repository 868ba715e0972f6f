// SPDX-License-Identifier: Apache-2.0
// Without offset and mask these are the kernels of ROIAlign. Otherwise no taps are stored: each
// thread of the forward pass visits the samples of its bin, and each thread of the backward pass
// the samples of the bins around its cell. One thread block per bin sums the gradients of its
// offset and mask over channels.
#include <optional>

#include "../cuda/align.h"
#include "deformable_roi_align.h"

namespace gluon_roi {
namespace cuda {
namespace {

constexpr int kBoxThreads = 64;
constexpr int kBinThreads = 32;

template <class T>
struct ShiftedTable : RoiTable {
  using A = SumOf<T>;
  SampleRule rule;
  double gamma;
  BinOffsets<T> offsets;
  ShiftedAxis<A>* axes;  // K * 2: y, then x
  double* d_boxes;       // K * P * Q * 4, what each bin adds to the gradient of x1 y1 x2 y2

  ShiftedTable(WorkspaceArena* arena, const DeformableROIAlign::Params& p, const RoiArrays& in,
               bool with_box_gradient)
      : RoiTable(arena, p, in),
        rule(DeformableROIAlign::rule(p)),
        gamma(p.gamma),
        offsets(DeformableROIAlign::offsets<T>(p, in)),
        axes(arena->take<ShiftedAxis<A>>(rows.count * 2)),
        d_boxes(with_box_gradient ? arena->take<double>(rows.count * offsets.bins * 4) : nullptr) {}
};

template <class T>
__global__ void __launch_bounds__(kBoxThreads) box_kernel(ShiftedTable<T> tables) {
  using A = SumOf<T>;
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kBoxThreads + threadIdx.x;
  if (k >= tables.rows.count) return;
  const Roi<A> roi = tables.rows.template decode<A>(k);
  RoiExtent extent{};
  extent.state = roi.state;
  if (roi.state == RoiState::kValid) {
    extent.image = static_cast<int32_t>(roi.image);
    const ShiftedAxis<A> y = ShiftedAxis<A>::make(
        tables.rule.axis(roi.y1(), roi.y2(), tables.pooled_height, tables.height), tables.gamma);
    const ShiftedAxis<A> x = ShiftedAxis<A>::make(
        tables.rule.axis(roi.x1(), roi.x2(), tables.pooled_width, tables.width), tables.gamma);
    for (int p = 0; p < tables.pooled_height; ++p) {
      for (int q = 0; q < tables.pooled_width; ++q) {
        const auto shift =
            tables.offsets.find(k, static_cast<int64_t>(p) * tables.pooled_width + q);
        if (!shift.valid) continue;
        y.shifted(shift.y).include_cells(p, &extent.y_begin, &extent.y_end);
        x.shifted(shift.x).include_cells(q, &extent.x_begin, &extent.x_end);
      }
    }
    tables.axes[2 * k] = y;
    tables.axes[2 * k + 1] = x;
  }
  tables.extents[k] = extent;
}

// The Rule of forward_kernel.
template <class T>
struct ShiftedRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = false;
  ShiftedTable<T> tables;

  struct View {
    int64_t k;
    ShiftedAxis<A> y, x;
  };
  DEVICE_INLINE View stage(int64_t k, char*, const char*) const {
    return View{k, tables.axes[2 * k], tables.axes[2 * k + 1]};
  }
  DEVICE_INLINE void pool(const View& view, int p, int q, int width, const T* plane,
                          const int64_t* other, A* value) const {
    const auto shift =
        tables.offsets.find(view.k, static_cast<int64_t>(p) * tables.pooled_width + q);
    if (shift.valid) {
      view.y.for_each_tap(p, shift.y, [&](const ShiftedTap<A>& y) {
        if (y.weight == 0) return;
        const T* line = plane + static_cast<int64_t>(y.cell) * width;
        A sum[kUnroll] = {};
        view.x.for_each_tap(q, shift.x, [&](const ShiftedTap<A>& x) {
          if (x.weight == 0) return;
          const T* cell = line + x.cell;
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) sum[u] += x.weight * load(cell + other[u]);
        });
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) value[u] += y.weight * sum[u];
      });
    }
    const A factor = shift.valid ? shift.factor : static_cast<A>(bit_cast<float>(0x7fc00000u));
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] *= factor;
  }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(ShiftedTable<T> tables, RoiLists lists, TilePlan plan, const T* d_out,
                    T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  A sum[kTileChannels] = {};
  const auto meets = [&](int64_t k) { return tile.meets(tables.extents[k]); };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    if (!tile.inside(tables.extents[k])) return;
    const ShiftedAxis<A>*y = tables.axes + 2 * k, *x = y + 1;
    for (int p = 0; p < tables.pooled_height; ++p) {
      for (int q = 0; q < tables.pooled_width; ++q) {
        const int64_t bin = static_cast<int64_t>(p) * tables.pooled_width + q;
        const auto shift = tables.offsets.find(k, bin);
        if (!shift.valid) continue;
        const A weight_y = y->weight_of(p, shift.y, tile.y);
        if (weight_y == 0) continue;
        const A weight_x = x->weight_of(q, shift.x, tile.x);
        if (weight_x == 0) continue;
        add_gradients(tile, plan, d_out, k, bin, shift.factor * weight_y * weight_x, sum);
      }
    }
  });
  store_tile(tile, sum, d_data);
}

// One thread block per bin of a RoI writes the gradients of its offset and mask, and what it adds
// to that of the box.
template <class T>
__global__ void __launch_bounds__(kBinThreads)
    bin_kernel(ShiftedTable<T> tables, ForwardPlan plan, const T* data, const T* d_out, T* d_offset,
               T* d_mask) {
  using A = SumOf<T>;
  const int64_t k = blockIdx.x / plan.bins, bin = blockIdx.x % plan.bins;
  const int p = static_cast<int>(bin / tables.pooled_width);
  const int q = static_cast<int>(bin % tables.pooled_width);
  const int thread = static_cast<int>(threadIdx.x);
  const RoiExtent extent = tables.extents[k];
  const auto shift = tables.offsets.find(k, bin);
  const bool valid = extent.state == RoiState::kValid && shift.valid;
  // 1. Sum over this thread's channels.
  A value = 0, y_slope = 0, y_by_t = 0, x_slope = 0, x_by_t = 0;
  if (valid) {
    const ShiftedAxis<A>*y_axis = tables.axes + 2 * k, *x_axis = y_axis + 1;
    const T* image = data + extent.image * plan.data_channels * plan.cells;
    for (int64_t c = thread; c < plan.data_channels; c += kBinThreads) {
      const T* plane = image + c * plan.cells;
      const A d_bin = load(d_out + (k * plan.data_channels + c) * plan.bins + bin);
      y_axis->for_each_tap(p, shift.y, [&](const ShiftedTap<A>& y) {
        if (y.is_zero()) return;
        const T* line = plane + static_cast<int64_t>(y.cell) * plan.width;
        A sum = 0, slope = 0, by_t = 0;
        x_axis->for_each_tap(q, shift.x, [&](const ShiftedTap<A>& x) {
          if (x.is_zero()) return;
          const A cell = load(line + x.cell);
          sum += x.weight * cell;
          slope += x.slope * cell;
          by_t += x.slope_by_t * cell;
        });
        value += d_bin * y.weight * sum;
        y_slope += d_bin * y.slope * sum;
        y_by_t += d_bin * y.slope_by_t * sum;
        x_slope += d_bin * y.weight * slope;
        x_by_t += d_bin * y.weight * by_t;
      });
    }
  }
  // 2. Sum over the threads.
  __shared__ A sums[5][kBinThreads];
  sums[0][thread] = value;
  sums[1][thread] = y_slope;
  sums[2][thread] = y_by_t;
  sums[3][thread] = x_slope;
  sums[4][thread] = x_by_t;
  sum_over_threads(sums);
  if (thread != 0) return;
  // 3. Axes are written only for valid RoIs.
  const ShiftedAxis<A> none{};
  const ShiftedAxis<A> y = valid ? tables.axes[2 * k] : none;
  const ShiftedAxis<A> x = valid ? tables.axes[2 * k + 1] : none;
  const double factor = valid ? static_cast<double>(shift.factor) : 0.0;
  if (d_mask != nullptr) store(d_mask + k * plan.bins + bin, sums[0][0]);
  if (d_offset != nullptr) {
    T* const d_x = d_offset + 2 * k * plan.bins + bin;
    store(d_x, static_cast<A>(factor * x.by_offset(sums[3][0])));
    store(d_x + plan.bins, static_cast<A>(factor * y.by_offset(sums[1][0])));
  }
  if (tables.d_boxes == nullptr) return;
  const double at_y = valid ? static_cast<double>(shift.y) : 0.0;
  const double at_x = valid ? static_cast<double>(shift.x) : 0.0;
  double* const d_box = tables.d_boxes + 4 * (k * plan.bins + bin);
  d_box[0] = factor * x.by_low(sums[3][0], sums[4][0], tables.gamma, at_x);
  d_box[1] = factor * y.by_low(sums[1][0], sums[2][0], tables.gamma, at_y);
  d_box[2] = factor * x.by_high(sums[3][0], sums[4][0], tables.gamma, at_x);
  d_box[3] = factor * y.by_high(sums[1][0], sums[2][0], tables.gamma, at_y);
}

// Writes all of d_rois.
template <class T>
__global__ void __launch_bounds__(kBoxThreads)
    roi_kernel(ShiftedTable<T> tables, double scale, void* d_rois, int32_t dtype) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kBoxThreads + threadIdx.x;
  if (k >= tables.rows.count) return;
  const int64_t columns = tables.rows.columns;
  if (columns > 4) store_as(d_rois, dtype, k * columns, 0);
  for (int i = 0; i < 4; ++i) {
    double sum = 0;
    for (int64_t bin = 0; bin < tables.offsets.bins; ++bin) {
      sum += tables.d_boxes[4 * (k * tables.offsets.bins + bin) + i];
    }
    store_as(d_rois, dtype, (k + 1) * columns - 4 + i, sum * scale);
  }
}

}  // namespace

template <class T>
struct Call<DeformableROIAlign, T> {
  struct Shifted {
    ShiftedTable<T> tables;
    RoiLists lists;

    Shifted(WorkspaceArena* arena, const DeformableROIAlign::Params& p, const RoiArrays& in,
            bool backward)
        : tables(arena, p, in, backward && p.rois_grad != 0), lists(arena, tables) {}
    void build(const Gpu& gpu) const {
      launch(gpu, box_kernel<T>, div_up(tables.rows.count, kBoxThreads), kBoxThreads, tables);
    }
  };
  const DeformableROIAlign::Params& p;
  const RoiArrays& in;
  ChannelLayout layout;
  std::optional<AlignCall<DeformableROIAlign, T>> plain;  // without offset and mask
  std::optional<Shifted> shifted;

  Call(WorkspaceArena* arena, const DeformableROIAlign::Params& params, const RoiArrays& inputs,
       bool backward)
      : p(params), in(inputs), layout(DeformableROIAlign::layout(p, in.data.shape[1])) {
    if (DeformableROIAlign::is_plain(in)) {
      plain.emplace(arena, p, in, backward);
    } else {
      shifted.emplace(arena, p, in, backward);
    }
  }

  void forward(const Gpu& gpu, const Tensor& out) const {
    if (plain) return plain->forward(gpu, out);
    shifted->build(gpu);
    launch_forward<T>(gpu, ShiftedRule<T>{shifted->tables}, layout, in.data, out);
  }
  void backward(const Gpu& gpu, const Tensor& d_out_tensor, const RoiArrays& d) const {
    if (plain) return plain->align_backward(gpu, align_backward_kernel<T>, d_out_tensor, d);
    if (d_out_tensor.shape[0] == 0) return zero_fill(gpu, d.data);
    shifted->build(gpu);
    const ShiftedTable<T>& tables = shifted->tables;
    shifted->lists.build(gpu, tables);
    const TilePlan plan(layout, in.data);
    const T* d_out = data_of<const T>(d_out_tensor);
    launch(gpu, backward_kernel<T>, plan.blocks(), kTileThreads, tables, shifted->lists, plan,
           d_out, data_of<T>(d.data));
    if (is_absent(d.offsets) && is_absent(d.mask) && is_absent(d.rois)) return;
    launch(gpu, bin_kernel<T>, tables.rows.count * tables.offsets.bins, kBinThreads, tables,
           ForwardPlan(layout, in.data), data_of<const T>(in.data), d_out, data_of<T>(d.offsets),
           data_of<T>(d.mask));
    if (is_absent(d.rois)) return;
    launch(gpu, roi_kernel<T>, div_up(tables.rows.count, kBoxThreads), kBoxThreads, tables,
           static_cast<double>(static_cast<SumOf<T>>(p.spatial_scale)), d.rois.data, d.rois.dtype);
  }
};

}  // namespace cuda

template struct CudaKernels<DeformableROIAlign>;

}  // namespace gluon_roi
