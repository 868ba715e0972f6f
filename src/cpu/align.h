// The loops of the operators whose bins read all channels of a map, each axis through taps of its
// own: ROIAlign and PrROIPool. Op::rule(params) says what a bin weighs.
#pragma once
#include "box_gradient.h"
#include "taps.h"
#include "tasks.h"
#include "threads.h"

namespace gluon_roi::cpu {

// The taps of a call, ready for loops that walk down the map.
template <class Op, class G>
TapTable<G> rows_by_cell(const typename Op::Params& p, const RoiTable<G>& table,
                         const Tensor& data) {
  TapTable<G> taps(p.pooled_height, p.pooled_width, Op::rule(p), table, data);
  taps.sort_rows_by_cell();
  return taps;
}

template <class Op, class T>
void align_forward(const typename Op::Params& p, const Inputs& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<A> table(Op::kName, in, p.bad_index);
  const TapTable<A> taps = rows_by_cell<Op>(p, table, in.data);
  const T* data = static_cast<const T*>(in.data.data);
  T* result = static_cast<T*>(out.data);
  const int64_t channels = in.data.shape[1];
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t columns = taps.columns, outputs = taps.rows * columns;
  table.fill_special_rows(result, channels * outputs);

  parallel_for(ChannelTask<A>::count(in.data), elements(in.data) + elements(out), [&](int64_t id) {
    const ChannelTask<A> task(id, in.data);
    if (table.begin[task.image] == table.begin[task.image + 1]) return;
    A* block = scratch<A>((cells + outputs + columns) * kLanes<A>);
    A* tile = block + cells * kLanes<A>;  // the outputs of one RoI, channel-last
    A* row = tile + outputs * kLanes<A>;  // one row of the map, through Ax
    const auto& runs = taps.coverage.runs(task.image);
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      pack_runs(runs, data + task.offset, cells, task.lanes, block);
      for (int64_t i = table.begin[task.image]; i < table.begin[task.image + 1]; ++i) {
        const int64_t k = table.order[i];
        const auto* x_ranges = taps.column_ranges(k);
        const auto rows = taps.all_rows(k);
        GradualPrefetch<T> target(result + task.row(table.ahead(i), outputs), task.lanes * outputs,
                                  rows.end - rows.begin);
        std::fill(tile, tile + outputs * kLanes<A>, A(0));
        for (int64_t r = rows.begin; r < rows.end; ++r) {
          target.next();
          if (r == rows.begin || taps.taps[r].cell != taps.taps[r - 1].cell) {
            const A* line = block + taps.taps[r].cell * width * kLanes<A>;
            for (int64_t q = 0; q < columns; ++q) {
              Values sum = Values::all(0);
              for (int64_t t = x_ranges[q].begin; t < x_ranges[q].end; ++t) {
                sum += taps.weighted(t, Values::load(line + taps.offset(t, kLanes<A>)));
              }
              sum.store(row + q * kLanes<A>);
            }
          }
          A* bins = tile + taps.taps[r].bin * columns * kLanes<A>;
          for (int64_t j = 0; j < columns * kLanes<A>; j += kLanes<A>) {
            Values sum = Values::load(bins + j);
            sum += taps.weighted(r, Values::load(row + j));
            sum.store(bins + j);
          }
        }
        unpack_planes(tile, outputs, task.lanes, outputs, result + task.row(k, outputs));
      }
    });
  });
}

template <class Op, class T>
void align_backward(const typename Op::Params& p, const Inputs& in, const Tensor& d_out,
                    const Tensor& d_data) {
  using A = SumOf<T>;
  const RoiTable<A> table(Op::kName, in, p.bad_index);
  const TapTable<A> taps = rows_by_cell<Op>(p, table, in.data);
  const T* gradient = static_cast<const T*>(d_out.data);
  T* result = static_cast<T*>(d_data.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t columns = taps.columns, outputs = taps.rows * columns;

  const int64_t work = elements(d_data) + elements(d_out);
  parallel_for(ChannelTask<A>::count(in.data), work, [&](int64_t id) {
    const ChannelTask<A> task(id, in.data);
    A* block = scratch<A>((cells + outputs) * kLanes<A>);
    A* tile = block + cells * kLanes<A>;
    const auto& runs = taps.coverage.runs(task.image);
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      clear_runs(runs, block);
      for (int64_t i = table.begin[task.image]; i < table.begin[task.image + 1]; ++i) {
        const int64_t k = table.order[i];
        const auto* x_ranges = taps.column_ranges(k);
        const auto rows = taps.all_rows(k);
        pack_planes(gradient + task.row(k, outputs), outputs, task.lanes, outputs, tile);
        GradualPrefetch<T> slopes(gradient + task.row(table.ahead(i), outputs),
                                  task.lanes * outputs, rows.end - rows.begin);
        for (int64_t begin = rows.begin, end; begin < rows.end; begin = end) {
          end = taps.same_cell(begin, rows.end);
          slopes.next(end - begin);
          A* line = block + taps.taps[begin].cell * width * kLanes<A>;
          for (int64_t q = 0; q < columns; ++q) {
            Values slope = Values::all(0);
            for (int64_t r = begin; r < end; ++r) {
              const A* source = tile + (taps.taps[r].bin * columns + q) * kLanes<A>;
              slope += taps.weighted(r, Values::load(source));
            }
            for (int64_t t = x_ranges[q].begin; t < x_ranges[q].end; ++t) {
              A* target = line + taps.offset(t, kLanes<A>);
              Values total = Values::load(target);
              total += taps.weighted(t, slope);
              total.store(target);
            }
          }
        }
      }
      unpack_runs(runs, block, cells, task.lanes, cells, result + task.offset);
    });
  });
}

template <class Op, class T>
void align_roi_gradient(const typename Op::Params& p, const Inputs& in, const Tensor& d_out,
                        const Tensor& d_rois) {
  using G = SumOf<T>;
  const RoiTable<G> table(Op::kName, in, p.bad_index);
  const int64_t channels = in.data.shape[1], cells = in.data.shape[2] * in.data.shape[3];
  const int64_t outputs = static_cast<int64_t>(p.pooled_height) * p.pooled_width;
  write_roi_gradients(
      table, in.coordinates, 4 * elements(d_out), d_rois,
      [&](int64_t k, const Roi<G>& roi, double* gradient) {
        const RoiGradient<G> terms(p.pooled_height, p.pooled_width, Op::rule(p), roi, in.data);
        for (int64_t c = 0; c < channels; ++c) {
          const T* map = static_cast<const T*>(in.data.data) + (roi.image * channels + c) * cells;
          terms.add([&](int, int) { return map; },
                    static_cast<const T*>(d_out.data) + (k * channels + c) * outputs, gradient);
        }
      });
}

}  // namespace gluon_roi::cpu
