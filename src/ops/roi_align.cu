// ROIAlign and PyramidROIAlign in CUDA kernels; what is computed stands in roi_align.h and
// pyramid_roi_align.h. The tables hold every RoI on its own map; the main kernels run once a map.
//
// Forward: a block owns some channels of one RoI, a thread (channel, p, q); merged taps of both
// axes in shared memory, outputs written contiguously. Backward: a block owns a tile of the map in
// kTileChannels channels and walks over the RoIs that touch it, in their order; each thread looks
// up the bins that read its cell. No atomics; d_data is written once, and whole. The gradient of a
// box is summed by one block, in a tree of fixed shape. Workspace: heads and taps of the RoIs;
// backward their taps by cell and the lists of each image's RoIs, and with rois_grad the taps with
// their derivatives.
#include "../cuda/align.h"
#include "../cuda/tiles.h"
#include "roi_align.h"

namespace gluon_roi {
namespace cuda {
namespace {

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(AlignTable<SumOf<T>> tables, RoiLists lists, TilePlan plan, const T* d_out,
                    T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  A sum[kTileChannels] = {};
  const auto meets = [&](int64_t k) {
    const RoiHead& head = tables.heads[k];
    return tile.meets(head.y_begin, head.y_end, head.x_begin, head.x_end);
  };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    const RoiHead& head = tables.heads[k];
    if (!tile.inside(head.y_begin, head.y_end, head.x_begin, head.x_end)) return;
    const int32_t *y_cells = tables.row_cells(k), *x_cells = tables.column_cells(k);
    const AxisTap<A>*y_taps = tables.row_by_cell(k), *x_taps = tables.column_by_cell(k);
    const int32_t x_first = x_cells[tile.x], x_stop = x_cells[tile.x + 1];
    for (int32_t i = y_cells[tile.y]; i < y_cells[tile.y + 1]; ++i) {
      const AxisTap<A> y = y_taps[i];
      for (int32_t j = x_first; j < x_stop; ++j) {
        const AxisTap<A> x = x_taps[j];
        add_gradients(tile, plan, d_out, k, static_cast<int64_t>(y.cell) * tables.bins_x + x.cell,
                      y.weight * x.weight, sum);
      }
    }
  });
  store_tile(tile, sum, d_data);
}

template <class T>
struct Prepared {
  PositionSensitive layout;
  int32_t bad_index;
  SampleRule rule;
  AlignTable<SumOf<T>> tables;
  RoiLists lists;

  Prepared(Carver* carver, const AlignOnMaps& p, const Inputs& in, bool backward)
      : layout(own_channels(in.data.shape[1], p.pooled_height, p.pooled_width)),
        bad_index(p.bad_index),
        rule{p.pyramid, p.aligned, p.sampling_ratio},
        tables(p.op, carver, in, p.pooled_height, p.pooled_width, p.bad_index, rule, backward),
        lists(carver, tables) {}
  BoxGradient<T> box_gradient(const char* op, Carver* carver, const Inputs& in) const {
    return BoxGradient<T>(op, carver, in, layout, bad_index, rule);
  }
};

}  // namespace
}  // namespace cuda

size_t AlignOnMaps::workspace(const Inputs& in, bool backward) const {
  cuda::Carver carver;
  with_dtype(in.data.dtype, [&](auto type) {
    const cuda::Prepared<decltype(type)> measured(&carver, *this, in, backward);
    if (backward && rois_grad) measured.box_gradient(op, &carver, in);
  });
  return carver.size();
}

void AlignOnMaps::forward(Gpu gpu, const Inputs& in, const Tensor& out) const {
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::Carver carver(gpu.workspace);
    const cuda::Prepared<T> call(&carver, *this, in, false);
    call.tables.build(op, gpu);
    for (int32_t i = 0; i < in.count; ++i) {
      cuda::launch_forward<T>(op, gpu, cuda::AlignRule<T, false>{call.tables}, call.layout,
                              in.maps[i], out, i);
    }
  });
}

void AlignOnMaps::backward(Gpu gpu, const Inputs& in, const Tensor& d_out,
                           const Gradients& d) const {
  if (d_out.shape[0] == 0) {
    for (int32_t i = 0; i < in.count; ++i) zero_fill(gpu, d.maps[i]);
    return;
  }
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    cuda::Carver carver(gpu.workspace);
    const cuda::Prepared<T> call(&carver, *this, in, true);
    call.tables.build(op, gpu);
    call.lists.build(op, gpu, call.tables);
    for (int32_t i = 0; i < in.count; ++i) {
      const cuda::TilePlan plan(call.layout, in.maps[i]);
      cuda::launch(op, gpu, cuda::backward_kernel<T>, plan.blocks(), cuda::kTileThreads,
                   call.tables, call.lists.of_map(call.tables, i), plan,
                   static_cast<const T*>(d_out.data), static_cast<T*>(d.maps[i].data));
    }
    if (!is_absent(d.rois)) {
      call.box_gradient(op, &carver, in).run(op, gpu, call.layout, in, d_out, d.rois);
    }
  });
}

}  // namespace gluon_roi
