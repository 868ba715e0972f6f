// SPDX-License-Identifier: Apache-2.0
// No taps are stored: threads visit the samples of their bin, or the samples around their cell.
#include "../cuda/align.h"
#include "rotated_roi_align.h"

namespace gluon_roi {
namespace cuda {
namespace {

constexpr int kBoxThreads = 64;

template <class G>
struct RotatedTable : RoiTable {
  RotatedRule rule;
  SampledBox<G>* boxes;  // K

  RotatedTable(WorkspaceArena* arena, const RotatedROIAlign::Params& p, const RoiArrays& in)
      : RoiTable(arena, p, in),
        rule(RotatedROIAlign::rule(p)),
        boxes(arena->take<SampledBox<G>>(rows.count)) {}
};

template <class G>
__global__ void __launch_bounds__(kBoxThreads) box_kernel(RotatedTable<G> tables) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kBoxThreads + threadIdx.x;
  if (k >= tables.rows.count) return;
  const Roi<G> roi = tables.rows.template decode<G>(k);
  RoiExtent extent{};
  extent.state = roi.state;
  if (roi.state == RoiState::kValid) {
    const SampledBox<G> box = tables.rule.box(roi, tables.height, tables.width);
    extent.image = static_cast<int32_t>(roi.image);
    const CellRect cells = box.cells();
    extent.y_begin = cells.y0, extent.y_end = cells.y1;
    extent.x_begin = cells.x0, extent.x_end = cells.x1;
    tables.boxes[k] = box;
  }
  tables.extents[k] = extent;
}

// The Rule of forward_kernel.
template <class T>
struct ForwardRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = false;
  RotatedTable<A> tables;

  using View = const SampledBox<A>*;
  DEVICE_INLINE View stage(int64_t k, char* buffer, const char* end) const {
    return cuda::stage(tables.boxes + k, 1, &buffer, end);
  }
  DEVICE_INLINE void pool(const View& box, int p, int q, int, const T* plane, const int64_t* other,
                          A* value) const {
    box->for_each_weight(p, q, [&](int32_t row, int32_t column, A weight) {
      const int64_t cell = static_cast<int64_t>(row) * tables.width + column;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) value[u] += weight * load(plane + cell + other[u]);
    });
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] /= box->divisor();
  }
};

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(RotatedTable<SumOf<T>> tables, RoiLists lists, TilePlan plan, const T* d_out,
                    T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  A sum[kTileChannels] = {};
  const auto meets = [&](int64_t k) { return tile.meets(tables.extents[k]); };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    if (!tile.inside(tables.extents[k])) return;
    const SampledBox<A>& box = tables.boxes[k];
    box.for_each_bin_of(tile.y, tile.x, [&](int p, int q, A weight) {
      add_gradients(tile, plan, d_out, k, static_cast<int64_t>(p) * tables.pooled_width + q,
                    weight / box.divisor(), sum);
    });
  });
  store_tile(tile, sum, d_data);
}

// The Rule of roi_gradient_kernel.
template <class T>
struct GradientRule {
  using A = SumOf<T>;
  static constexpr int kCoordinates = kRotatedCoordinates;
  RotatedTable<A> tables;

  DEVICE_INLINE const SampledBox<A>* view(int64_t k) const { return tables.boxes + k; }
  DEVICE_INLINE void slope(const SampledBox<A>* box, int p, int q, int, const T* plane,
                           A* slope) const {
    box->for_each_gradient(p, q, [&](int32_t row, int32_t column, const A* slopes) {
      const A value = load(plane + static_cast<int64_t>(row) * tables.width + column);
      for (int i = 0; i < kCoordinates; ++i) slope[i] += slopes[i] * value;
    });
    for (int i = 0; i < kCoordinates; ++i) slope[i] /= box->divisor();
  }
};

}  // namespace

template <class T>
struct Call<RotatedROIAlign, T> {
  const RotatedROIAlign::Params& p;
  const RoiArrays& in;
  ChannelLayout layout;
  RotatedTable<SumOf<T>> tables;
  RoiLists lists;

  Call(WorkspaceArena* arena, const RotatedROIAlign::Params& params, const RoiArrays& inputs, bool)
      : p(params),
        in(inputs),
        layout(RotatedROIAlign::layout(p, in.data.shape[1])),
        tables(arena, p, in),
        lists(arena, tables) {}

  void build(const Gpu& gpu) const {
    launch(gpu, box_kernel<SumOf<T>>, div_up(tables.rows.count, kBoxThreads), kBoxThreads, tables);
  }
  void forward(const Gpu& gpu, const Tensor& out) const {
    build(gpu);
    launch_forward<T>(gpu, ForwardRule<T>{tables}, layout, in.data, out);
  }
  void backward(const Gpu& gpu, const Tensor& d_out, const RoiArrays& d) const {
    if (d_out.shape[0] == 0) return zero_fill(gpu, d.data);
    build(gpu);
    lists.build(gpu, tables);
    const TilePlan plan(layout, in.data);
    launch(gpu, backward_kernel<T>, plan.blocks(), kTileThreads, tables, lists, plan,
           data_of<const T>(d_out), data_of<T>(d.data));
    if (is_absent(d.rois)) return;
    launch_roi_gradient<T>(gpu, GradientRule<T>{tables}, layout, in, d_out, d.rois);
  }
};

}  // namespace cuda

template struct CudaKernels<RotatedROIAlign>;

}  // namespace gluon_roi
