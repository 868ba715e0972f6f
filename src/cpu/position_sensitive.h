// SPDX-License-Identifier: Apache-2.0
// What PSROIPool and PSROIAlign do around their loops over RoIs and bins.
#pragma once
#include "rois.h"
#include "tasks.h"
#include "threads.h"

namespace gluon_roi::cpu {

// A forward pass. Calls pool(task, rois, maps, tile, simd) for each task; `rois` is the part of the
// chunk that belongs to the task's image. A cell of `maps` has a number for each channel of the
// task, or a single number where read_maps passes the channels one by one; `tile` is a buffer for
// one row of bins. `bins` is the operator's table of the bins along both axes (BinTable or
// TapTable), which make_bins(chunk) computes.
template <class T, class Table, class Bins, class MakeBins, class Kernel>
void forward_by_groups(const ChannelLayout& layout, const Tensor& data, const Table& table,
                       const Bins& bins, const MakeBins& make_bins, const Tensor& out,
                       const Kernel& pool) {
  using A = SumOf<T>;
  table.fill_special_rows(data_of<T>(out), layout.output_dim * layout.bins());
  const int64_t cells = data.shape[2] * data.shape[3], work = elements(data) + elements(out);
  const int groups_per_task = GroupTask<A>::max_groups_per_task(layout, data);
  for_each_chunk(table.count(), rois_at_a_time<T>(data, bins.bytes()), [&](const Chunk& chunk) {
    make_bins(chunk);
    parallel_for(GroupTask<A>::count(layout, data, groups_per_task), work, [&](int64_t id) {
      const GroupTask<A> task(id, layout, data, groups_per_task);
      const Chunk rois = table.of_image(task.image, chunk);
      if (rois.empty()) return;
      read_maps(task, layout, bins.coverage, data_of<const T>(data), cells,
                [&](const GroupTask<A>& part, const auto* maps, A* tile, auto simd)
                    INLINE_LAMBDA { pool(part, rois, maps, tile, simd); });
    });
  });
}

// The same for a backward pass: add_gradients(task, rois, d_maps, tile, simd) adds to the gradients
// of the task's score maps. Every cell of d_data is written.
template <class T, class Table, class Bins, class MakeBins, class Kernel>
void backward_by_groups(const ChannelLayout& layout, const Tensor& d_data, const Table& table,
                        const Bins& bins, const MakeBins& make_bins, const Tensor& d_out,
                        const Kernel& add_gradients) {
  using A = SumOf<T>;
  const int64_t cells = d_data.shape[2] * d_data.shape[3];
  const int64_t work = elements(d_data) + elements(d_out);
  const int groups_per_task = GroupTask<A>::max_groups_per_task(layout, d_data);
  const int64_t at_a_time = gradients_at_a_time<T>(d_data, bins.bytes());
  for_each_chunk(table.count(), at_a_time, [&](const Chunk& chunk) {
    make_bins(chunk);
    const bool accumulate = chunk.begin > 0;
    parallel_for(GroupTask<A>::count(layout, d_data, groups_per_task), work, [&](int64_t id) {
      const GroupTask<A> task(id, layout, d_data, groups_per_task);
      const Chunk rois = table.of_image(task.image, chunk);
      if (accumulate && rois.empty()) return;
      add_to_maps(task, layout, bins.coverage, accumulate, data_of<T>(d_data), cells,
                  [&](const GroupTask<A>& part, A* d_maps, A* tile, auto simd)
                      INLINE_LAMBDA { add_gradients(part, rois, d_maps, tile, simd); });
    });
  });
}

}  // namespace gluon_roi::cpu
