// SPDX-License-Identifier: Apache-2.0
#include "roi_pool.h"

#include "../bindings/c.h"
#include "../cpu/bin_table.h"
#include "../cpu/tasks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

template <class T>
void ROIPool::forward(const Params& p, const RoiArrays& in, const Tensor& out) {
  using A = SumOf<T>;
  RoiTable<float> table(kName, in, p.bad_index);
  table.sort_by_lower_edge();
  BinTable bin_table(p.pooled_height, p.pooled_width, in.data);
  bin_table.make(rule(p), p.spatial_scale, table, Chunk{0, table.count()});
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t channels = in.data.shape[1];
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = static_cast<int64_t>(bin_table.pooled_height) * bin_table.pooled_width;
  table.fill_special_rows(result, channels * bins);

  parallel_for(ChannelTask<A>::count(in.data), elements(in.data) + elements(out), [&](int64_t id) {
    const ChannelTask<A> task(id, in.data);
    if (table.begin[task.image] == table.begin[task.image + 1]) return;
    A* block = scratch<A>((cells + bins) * kLanes<A>);
    A* tile = block + cells * kLanes<A>;
    const auto& runs = bin_table.coverage.runs(task.image);
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      int64_t packed = 0;  // rows
      for (int64_t i = table.begin[task.image]; i < table.begin[task.image + 1]; ++i) {
        const int64_t k = table.order[i];
        GradualPrefetch<T> target(result + task.first_output(table.ahead(i), bins),
                                  task.lanes * bins, bin_table.pooled_height);
        const int32_t* y = bin_table.row_edges(i);
        packed = pack_rows(runs, packed, y[2 * bin_table.pooled_height - 1], width,
                           data + task.offset, cells, task.lanes, block, simd);
        A* value = tile;
        for (int ph = 0; ph < bin_table.pooled_height; ++ph, y += 2) {
          target.next();
          const int32_t* x = bin_table.column_edges(i);
          for (int pw = 0; pw < bin_table.pooled_width; ++pw, x += 2, value += kLanes<A>) {
            Values best = Values::all(bin_area(y, x) > 0 ? kLowest<T> : A(0));
            for_each_cell<Values::kCount>(y, x, width, [&](int64_t offset) INLINE_LAMBDA {
              best.keep_greater(Values::load(block + offset));
            });
            best.store(value);
          }
        }
        unpack_planes(tile, bins, task.lanes, bins, result + task.first_output(k, bins), simd);
      }
    });
  });
}

template <class T>
void ROIPool::backward(const Params& p, const RoiArrays& in, const Tensor& d_out_tensor,
                       const RoiArrays& d) {
  using A = SumOf<T>;
  const RoiTable<float> table(kName, in, p.bad_index);
  BinTable bin_table(p.pooled_height, p.pooled_width, in.data);
  bin_table.make(rule(p), p.spatial_scale, table, Chunk{0, table.count()});
  const T* data = data_of<const T>(in.data);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = static_cast<int64_t>(bin_table.pooled_height) * bin_table.pooled_width;

  const int64_t work = 2 * elements(d.data) + elements(d_out_tensor);
  parallel_for(ChannelTask<A>::count(in.data), work, [&](int64_t id) {
    const ChannelTask<A> task(id, in.data);
    T* planes = result + task.offset;
    // The sums are in scratch memory. The block of the maps is stored in the gradient's own memory
    // until the end, if it fits there.
    const bool in_place = std::is_same<T, A>::value && task.lanes == kLanes<A>;
    A* sums = scratch<A>(((in_place ? 1 : 2) * cells + bins) * kLanes<A>);
    A* tile = sums + cells * kLanes<A>;
    A* block = in_place ? reinterpret_cast<A*>(planes) : tile + bins * kLanes<A>;
    const auto& runs = bin_table.coverage.runs(task.image);
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      pack_runs(runs, data + task.offset, cells, task.lanes, block, simd);
      clear_runs(runs, sums);
      for (int64_t i = table.begin[task.image]; i < table.begin[task.image + 1]; ++i) {
        const int64_t k = table.order[i];
        pack_planes(d_out + task.first_output(k, bins), bins, task.lanes, bins, tile, simd);
        GradualPrefetch<T> next_d_out(d_out + task.first_output(table.ahead(i), bins),
                                      task.lanes * bins, bin_table.pooled_height);
        const A* d_bins = tile;
        const int32_t* y = bin_table.row_edges(i);
        for (int ph = 0; ph < bin_table.pooled_height; ++ph, y += 2) {
          next_d_out.next();
          const int32_t* x = bin_table.column_edges(i);
          for (int pw = 0; pw < bin_table.pooled_width; ++pw, x += 2, d_bins += kLanes<A>) {
            Values best = Values::all(kLowest<T>);
            for_each_cell<Values::kCount>(y, x, width, [&](int64_t offset) INLINE_LAMBDA {
              best.keep_greater(Values::load(block + offset));
            });
            // The first cell with the maximum gets the gradient; no cell does if there is no
            // maximum.
            Values share = Values::load(d_bins), lost = Values::all(0);
            share.move_where_equal(best, Values::all(kLowest<T>), &lost);
            for_each_cell<Values::kCount>(y, x, width, [&](int64_t offset) INLINE_LAMBDA {
              Values sum = Values::load(sums + offset);
              share.move_where_equal(Values::load(block + offset), best, &sum);
              sum.store(sums + offset);
            });
          }
        }
      }
      end_gradients(runs, false, sums, cells, task.lanes, cells, planes, simd);
    });
  });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(ROIPool, roi_pool)
