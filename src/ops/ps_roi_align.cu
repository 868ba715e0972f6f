// SPDX-License-Identifier: Apache-2.0
// PSROIAlign in CUDA kernels; ps_roi_align.h defines the result.
//
// Forward: a block owns some channels of one RoI, a thread (channel, p, q). Merged taps of both
// axes are in shared memory, and outputs are written contiguously. Backward: a block owns a tile of
// the map in kTileChannels channels of one bin, and walks over the RoIs whose bin touches it, in
// their order. There are no atomics; all of d_data is written, once. The gradient of a box is
// summed by one block, in a tree of fixed shape. Workspace: heads and taps of the RoIs; backward
// the lists of each image's RoIs as well, and with rois_grad the taps with their derivatives.
#include "../cuda/align.h"
#include "ps_roi_align.h"

namespace gluon_roi {
namespace cuda {
namespace {

// The weight of a cell in a bin's taps, 0 if it has none.
template <class G>
DEVICE_INLINE G weight_of(const Tap<G>* taps, int32_t begin, int32_t end, int32_t cell) {
  const int32_t found = lower_bound(taps, begin, end, cell);
  return found < end && taps[found].cell == cell ? taps[found].weight : G(0);
}

template <class T>
__global__ void __launch_bounds__(kTileThreads)
    backward_kernel(AlignTable<SumOf<T>> tables, RoiLists lists, TilePlan plan, int64_t,
                    const T* d_out, T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  const int p = tile.group_y, q = tile.group_x;
  A sum[kTileChannels] = {};
  const auto meets = [&](int64_t k) {
    const TapView<Tap<A>> view = tables.by_bins(k);
    const int32_t *y = view.y_begin + p, *x = view.x_begin + q;
    if (y[0] == y[1] || x[0] == x[1]) return false;
    return tile.meets(static_cast<int32_t>(view.y_taps[y[0]].cell),
                      static_cast<int32_t>(view.y_taps[y[1] - 1].cell) + 1,
                      static_cast<int32_t>(view.x_taps[x[0]].cell),
                      static_cast<int32_t>(view.x_taps[x[1] - 1].cell) + 1);
  };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    const TapView<Tap<A>> view = tables.by_bins(k);
    const int32_t *y = view.y_begin + p, *x = view.x_begin + q;
    const A weight =
        weight_of(view.y_taps, y[0], y[1], tile.y) * weight_of(view.x_taps, x[0], x[1], tile.x);
    if (weight == 0) return;
    add_gradients(tile, plan, d_out, k, static_cast<int64_t>(p) * plan.layout.pooled_width + q,
                  weight, sum);
  });
  store_tile(tile, sum, d_data);
}

}  // namespace
}  // namespace cuda

size_t PSROIAlign::workspace(const Params& p, const Inputs& in, bool backward) {
  return cuda::align_workspace<PSROIAlign>(p, in, backward);
}

void PSROIAlign::forward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& out) {
  cuda::align_forward<PSROIAlign>(gpu, p, in, out);
}

void PSROIAlign::backward(Gpu gpu, const Params& p, const Inputs& in, const Tensor& d_out,
                          const Gradients& d) {
  cuda::align_backward<PSROIAlign>(gpu, p, in, d_out, d,
                                   [](auto type) { return cuda::backward_kernel<decltype(type)>; });
}

}  // namespace gluon_roi
