// SPDX-License-Identifier: Apache-2.0
#include "ps_roi_pool.h"

#include "../bindings/c.h"
#include "../cpu/bin_table.h"
#include "../cpu/position_sensitive.h"

namespace gluon_roi {

using namespace cpu;

template <class T>
void PSROIPool::forward(const Params& p, const RoiArrays& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<float> table(kName, in, p.bad_index);
  BinTable bin_table(p.pooled_height, p.pooled_width, in.data);
  const auto make_bins = [&](const Chunk& rois) {
    bin_table.make(rule(p), p.spatial_scale, table, rois);
  };
  const ChannelLayout layout = PSROIPool::layout(p, in.data.shape[1]);
  T* result = data_of<T>(out);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width, bins = layout.bins();

  const auto pool = [&](const GroupTask<A>& task, const Chunk& rois, const auto* maps, A* tile,
                        auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      T* roi_out = result + task.first_output(table.order[i], bins);
      const T* later_out = result + task.first_output(table.ahead(i, table.kFarAhead), bins);
      for (int ph = task.p_begin; ph < task.p_end; ++ph) {
        const int64_t first_bin = int64_t{ph} * p.pooled_width + task.q_begin;
        prefetch_lanes(task.lanes, later_out + first_bin, bins);
        const int32_t* y = bin_table.row_edges(i) + 2 * ph;
        const int32_t* x = bin_table.column_edges(i) + 2 * task.q_begin;
        const auto* map = maps;
        A* mean = tile;
        for (int g = 0; g < task.groups; ++g, map += cells * Values::kCount) {
          for (int pw = task.q_edge[g]; pw < task.q_edge[g + 1]; ++pw, x += 2) {
            Values sum = Values::all(0);
            for_each_cell<Values::kCount>(y, x, width, [&](int64_t offset) INLINE_LAMBDA {
              sum += Values::load(map + offset);
            });
            const int64_t n = bin_area(y, x);
            sum /= Values::all(n > 0 ? static_cast<A>(n) : A(1));
            sum.store(mean);
            mean += Values::kCount;
          }
        }
        unpack_planes(tile, bins, task.lanes, task.q_end - task.q_begin, roi_out + first_bin, simd);
      }
    }
  };
  forward_by_groups<T>(layout, in.data, table, bin_table, make_bins, out, pool);
}

template <class T>
void PSROIPool::backward(const Params& p, const RoiArrays& in, const Tensor& d_out_tensor,
                         const RoiArrays& d) {
  using A = SumOf<T>;
  const RoiTable<float> table(kName, in, p.bad_index);
  BinTable bin_table(p.pooled_height, p.pooled_width, in.data);
  const auto make_bins = [&](const Chunk& rois) {
    bin_table.make(rule(p), p.spatial_scale, table, rois);
  };
  const ChannelLayout layout = PSROIPool::layout(p, in.data.shape[1]);
  const T* d_out = data_of<const T>(d_out_tensor);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width, bins = layout.bins();

  const auto add_gradients = [&](const GroupTask<A>& task, const Chunk& rois, A* d_maps, A* tile,
                                 auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      const T* roi_d_out = d_out + task.first_output(table.order[i], bins);
      const T* later_d_out = d_out + task.first_output(table.ahead(i, table.kFarAhead), bins);
      for (int ph = task.p_begin; ph < task.p_end; ++ph) {
        const int64_t first_bin = int64_t{ph} * p.pooled_width + task.q_begin;
        prefetch_lanes(task.lanes, later_d_out + first_bin, bins);
        pack_planes(roi_d_out + first_bin, bins, task.lanes, task.q_end - task.q_begin, tile, simd);
        const int32_t* y = bin_table.row_edges(i) + 2 * ph;
        const int32_t* x = bin_table.column_edges(i) + 2 * task.q_begin;
        A* d_map = d_maps;
        const A* d_mean = tile;
        for (int g = 0; g < task.groups; ++g, d_map += cells * Values::kCount) {
          for (int pw = task.q_edge[g]; pw < task.q_edge[g + 1]; ++pw, x += 2) {
            Values share = Values::load(d_mean);
            d_mean += Values::kCount;
            const int64_t n = bin_area(y, x);
            if (n == 0) continue;
            share /= Values::all(static_cast<A>(n));
            for_each_cell<Values::kCount>(
                y, x, width, [&](int64_t offset) INLINE_LAMBDA { share.add_to(d_map + offset); });
          }
        }
      }
    }
  };
  backward_by_groups<T>(layout, d.data, table, bin_table, make_bins, d_out_tensor, add_gradients);
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(PSROIPool, ps_roi_pool)
