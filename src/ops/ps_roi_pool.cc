// SPDX-License-Identifier: Apache-2.0
#include "ps_roi_pool.h"

#include "../bindings/c.h"
#include "../cpu/bin_table.h"
#include "../cpu/tasks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

template <class T>
void PSROIPool::forward(const Params& p, const Inputs& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<float> table(kName, in, p.bad_index);
  BinTable bin_table(p.pooled_height, p.pooled_width, in.data);
  const PositionSensitive layout = PSROIPool::layout(p, in.data.shape[1]);
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = static_cast<int64_t>(bin_table.pooled_height) * bin_table.pooled_width;
  table.fill_special_rows(result, layout.output_dim * bins);

  const int across = GroupTask<A>::groups_across(layout, in.data);
  const auto pool = [&](const GroupTask<A>& task, const auto* block, A* tile,
                        auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    const Chunk rois = table.of_image(task.image, bin_table.chunk);
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      const int64_t k = table.order[i];
      T* row = result + task.first_output(k, bins);
      const T* later = result + task.first_output(table.ahead(i, table.kFarAhead), bins);
      for (int ph = task.p_begin; ph < task.p_end; ++ph) {
        const int64_t first = int64_t{ph} * bin_table.pooled_width + task.q_begin;
        prefetch_lanes(task.lanes, later + first, bins);
        const int32_t* y = bin_table.row_edges(i) + 2 * ph;
        const int32_t* x = bin_table.column_edges(i) + 2 * task.q_begin;
        const auto* map = block;
        A* value = tile;
        for (int g = 0; g < task.groups; ++g, map += cells * Values::kCount) {
          for (int pw = task.q_edge[g]; pw < task.q_edge[g + 1]; ++pw, x += 2) {
            Values sum = Values::all(0);
            for_each_cell<Values::kCount>(y, x, width, [&](int64_t offset) INLINE_LAMBDA {
              sum += Values::load(map + offset);
            });
            const int64_t n = bin_area(y, x);
            sum /= Values::all(n > 0 ? static_cast<A>(n) : A(1));
            sum.store(value);
            value += Values::kCount;
          }
        }
        unpack_planes(tile, bins, task.lanes, task.q_end - task.q_begin, row + first, simd);
      }
    }
  };
  const int64_t work = elements(in.data) + elements(out);
  for_each_chunk(
      table.count(), rois_at_a_time<T>(in.data, bin_table.bytes()), [&](const Chunk& chunk) {
        bin_table.make(rule(p), p.spatial_scale, table, chunk);
        parallel_for(GroupTask<A>::count(layout, in.data, across), work, [&](int64_t id) {
          const GroupTask<A> task(id, layout, in.data, across);
          if (table.of_image(task.image, chunk).empty()) return;
          read_maps(task, layout, bin_table.coverage, data, cells, pool);
        });
      });
}

template <class T>
void PSROIPool::backward(const Params& p, const Inputs& in, const Tensor& d_out_tensor,
                         const Gradients& d) {
  using A = SumOf<T>;
  const RoiTable<float> table(kName, in, p.bad_index);
  BinTable bin_table(p.pooled_height, p.pooled_width, in.data);
  const PositionSensitive layout = PSROIPool::layout(p, in.data.shape[1]);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = static_cast<int64_t>(bin_table.pooled_height) * bin_table.pooled_width;

  const int across = GroupTask<A>::groups_across(layout, in.data);
  const auto add_gradients = [&](const GroupTask<A>& task, A* block, A* tile,
                                 auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    const Chunk rois = table.of_image(task.image, bin_table.chunk);
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      const int64_t k = table.order[i];
      const T* row = d_out + task.first_output(k, bins);
      const T* later = d_out + task.first_output(table.ahead(i, table.kFarAhead), bins);
      for (int ph = task.p_begin; ph < task.p_end; ++ph) {
        const int64_t first = int64_t{ph} * bin_table.pooled_width + task.q_begin;
        prefetch_lanes(task.lanes, later + first, bins);
        pack_planes(row + first, bins, task.lanes, task.q_end - task.q_begin, tile, simd);
        const int32_t* y = bin_table.row_edges(i) + 2 * ph;
        const int32_t* x = bin_table.column_edges(i) + 2 * task.q_begin;
        A* map = block;
        const A* d_bins = tile;
        for (int g = 0; g < task.groups; ++g, map += cells * Values::kCount) {
          for (int pw = task.q_edge[g]; pw < task.q_edge[g + 1]; ++pw, x += 2) {
            Values share = Values::load(d_bins);
            d_bins += Values::kCount;
            const int64_t n = bin_area(y, x);
            if (n == 0) continue;
            share /= Values::all(static_cast<A>(n));
            for_each_cell<Values::kCount>(
                y, x, width, [&](int64_t offset) INLINE_LAMBDA { share.add_to(map + offset); });
          }
        }
      }
    }
  };
  const int64_t work = elements(d.data) + elements(d_out_tensor);
  for_each_chunk(
      table.count(), gradients_at_a_time<T>(in.data, bin_table.bytes()), [&](const Chunk& chunk) {
        bin_table.make(rule(p), p.spatial_scale, table, chunk);
        const bool accumulate = chunk.begin > 0;
        parallel_for(GroupTask<A>::count(layout, in.data, across), work, [&](int64_t id) {
          const GroupTask<A> task(id, layout, in.data, across);
          if (accumulate && table.of_image(task.image, chunk).empty()) return;
          add_to_maps(task, layout, bin_table.coverage, accumulate, result, cells, add_gradients);
        });
      });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(PSROIPool, ps_roi_pool)
