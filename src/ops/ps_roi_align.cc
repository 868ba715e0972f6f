// SPDX-License-Identifier: Apache-2.0
#include "ps_roi_align.h"

#include "../bindings/c.h"
#include "../cpu/align.h"
#include "../cpu/position_sensitive.h"

namespace gluon_roi {

using namespace cpu;

// There is a bin for each group (group_size is pooled_size), so a task's bins are its groups.

template <class T>
void PSROIAlign::forward(const Params& p, const RoiArrays& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<A> table(kName, in, p.bad_index);
  TapTable<A> tap_table(p.pooled_height, p.pooled_width, in.data);
  const auto make_taps = [&](const Chunk& rois) { tap_table.make(rule(p), table, rois); };
  const ChannelLayout layout = PSROIAlign::layout(p, in.data.shape[1]);
  T* result = data_of<T>(out);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width, bins = layout.bins();

  const auto pool = [&](const GroupTask<A>& task, const Chunk& rois, const auto* maps, A* tile,
                        auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    constexpr int kCount = Values::kCount;
    T* const out_of_bins = result + int64_t{task.p_begin} * p.pooled_width + task.q_begin;
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      const int64_t later = table.ahead(i, table.kFarAhead);
      prefetch_lanes(task.lanes, out_of_bins + task.first_output(later, bins), bins);
      const Tap<A>* taps = tap_table.taps(i);
      const auto y_range = tap_table.row_ranges(i)[task.p_begin];
      const auto* map = maps;
      for (int g = 0; g < task.groups; ++g, map += cells * kCount) {
        const auto x_range = tap_table.column_ranges(i)[task.q_begin + g];
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
                    out_of_bins + task.first_output(table.order[i], bins), simd);
    }
  };
  forward_by_groups<T>(layout, in.data, table, tap_table, make_taps, out, pool);
}

template <class T>
void PSROIAlign::backward(const Params& p, const RoiArrays& in, const Tensor& d_out_tensor,
                          const RoiArrays& d) {
  using A = SumOf<T>;
  const RoiTable<A> table(kName, in, p.bad_index);
  TapTable<A> tap_table(p.pooled_height, p.pooled_width, in.data);
  const auto make_taps = [&](const Chunk& rois) { tap_table.make(rule(p), table, rois); };
  const ChannelLayout layout = PSROIAlign::layout(p, in.data.shape[1]);
  const T* d_out = data_of<const T>(d_out_tensor);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width, bins = layout.bins();

  const auto add_gradients = [&](const GroupTask<A>& task, const Chunk& rois, A* d_maps, A* tile,
                                 auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    constexpr int kCount = Values::kCount;
    const T* const d_out_of_bins = d_out + int64_t{task.p_begin} * p.pooled_width + task.q_begin;
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      const int64_t later = table.ahead(i, table.kFarAhead);
      prefetch_lanes(task.lanes, d_out_of_bins + task.first_output(later, bins), bins);
      pack_planes(d_out_of_bins + task.first_output(table.order[i], bins), bins, task.lanes,
                  task.groups, tile, simd);
      const Tap<A>* taps = tap_table.taps(i);
      const auto y_range = tap_table.row_ranges(i)[task.p_begin];
      A* d_map = d_maps;
      for (int g = 0; g < task.groups; ++g, d_map += cells * kCount) {
        const Values d_bin = Values::load(tile + g * kCount);
        const auto x_range = tap_table.column_ranges(i)[task.q_begin + g];
        for (int32_t r = y_range.begin; r < y_range.end; ++r) {
          A* line = d_map + taps[r].cell * width * kCount;
          const Values row = d_bin.weighted(taps[r].weight);
          for (int32_t t = x_range.begin; t < x_range.end; ++t) {
            row.weighted(taps[t].weight).add_to(line + taps[t].offset(kCount));
          }
        }
      }
    }
  };
  backward_by_groups<T>(layout, d.data, table, tap_table, make_taps, d_out_tensor, add_gradients);
  if (!is_absent(d.rois)) align_roi_gradient<PSROIAlign, T>(p, in, d_out_tensor, d.rois);
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(PSROIAlign, ps_roi_align)
