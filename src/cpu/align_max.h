// SPDX-License-Identifier: Apache-2.0
// The CPU loops of ROIAlign with mode='max'. The samples of a RoI are the same for all channels, so
// they are listed once; values are computed and compared in lanes.
#pragma once
#include "../core/geometry/maximum.h"
#include "box_gradient.h"
#include "coverage.h"
#include "rois.h"
#include "tasks.h"
#include "threads.h"

namespace gluon_roi::cpu {

// The samples of a chunk of RoIs that are on the map.
template <class A>
struct SampleLists {
  struct AxisBin {
    const Sample<A>* samples;
    int64_t count;
    bool has_outside;  // samples, whose value is 0
  };
  Chunk chunk{0, 0};
  int64_t axis_bins_per_roi = 0;  // P + Q
  Vector<AxisBin> bins;           // of each RoI in the table's order: P along y, then Q along x
  Coverage coverage;

  template <class Rule>
  void make(const Rule& rule, int pooled_height, int pooled_width, const RoiTable<A>& table,
            const Chunk& rois, const Tensor& data) {
    chunk = rois;
    axis_bins_per_roi = int64_t{pooled_height} + pooled_width;
    bins.resize(static_cast<size_t>(chunk.count() * axis_bins_per_roi));
    lists_.resize(std::max(lists_.size(), static_cast<size_t>(chunk.shares())));
    Vector<Run> rows(static_cast<size_t>(chunk.count())), columns(rows.size());
    const auto height = static_cast<int32_t>(data.shape[2]);
    const auto width = static_cast<int32_t>(data.shape[3]);
    parallel_for(chunk.shares(), chunk.count() * axis_bins_per_roi * kElementsPerBin,
                 [&](int64_t number) {
                   Vector<Sample<A>>& list = lists_[number];
                   list.clear();
                   const Chunk share = chunk.share(number);
                   for (int64_t i = share.begin; i < share.end; ++i) {
                     const Roi<A>& roi = table.rois[table.order[i]];
                     const int64_t n = i - chunk.begin;
                     AxisBin* bin = bins.data() + n * axis_bins_per_roi;
                     bin = add(rule.axis(roi.y1(), roi.y2(), pooled_height, height), pooled_height,
                               &list, &rows[n], bin);
                     add(rule.axis(roi.x1(), roi.x2(), pooled_width, width), pooled_width, &list,
                         &columns[n], bin);
                   }
                   // The list does not grow any more, so its samples have addresses.
                   const Sample<A>* next = list.data();
                   for (int64_t b = (share.begin - chunk.begin) * axis_bins_per_roi;
                        b < (share.end - chunk.begin) * axis_bins_per_roi; ++b) {
                     bins[b].samples = next;
                     next += bins[b].count;
                   }
                 });
    coverage = Coverage(data);
    for (int64_t n = 0; n < chunk.count(); ++n) {
      if (rows[n].empty() || columns[n].empty()) continue;
      coverage.add(table.rois[table.order[chunk.begin + n]].image, rows[n], columns[n],
                   rows[n].count() * columns[n].count());
    }
    coverage.finish();
  }
  const AxisBin* of_roi(int64_t i) const {
    return bins.data() + (i - chunk.begin) * axis_bins_per_roi;
  }

 private:
  static constexpr int64_t kElementsPerBin = 100;
  Vector<Vector<Sample<A>>> lists_;  // of each share

