// SPDX-License-Identifier: Apache-2.0
// The common part of ROIPool and PSROIPool, whose bins are rectangles of cells. Op::rule(params)
// gives the bins, Op::layout(params, channels) the score maps.
#pragma once
#include "forward.h"
#include "tiles.h"

namespace gluon_roi::cuda {

// The bins of a RoI along both axes, with two edges for each.
struct BinView {
  const int32_t *y, *x;
};
DEVICE_INLINE BinView stage_bins(const BinTable& tables, int64_t k, char* buffer, const char* end) {
  const int32_t* edges =
      stage(tables.row_edges(k), 2 * (tables.pooled_height + tables.pooled_width), &buffer, end);
  return BinView{edges, edges + 2 * tables.pooled_height};
}

// Base class of Call<ROIPool, T> and Call<PSROIPool, T>.
template <class Op, class T>
struct PoolCall {
  const typename Op::Params& p;
  const RoiArrays& in;
  ChannelLayout layout;
  BinTable tables;
  RoiLists lists;

  PoolCall(WorkspaceArena* arena, const typename Op::Params& params, const RoiArrays& inputs, bool)
      : p(params),
        in(inputs),
        layout(Op::layout(p, in.data.shape[1])),
        tables(arena, p, in),
        lists(arena, tables) {}

  // `rule` is a Rule of forward_kernel.
  template <class Rule>
  void pool(const Gpu& gpu, const Rule& rule, const Tensor& out) const {
    tables.build(gpu, Op::rule(p), p.spatial_scale);
    launch_forward<T>(gpu, rule, layout, in.data, out);
  }
  // `kernel` writes d_data.
  template <class Kernel>
  void pool_backward(const Gpu& gpu, Kernel* kernel, const Tensor& d_out,
                     const RoiArrays& d) const {
    if (d_out.shape[0] == 0) return zero_fill(gpu, d.data);
    tables.build(gpu, Op::rule(p), p.spatial_scale);
    lists.build(gpu, tables);
    const TilePlan plan(layout, in.data);
    launch(gpu, kernel, plan.blocks(), kTileThreads, tables, lists, plan, data_of<const T>(in.data),
           data_of<const T>(d_out), data_of<T>(d.data));
  }
};

}  // namespace gluon_roi::cuda
