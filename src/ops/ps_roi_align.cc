// SPDX-License-Identifier: Apache-2.0
#include "ps_roi_align.h"

#include "../bindings/c.h"
#include "../cpu/align.h"

namespace gluon_roi {

using namespace cpu;

template <class T>
void PSROIAlign::forward(const Params& p, const Inputs& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<A> table(kName, in, p.bad_index);
  TapTable<A> axes(p.pooled_height, p.pooled_width, in.data);
  const PositionSensitive layout = PSROIAlign::layout(p, in.data.shape[1]);
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t pooled_width = p.pooled_width, bins = p.pooled_height * pooled_width;
  table.fill_special_rows(result, layout.output_dim * bins);

  const int across = GroupTask<A>::groups_across(layout, in.data);
  const auto pool = [&](const GroupTask<A>& task, const auto* block, A* tile,
                        auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    constexpr int kCount = Values::kCount;
    const int64_t first = task.p_begin * pooled_width + task.q_begin;
    const Chunk rois = table.of_image(task.image, axes.chunk);
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      const int64_t k = table.order[i];
      prefetch_lanes(task.lanes,
                     result + task.first_output(table.ahead(i, table.kFarAhead), bins) + first,
                     bins);
      const Tap<A>* taps = axes.taps(i);
      const auto y_range = axes.row_ranges(i)[task.p_begin];
      const auto* map = block;
      for (int g = 0; g < task.groups; ++g, map += cells * kCount) {
        const auto x_range = axes.column_ranges(i)[task.q_begin + g];
        Values sum = Values::all(0);
        for (int32_t r = y_range.begin; r < y_range.end; ++r) {
          const auto* line = map + taps[r].cell * width * kCount;
          Values row = Values::all(0);
          for (int32_t t = x_range.begin; t < x_range.end; ++t) {
            row.add_weighted(Values::load(line + taps[t].offset(kCount)), taps[t].weight);
          }
          sum.add_weighted(row, taps[r].weight);
        }
        sum.store(tile + g * kCount);
      }
      unpack_planes(tile, bins, task.lanes, task.groups,
                    result + task.first_output(k, bins) + first, simd);
    }
  };
  const int64_t work = elements(in.data) + elements(out);
  for_each_chunk(table.count(), rois_at_a_time<T>(in.data, axes.bytes()), [&](const Chunk& chunk) {
    axes.make(rule(p), table, chunk);
    parallel_for(GroupTask<A>::count(layout, in.data, across), work, [&](int64_t id) {
      const GroupTask<A> task(id, layout, in.data, across);
      if (table.of_image(task.image, chunk).empty()) return;
      read_maps(task, layout, axes.coverage, data, cells, pool);
    });
  });
}

template <class T>
void PSROIAlign::backward(const Params& p, const Inputs& in, const Tensor& d_out_tensor,
                          const Gradients& d) {
  using A = SumOf<T>;
  const RoiTable<A> table(kName, in, p.bad_index);
  TapTable<A> axes(p.pooled_height, p.pooled_width, in.data);
  const PositionSensitive layout = PSROIAlign::layout(p, in.data.shape[1]);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t pooled_width = p.pooled_width, bins = p.pooled_height * pooled_width;

  const int across = GroupTask<A>::groups_across(layout, in.data);
  const auto add_gradients = [&](const GroupTask<A>& task, A* block, A* tile,
                                 auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    constexpr int kCount = Values::kCount;
    const int64_t first = task.p_begin * pooled_width + task.q_begin;
    const Chunk rois = table.of_image(task.image, axes.chunk);
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      const int64_t k = table.order[i];
      prefetch_lanes(task.lanes,
                     d_out + task.first_output(table.ahead(i, table.kFarAhead), bins) + first,
                     bins);
      pack_planes(d_out + task.first_output(k, bins) + first, bins, task.lanes, task.groups, tile,
                  simd);
      const Tap<A>* taps = axes.taps(i);
      const auto y_range = axes.row_ranges(i)[task.p_begin];
      A* map = block;
      for (int g = 0; g < task.groups; ++g, map += cells * kCount) {
        const Values d_bin = Values::load(tile + g * kCount);
        const auto x_range = axes.column_ranges(i)[task.q_begin + g];
        for (int32_t r = y_range.begin; r < y_range.end; ++r) {
          A* line = map + taps[r].cell * width * kCount;
          const Values row = d_bin.weighted(taps[r].weight);
          for (int32_t t = x_range.begin; t < x_range.end; ++t) {
            row.weighted(taps[t].weight).add_to(line + taps[t].offset(kCount));
          }
        }
      }
    }
  };
  const int64_t work = elements(d.data) + elements(d_out_tensor);
  for_each_chunk(
      table.count(), gradients_at_a_time<T>(in.data, axes.bytes()), [&](const Chunk& chunk) {
        axes.make(rule(p), table, chunk);
        const bool accumulate = chunk.begin > 0;
        parallel_for(GroupTask<A>::count(layout, in.data, across), work, [&](int64_t id) {
          const GroupTask<A> task(id, layout, in.data, across);
          if (accumulate && table.of_image(task.image, chunk).empty()) return;
          add_to_maps(task, layout, axes.coverage, accumulate, result, cells, add_gradients);
        });
      });
  if (!is_absent(d.rois)) align_roi_gradient<PSROIAlign, T>(p, in, d_out_tensor, d.rois);
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(PSROIAlign, ps_roi_align)