  template <class Axis>
  static AxisBin* add(const Axis& axis, int axis_bins, Vector<Sample<A>>* list, Run* cells,
                      AxisBin* bin) {
    for (int q = 0; q < axis_bins; ++q, ++bin) {
      const size_t begin = list->size();
      int64_t first, last;
      axis.sample_range(q, &first, &last);
      for (int64_t i = first; i <= last; ++i) {
        const Sample<A> sample = axis.sample(q, i);
        if (!sample.inside) continue;
        list->push_back(sample);
        cells->include(sample.low);
        cells->include(sample.high);
      }
      bin->count = static_cast<int64_t>(list->size() - begin);
      bin->has_outside = static_cast<A>(bin->count) < axis.samples;
    }
    return bin;
  }
};

// bilinear_value() for the lanes of a block.
template <class Values, class A>
ALWAYS_INLINE Values bilinear_lanes(const A* block, int64_t width, const Sample<A>& y,
                                    const Sample<A>& x) {
  const auto row = [&](int32_t cell) INLINE_LAMBDA {
    const A* const line = block + cell * width * kLanes<A>;
    Values value = Values::load(line + int64_t{x.low} * kLanes<A>).weighted(x.low_weight);
    if (x.high_weight != 0) {
      value.add_weighted(Values::load(line + int64_t{x.high} * kLanes<A>), x.high_weight);
    }
    return value;
  };
  Values value = row(y.low).weighted(y.low_weight);
  if (y.high_weight != 0) value.add_weighted(row(y.high), y.high_weight);
  return value;
}

// Calls body(y, x) for the samples of a bin, row by row.
template <class AxisBin, class Body>
ALWAYS_INLINE void for_each_sample(const AxisBin& y_bin, const AxisBin& x_bin, const Body& body) {
  for (int64_t j = 0; j < y_bin.count; ++j) {
    for (int64_t i = 0; i < x_bin.count; ++i) body(y_bin.samples[j], x_bin.samples[i]);
  }
}

// The maxima of a bin in all lanes.
template <class Values, class T, class A, class AxisBin>
ALWAYS_INLINE Values largest_lanes(const A* block, int64_t width, const AxisBin& y,
                                   const AxisBin& x) {
  Values best = Values::all(kLowest<T>);
  for_each_sample(y, x, [&](const Sample<A>& at_y, const Sample<A>& at_x) INLINE_LAMBDA {
    best.keep_greater(bilinear_lanes<Values>(block, width, at_y, at_x));
  });
  if (y.has_outside || x.has_outside) best.keep_greater(Values::all(0));
  return best;
}

// Calls body(lists) for chunks of RoIs in their order; once with an empty chunk if there are no
// RoIs.
template <class T, class Rule, class Body>
void for_each_chunk_of_samples(const Rule& rule, int pooled_height, int pooled_width,
                               const RoiTable<SumOf<T>>& table, const Tensor& data,
                               bool is_gradient, const Body& body) {
  constexpr int64_t kSamplesPerBin = 4;
  const int64_t bytes = (int64_t{pooled_height} + pooled_width) * kSamplesPerBin *
                        static_cast<int64_t>(sizeof(Sample<SumOf<T>>));
  const int64_t at_a_time =
      is_gradient ? gradients_at_a_time<T>(data, bytes) : rois_at_a_time<T>(data, bytes);
  SampleLists<SumOf<T>> lists;
  for_each_chunk(table.count(), at_a_time, [&](const Chunk& chunk) {
    lists.make(rule, pooled_height, pooled_width, table, chunk, data);
    body(lists);
  });
}

template <class Op, class T>
void align_max_forward(const typename Op::Params& p, const RoiArrays& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<A> table(Op::kName, in, p.bad_index);
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = int64_t{p.pooled_height} * p.pooled_width;
  table.fill_special_rows(result, out.shape[1] * bins);
  for_each_chunk_of_samples<T>(
      Op::rule(p), p.pooled_height, p.pooled_width, table, in.data, false,
      [&](const SampleLists<A>& lists) {
        const int64_t work = elements(in.data) + 4 * lists.chunk.count() * in.data.shape[1] * bins;
        parallel_for(ChannelTask<A>::count(in.data), work, [&](int64_t id) {
          const ChannelTask<A> task(id, in.data);
          const Chunk rois = table.of_image(task.image, lists.chunk);
          if (rois.empty()) return;
          A* const block = scratch<A>((cells + bins) * kLanes<A>);
          A* const tile = block + cells * kLanes<A>;
          run_simd([&](auto simd) INLINE_LAMBDA {
            using Values = Lanes<A, decltype(simd)>;
            pack_runs(lists.coverage.runs(task.image), data + task.offset, cells, task.lanes, block,
                      simd);
            for (int64_t i = rois.begin; i < rois.end; ++i) {
              const auto* const y = lists.of_roi(i);
              const auto* const x = y + p.pooled_height;
              A* value = tile;
              for (int ph = 0; ph < p.pooled_height; ++ph) {
                for (int pw = 0; pw < p.pooled_width; ++pw, value += kLanes<A>) {
                  largest_lanes<Values, T>(block, width, y[ph], x[pw]).store(value);
                }
              }
              unpack_planes(tile, bins, task.lanes, bins,
                            result + task.first_output(table.order[i], bins), simd);
            }
          });
        });
      });
}

// The gradient of a bin goes to the cells of its first largest sample. It is found again, because
// out may be rounded.
template <class Op, class T>
void align_max_backward(const typename Op::Params& p, const RoiArrays& in,
                        const Tensor& d_out_tensor, const RoiArrays& d) {
  using A = SumOf<T>;
  const RoiTable<A> table(Op::kName, in, p.bad_index);
  const auto rule = Op::rule(p);
  const T* data = data_of<const T>(in.data);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = int64_t{p.pooled_height} * p.pooled_width;
  bool accumulate = false;
  for_each_chunk_of_samples<T>(
      rule, p.pooled_height, p.pooled_width, table, in.data, true,
      [&](const SampleLists<A>& lists) {
        const int64_t work = elements(in.data) + 8 * lists.chunk.count() * in.data.shape[1] * bins;
        parallel_for(ChannelTask<A>::count(in.data), work, [&](int64_t id) {
          const ChannelTask<A> task(id, in.data);
          const Chunk rois = table.of_image(task.image, lists.chunk);
          A* const block = scratch<A>((2 * cells + bins) * kLanes<A>);
          A* const sums = block + cells * kLanes<A>;
          A* const tile = sums + cells * kLanes<A>;
          const auto& runs = lists.coverage.runs(task.image);
          run_simd([&](auto simd) INLINE_LAMBDA {
            using Values = Lanes<A, decltype(simd)>;
            pack_runs(runs, data + task.offset, cells, task.lanes, block, simd);
            begin_gradients(runs, accumulate, result + task.offset, cells, task.lanes, sums, simd);
            for (int64_t i = rois.begin; i < rois.end; ++i) {
              pack_planes(d_out + task.first_output(table.order[i], bins), bins, task.lanes, bins,
                          tile, simd);
              const auto* const y = lists.of_roi(i);
              const auto* const x = y + p.pooled_height;
              const A* d_bin = tile;
              for (int ph = 0; ph < p.pooled_height; ++ph) {
                for (int pw = 0; pw < p.pooled_width; ++pw, d_bin += kLanes<A>) {
                  const Values best = largest_lanes<Values, T>(block, width, y[ph], x[pw]);
                  // If no sample is above the lowest number, none gets the gradient.
                  Values share = Values::load(d_bin), unused = Values::all(0);
                  share.move_where_equal(best, Values::all(kLowest<T>), &unused);
                  for_each_sample(
                      y[ph], x[pw],
                      [&](const Sample<A>& at_y, const Sample<A>& at_x) INLINE_LAMBDA {
                        Values taken = Values::all(0);
                        share.move_where_equal(bilinear_lanes<Values>(block, width, at_y, at_x),
                                               best, &taken);
                        const auto add = [&](int32_t row, int32_t column, A weight) INLINE_LAMBDA {
                          if (weight == 0) return;
                          taken.weighted(weight).add_to(sums + (row * width + column) * kLanes<A>);
                        };
                        add(at_y.low, at_x.low, at_y.low_weight * at_x.low_weight);
                        add(at_y.low, at_x.high, at_y.low_weight * at_x.high_weight);
                        add(at_y.high, at_x.low, at_y.high_weight * at_x.low_weight);
                        add(at_y.high, at_x.high, at_y.high_weight * at_x.high_weight);
                      });
                }
              }
            }
            end_gradients(runs, accumulate, sums, cells, task.lanes, cells, result + task.offset,
                          simd);
          });
        });
        accumulate = true;
      });
  if (is_absent(d.rois)) return;
  write_roi_gradients(
      table, in.coordinates, 8 * elements(d_out_tensor), d.rois,
      [&](int64_t k, const Roi<A>& roi, double* gradient) {
        const auto y =
            rule.axis(roi.y1(), roi.y2(), p.pooled_height, static_cast<int32_t>(in.data.shape[2]));
        const auto x = rule.axis(roi.x1(), roi.x2(), p.pooled_width, static_cast<int32_t>(width));
        for (int64_t c = 0; c < in.data.shape[1]; ++c) {
          const T* const plane = data + (roi.image * in.data.shape[1] + c) * cells;
          const T* d_bin = d_out + (k * in.data.shape[1] + c) * bins;
          for (int ph = 0; ph < p.pooled_height; ++ph) {
            for (int pw = 0; pw < p.pooled_width; ++pw, ++d_bin) {
              const auto best = largest_sample<T, A>(y, ph, x, pw, plane, width, kLowest<T>);
              add_largest_slopes(best, y, ph, x, pw, plane, width, double{load(d_bin)}, gradient);
            }
          }
        }
      });
}

}  // namespace gluon_roi::cpu
