// SPDX-License-Identifier: Apache-2.0
// With mode='max' no taps are stored: threads visit the samples of their bin, or of the bins that
// read their cell.
#include <optional>

#include "../core/geometry/maximum.h"
#include "../cuda/align.h"
#include "roi_align.h"

namespace gluon_roi {
namespace cuda {
namespace {

constexpr int kBoxThreads = 64;

template <class T>
struct AxisTable : RoiTable {
  using A = SumOf<T>;
  SampleRule rule;
  SampleAxis<A>* axes;  // K * 2: y, then x

  AxisTable(WorkspaceArena* arena, const ROIAlign::Params& p, const RoiArrays& in)
      : RoiTable(arena, p, in),
        rule(ROIAlign::rule(p)),
        axes(arena->take<SampleAxis<A>>(rows.count * 2)) {}
};

template <class T>
__global__ void __launch_bounds__(kBoxThreads) axis_kernel(AxisTable<T> tables) {
  using A = SumOf<T>;
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kBoxThreads + threadIdx.x;
  if (k >= tables.rows.count) return;
  const Roi<A> roi = tables.rows.template decode<A>(k);
  RoiExtent extent{};
  extent.state = roi.state;
  if (roi.state == RoiState::kValid) {
    extent.image = static_cast<int32_t>(roi.image);
    const SampleAxis<A> y =
        tables.rule.axis(roi.y1(), roi.y2(), tables.pooled_height, tables.height);
    const SampleAxis<A> x = tables.rule.axis(roi.x1(), roi.x2(), tables.pooled_width, tables.width);
    for (int p = 0; p < tables.pooled_height; ++p) {
      y.include_cells(p, &extent.y_begin, &extent.y_end);
    }
    for (int q = 0; q < tables.pooled_width; ++q) {
      x.include_cells(q, &extent.x_begin, &extent.x_end);
    }
    tables.axes[2 * k] = y;
    tables.axes[2 * k + 1] = x;
  }
  tables.extents[k] = extent;
}

// The axes of a RoI.
template <class A>
struct BoxAxes {
  SampleAxis<A> y, x;
};

// The Rule of forward_kernel.
template <class T>
struct MaxRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = false;
  AxisTable<T> tables;

  using View = BoxAxes<A>;
  DEVICE_INLINE View stage(int64_t k, char*, const char*) const {
    return View{tables.axes[2 * k], tables.axes[2 * k + 1]};
  }
  DEVICE_INLINE void pool(const View& box, int p, int q, int width, const T* plane,
                          const int64_t* other, A* value) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      value[u] =
          largest_sample<T, A>(box.y, p, box.x, q, plane + other[u], width, kLowest<T>).value;
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    max_backward_kernel(AxisTable<T> tables, RoiLists lists, TilePlan plan, const T* data,
                        const T* d_out, T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  const int64_t cells = static_cast<int64_t>(plan.height) * plan.width;
  const T* planes = data + (tile.image * plan.layout.output_dim + tile.channel) * cells;
  A sum[kTileChannels] = {};
  const auto meets = [&](int64_t k) { return tile.meets(tables.extents[k]); };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    if (!tile.inside(tables.extents[k])) return;
    const SampleAxis<A>*y = tables.axes + 2 * k, *x = y + 1;
    for (int p = 0; p < tables.pooled_height; ++p) {
      if (!y->reads(p, tile.y)) continue;
      for (int q = 0; q < tables.pooled_width; ++q) {
        if (!x->reads(q, tile.x)) continue;
        const int64_t bin = static_cast<int64_t>(p) * tables.pooled_width + q;
        for (int c = 0; c < tile.channels; ++c) {
          const auto best =
              largest_sample<T, A>(*y, p, *x, q, planes + c * cells, plan.width, kLowest<T>);
          if (!best.on_map) continue;
          const A weight_y = (best.y.low == tile.y ? best.y.low_weight : A(0)) +
                             (best.y.high == tile.y ? best.y.high_weight : A(0));
          const A weight_x = (best.x.low == tile.x ? best.x.low_weight : A(0)) +
                             (best.x.high == tile.x ? best.x.high_weight : A(0));
          const A weight = weight_y * weight_x;
          if (weight == 0) continue;
          sum[c] += weight *
                    load(d_out + (k * plan.layout.output_dim + tile.channel + c) * plan.bins + bin);
        }
      }
    }
  });
  store_tile(tile, sum, d_data);
}

// The Rule of roi_gradient_kernel.
template <class T>
struct MaxGradientRule {
  using A = SumOf<T>;
  static constexpr int kCoordinates = 4;
  AxisTable<T> tables;

  DEVICE_INLINE BoxAxes<A> view(int64_t k) const {
    return {tables.axes[2 * k], tables.axes[2 * k + 1]};
  }
  DEVICE_INLINE void slope(const BoxAxes<A>& box, int p, int q, int width, const T* plane,
                           A* slope) const {
    const auto best = largest_sample<T, A>(box.y, p, box.x, q, plane, width, kLowest<T>);
    add_largest_slopes(best, box.y, p, box.x, q, plane, width, A(1), slope);
  }
};

}  // namespace

template <class T>
struct Call<ROIAlign, T> {
  struct Max {
    AxisTable<T> tables;
    RoiLists lists;

    Max(WorkspaceArena* arena, const ROIAlign::Params& p, const RoiArrays& in)
        : tables(arena, p, in), lists(arena, tables) {}
    void build(const Gpu& gpu) const {
      launch(gpu, axis_kernel<T>, div_up(tables.rows.count, kBoxThreads), kBoxThreads, tables);
    }
  };
  const ROIAlign::Params& p;
  const RoiArrays& in;
  ChannelLayout layout;
  std::optional<AlignCall<ROIAlign, T>> mean;
  std::optional<Max> max;

  Call(WorkspaceArena* arena, const ROIAlign::Params& params, const RoiArrays& inputs,
       bool backward)
      : p(params), in(inputs), layout(ROIAlign::layout(p, in.data.shape[1])) {
    if (p.mode == GLUON_ROI_MAX) {
      max.emplace(arena, p, in);
    } else {
      mean.emplace(arena, p, in, backward);
    }
  }

  void forward(const Gpu& gpu, const Tensor& out) const {
    if (mean) return mean->forward(gpu, out);
    max->build(gpu);
    launch_forward<T>(gpu, MaxRule<T>{max->tables}, layout, in.data, out);
  }
  void backward(const Gpu& gpu, const Tensor& d_out_tensor, const RoiArrays& d) const {
    if (mean) return mean->align_backward(gpu, align_backward_kernel<T>, d_out_tensor, d);
    if (d_out_tensor.shape[0] == 0) return zero_fill(gpu, d.data);
    max->build(gpu);
    max->lists.build(gpu, max->tables);
    const TilePlan plan(layout, in.data);
    launch(gpu, max_backward_kernel<T>, plan.blocks(), kTileThreads, max->tables, max->lists, plan,
           data_of<const T>(in.data), data_of<const T>(d_out_tensor), data_of<T>(d.data));
    if (is_absent(d.rois)) return;
    launch_roi_gradient<T>(gpu, MaxGradientRule<T>{max->tables}, layout, in, d_out_tensor, d.rois);
  }
};

}  // namespace cuda

template struct CudaKernels<ROIAlign>;

}  // namespace gluon_roi
