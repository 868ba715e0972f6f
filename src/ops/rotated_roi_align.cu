// SPDX-License-Identifier: Apache-2.0
// RotatedROIAlign in CUDA kernels; rotated_roi_align.h defines the result.
//
// Forward: a block owns some channels of one RoI, a thread (channel, p, q) visits the samples of
// its bin. Backward: a block owns a tile of the map in kTileChannels channels and walks over the
// RoIs that may touch it, in their order; each thread visits the samples around its cell. No
// atomics; d_data is written once, and whole. The gradient of a box is summed by one block, in a
// tree of fixed shape. Workspace: heads and boxes of the RoIs; backward the lists of each image's
// RoIs.
#include "../cuda/align.h"
#include "rotated_roi_align.h"

namespace gluon_roi {
namespace cuda {
namespace {

constexpr int kBoxThreads = 64;

template <class G>
struct RotatedTable : RoiTable {
  RotatedRule rule;
  RotatedBox<G>* boxes;  // K

  RotatedTable(Carver* carver, const RotatedROIAlign::Params& p, const Inputs& in)
      : RoiTable(RotatedROIAlign::kName, carver, in, p.pooled_height, p.pooled_width, p.bad_index),
        rule(RotatedROIAlign::rule(p)),
        boxes(carver->take<RotatedBox<G>>(rows.rows)) {}
};

template <class G>
__global__ void __launch_bounds__(kBoxThreads) box_kernel(RotatedTable<G> tables) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kBoxThreads + threadIdx.x;
  if (k >= tables.rows.rows) return;
  const Roi<G> roi = tables.rows.template decode<G>(k);
  RoiHead head{};
  head.state = roi.state;
  if (roi.state == RoiState::kValid) {
    const RotatedBox<G> box = tables.rule.box(roi, tables.height, tables.width);
    head.image = static_cast<int32_t>(roi.image);
    box.cells(&head.y_begin, &head.y_end, &head.x_begin, &head.x_end);
    tables.boxes[k] = box;
  }
  tables.heads[k] = head;
}

// The rule of forward_kernel.
template <class T>
struct ForwardRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = false;
  RotatedTable<A> tables;

  using View = const RotatedBox<A>*;
  DEVICE_INLINE View stage(int64_t k, char* room, const char* end) const {
    return cuda::stage(tables.boxes + k, 1, &room, end);
  }
  DEVICE_INLINE void pool(const View& box, int p, int q, int, const T* plane, const int64_t* other,
                          A* value) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] = 0;
    box->for_each_weight(p, q, [&](int64_t cell, A weight) {
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
  const auto meets = [&](int64_t k) { return tile.meets(tables.heads[k]); };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    if (!tile.inside(tables.heads[k])) return;
    const RotatedBox<A>& box = tables.boxes[k];
    box.for_each_bin_of(tile.y, tile.x, [&](int p, int q, A weight) {
      add_gradients(tile, plan, d_out, k, static_cast<int64_t>(p) * tables.bins_x + q,
                    weight / box.divisor(), sum);
    });
  });
  store_tile(tile, sum, d_data);
}

// The rule of roi_gradient_kernel.
template <class T>
struct GradientRule {
  using A = SumOf<T>;
  static constexpr int kCoordinates = kRotatedCoordinates;
  RotatedTable<A> tables;

  DEVICE_INLINE const RotatedBox<A>* view(int64_t k) const { return tables.boxes + k; }
  DEVICE_INLINE void slope(const RotatedBox<A>* box, int p, int q, int, const T* plane,
                           A* slope) const {
    box->for_each_gradient(p, q, [&](int64_t cell, const A* slopes) {
      const A value = load(plane + cell);
      for (int i = 0; i < kCoordinates; ++i) slope[i] += slopes[i] * value;
    });
    for (int i = 0; i < kCoordinates; ++i) slope[i] /= box->divisor();
  }
};

template <class T>
struct Prepared {
  PositionSensitive layout;
  RotatedTable<SumOf<T>> tables;

  Prepared(Carver* carver, const RotatedROIAlign::Params& p, const Inputs& in)
      : layout(PositionSensitive::ungrouped(in.data.shape[1], p.pooled_height, p.pooled_width)),
        tables(carver, p, in) {}
  void build(const Gpu& gpu) const {
    launch(RotatedROIAlign::kName, gpu, box_kernel<SumOf<T>>, div_up(tables.rows.rows, kBoxThreads),
           kBoxThreads, tables);
  }
};

}  // namespace
}  // namespace cuda

size_t RotatedROIAlign::workspace(const Params& p, const Inputs& in, bool backward) {
  cuda::Carver carver;
  with_dtype(in.data.dtype, [&](auto type) {
    const cuda::Prepared<decltype(type)> measured(&carver, p, in);
    if (backward) cuda::RoiLists(&carver, measured.tables);
  });
  return carver.size();
}

void RotatedROIAlign::forward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& out) {
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::Carver carver(gpu.workspace);
    const cuda::Prepared<T> call(&carver, p, in);
    call.build(gpu);
    cuda::launch_forward<T>(kName, gpu, cuda::ForwardRule<T>{call.tables}, call.layout, in.data,
                            out);
  });
}

void RotatedROIAlign::backward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& d_out,
                               const Gradients& d) {
  if (d_out.shape[0] == 0) return zero_fill(kName, gpu, d.data);
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::Carver carver(gpu.workspace);
    const cuda::Prepared<T> call(&carver, p, in);
    const cuda::RoiLists lists(&carver, call.tables);
    call.build(gpu);
    lists.build(kName, gpu, call.tables);
    const cuda::TilePlan plan(call.layout, in.data);
    cuda::launch(kName, gpu, cuda::backward_kernel<T>, plan.blocks(), cuda::kTileThreads,
                 call.tables, lists, plan, data_of<const T>(d_out), data_of<T>(d.data));
    if (!is_absent(d.rois)) {
      cuda::launch_roi_gradient<T>(kName, gpu, cuda::GradientRule<T>{call.tables}, call.layout,
                                   Pyramid::one(p.spatial_scale), in, d_out, d.rois);
    }
  });
}

}  // namespace gluon_roi
