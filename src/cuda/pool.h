// SPDX-License-Identifier: Apache-2.0
// The calls of ROIPool and PSROIPool, whose bins are rectangles of whole cells. Op::rule(params)
// gives the bins, Op::layout(params, channels) the score maps.
#pragma once
#include "forward.h"
#include "tiles.h"

namespace gluon_roi::cuda {

// The bins of a RoI: two edges for each.
struct BinView {
  const int32_t *y, *x;
};
DEVICE_INLINE BinView stage_bins(const BinTable& tables, int64_t k, char* room, const char* end) {
  const int bins = tables.bins_y + tables.bins_x;
  const int32_t* edges = stage(tables.row_edges(k), 2 * bins, &room, end);
  return BinView{edges, edges + 2 * tables.bins_y};
}

template <class Op>
struct PoolCall {
  PositionSensitive layout;
  BinTable tables;
  RoiLists lists;

  PoolCall(Carver* carver, const typename Op::Params& p, const Inputs& in)
      : layout(Op::layout(p, in.data.shape[1])),
        tables(Op::kName, carver, in, p.pooled_height, p.pooled_width, p.bad_index),
        lists(carver, tables) {}
};

template <class Op>
size_t pool_workspace(const typename Op::Params& p, const Inputs& in) {
  Carver carver;
  const PoolCall<Op> measured(&carver, p, in);
  return carver.size();
}

// Rule is a rule of forward_kernel.
template <class Op, template <class> class Rule>
void pool_forward(const Gpu& gpu, const typename Op::Params& p, const Inputs& in,
                  const Tensor& out) {
  Carver carver(gpu.workspace);
  const PoolCall<Op> call(&carver, p, in);
  call.tables.build(Op::kName, gpu, Op::rule(p), p.spatial_scale);
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    launch_forward<T>(Op::kName, gpu, Rule<T>{call.tables}, call.layout, in.data, out);
  });
}

// kernel(T{}) is the kernel that writes d_data, for elements of type T.
template <class Op, class Kernel>
void pool_backward(const Gpu& gpu, const typename Op::Params& p, const Inputs& in,
                   const Tensor& d_out, const Gradients& d, const Kernel& kernel) {
  if (d_out.shape[0] == 0) return zero_fill(Op::kName, gpu, d.data);
  Carver carver(gpu.workspace);
  const PoolCall<Op> call(&carver, p, in);
  call.tables.build(Op::kName, gpu, Op::rule(p), p.spatial_scale);
  call.lists.build(Op::kName, gpu, call.tables);
  with_dtype(in.data.dtype, [&](auto type) {
    using T = decltype(type);
    const TilePlan plan(call.layout, in.data);
    launch(Op::kName, gpu, kernel(type), plan.blocks(), kTileThreads, call.tables, call.lists, plan,
           data_of<const T>(in.data), data_of<const T>(d_out), data_of<T>(d.data));
  });
}

}  // namespace gluon_roi::cuda
