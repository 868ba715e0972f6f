// SPDX-License-Identifier: Apache-2.0
// The gradient of PSROIAlign's maps. A channel group belongs to one bin, so a thread block visits
// only the RoIs of which this bin reads the tile.
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

template <class T>
struct Call<PSROIAlign, T> : AlignCall<PSROIAlign, T> {
  using AlignCall<PSROIAlign, T>::AlignCall;

  void backward(const Gpu& gpu, const Tensor& d_out, const RoiArrays& d) const {
    this->align_backward(gpu, backward_kernel<T>, d_out, d);
  }
};

}  // namespace cuda

template struct CudaKernels<PSROIAlign>;

}  // namespace gluon_roi
