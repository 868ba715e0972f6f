// SPDX-License-Identifier: Apache-2.0
#include "deformable_roi_align.h"

#include <limits>
#include <vector>

#include "../bindings/c.h"
#include "../cpu/align.h"
#include "../cpu/rois.h"
#include "../cpu/tasks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

void DeformableROIAlign::check_inputs(const Params& p, const RoiArrays& in) {
  const int64_t rows = in.rois.ndim < 0 ? -1 : check_shapes(kName, in);
  const auto check = [&](const char* name, const Tensor& tensor, int64_t channels,
                         const char* meaning) {
    if (is_absent(tensor) || tensor.ndim < 0) return;
    const int64_t expected[] = {rows, channels, p.pooled_height, p.pooled_width};
    bool differs = tensor.ndim != 4;
    for (int i = 0; i < 4 && !differs; ++i) {
      differs = expected[i] >= 0 && tensor.shape[i] >= 0 && tensor.shape[i] != expected[i];
    }
    if (!differs) return;
    fail(kName, name, " has shape ", shape_text(tensor), ", expected (",
         rows >= 0 ? std::to_string(rows) : "K", ", ", channels, ", ", p.pooled_height, ", ",
         p.pooled_width, "): ", meaning, " for each bin of each of rois");
  };
  check("offset", in.offsets, 2, "x and y");
  check("mask", in.mask, 1, "a factor");
}

namespace {

using Params = DeformableROIAlign::Params;

// The cost of making the taps of a bin, in the unit of parallel_for's `work`.
constexpr int64_t kElementsPerBin = 200;

// The taps of the bins of a chunk of RoIs.
template <class A>
struct ShiftedTaps {
  struct Bin {
    const ShiftedTap<A>*y, *x;
    int64_t y_count, x_count;
    A factor;  // NaN, without taps, if an offset is not finite
  };
  Chunk chunk{0, 0};
  Vector<Bin> bins;  // of the chunk's RoIs, in the table's order
  Coverage coverage;
};

// Everything that is computed once per call: RoIs, axes and offsets.
template <class T>
struct Call {
  using A = SumOf<T>;
  struct Axes {
    ShiftedAxis<A> y, x;
  };
  const Params& p;
  const Tensor& data;
  RoiTable<A> table;
  ChannelLayout layout;
  BinOffsets<T> offsets;
  Vector<Axes> axes;  // K

  Call(const Params& params, const RoiArrays& in)
      : p(params),
        data(in.data),
        table(DeformableROIAlign::kName, in, p.bad_index),
        layout(DeformableROIAlign::layout(p, in.data.shape[1])),
        offsets(DeformableROIAlign::offsets<T>(p, in)),
        axes(table.rois.size()) {
    const SampleRule rule = DeformableROIAlign::rule(p);
    const int32_t height = static_cast<int32_t>(data.shape[2]);
    const int32_t width = static_cast<int32_t>(data.shape[3]);
    for (const int64_t k : table.order) {
      const Roi<A>& roi = table.rois[k];
      axes[k].y =
          ShiftedAxis<A>::make(rule.axis(roi.y1(), roi.y2(), p.pooled_height, height), p.gamma);
      axes[k].x =
          ShiftedAxis<A>::make(rule.axis(roi.x1(), roi.x2(), p.pooled_width, width), p.gamma);
    }
  }

  // About the memory that the taps of a RoI take.
  int64_t bytes() const {
    constexpr int64_t kTapsPerAxis = 4;
    return layout.bins() * 2 * kTapsPerAxis * static_cast<int64_t>(sizeof(ShiftedTap<A>));
  }

  // Calls body(taps) for chunks of RoIs in their order. With `slopes` there are taps of weight 0
  // that have a derivative.
  template <class Body>
  void for_each_chunk(int64_t at_a_time, bool slopes, const Body& body) const {
    Vector<Vector<ShiftedTap<A>>> lists;  // of each share of a chunk
    ShiftedTaps<A> taps;
    const int64_t count = table.count();
    for (Chunk chunk = Chunk{0, 0}.next(count, at_a_time); !chunk.empty();
         chunk = chunk.next(count, at_a_time)) {
      make(chunk, slopes, &lists, &taps);
      body(taps);
    }
  }

  // Calls body(bin, output, taps) for the bins of a task: `bin` counts from the first bin of the
  // chunk, and `output` is the offset of the bin in the task's first channel. The outputs of a
  // later RoI are prefetched from `out`.
  template <class Body>
  ALWAYS_INLINE void for_each_bin(const GroupTask<A>& task, const ShiftedTaps<A>& taps,
                                  const T* out, const Body& body) const {
    const int64_t bins = layout.bins();
    const Chunk rois = table.of_image(task.image, taps.chunk);
    for (int64_t i = rois.begin; i < rois.end; ++i) {
      const int64_t first = (i - taps.chunk.begin) * bins;
      const int64_t output = task.first_output(table.order[i], bins);
      const int64_t next = task.first_output(table.ahead(i, table.kFarAhead), bins);
      for (int64_t bin = 0; bin < bins; ++bin) {
        prefetch_lanes(task.lanes, out + next + bin, bins);
        body(first + bin, output + bin, taps.bins[first + bin]);
      }
    }
  }

 private:
  // Appends the taps of bin q, one for each cell, and leaves out those without effect, so that a
  // NaN in their cells does not spread. Returns their number.
  static int64_t append(const ShiftedAxis<A>& axis, int q, A offset, bool slopes,
                        Vector<ShiftedTap<A>>* list) {
    const size_t begin = list->size();
    axis.for_each_tap(q, offset, [&](const ShiftedTap<A>& added) {
      ShiftedTap<A>* const tap = tap_of(added.cell, begin, list);
      tap->weight += added.weight;
      tap->slope += added.slope;
      tap->slope_by_t += added.slope_by_t;
    });
    const auto first = list->begin() + static_cast<int64_t>(begin);
    const auto is_zero = [&](const ShiftedTap<A>& tap) {
      return slopes ? tap.is_zero() : tap.weight == 0;
    };
    list->erase(std::remove_if(first, list->end(), is_zero), list->end());
    return static_cast<int64_t>(list->size() - begin);
  }

  void make(const Chunk& chunk, bool slopes, Vector<Vector<ShiftedTap<A>>>* lists,
            ShiftedTaps<A>* taps) const {
    const int64_t bins = layout.bins(), shares = chunk.shares();
    taps->chunk = chunk;
    taps->bins.resize(static_cast<size_t>(chunk.count() * bins));
    lists->resize(std::max(lists->size(), static_cast<size_t>(shares)));
    struct Rect {
      Run y, x;
      int64_t reads;
    };
    Vector<Rect> rects(static_cast<size_t>(chunk.count()));
    parallel_for(shares, chunk.count() * bins * kElementsPerBin, [&](int64_t number) {
      Vector<ShiftedTap<A>>& list = (*lists)[number];
      list.clear();
      const Chunk share = chunk.share(number);
      for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t k = table.order[i];
        Rect rect{{}, {}, 0};
        for (int64_t bin = 0; bin < bins; ++bin) {
          auto& made = taps->bins[(i - chunk.begin) * bins + bin];
          const auto shift = offsets.find(k, bin);
          made.y_count = made.x_count = 0;
          made.factor = shift.valid ? shift.factor : std::numeric_limits<A>::quiet_NaN();
          if (!shift.valid) continue;
          const int row = static_cast<int>(bin / layout.pooled_width);
          const int column = static_cast<int>(bin % layout.pooled_width);
          made.y_count = append(axes[k].y, row, shift.y, slopes, &list);
          for (auto tap = list.end() - made.y_count; tap != list.end(); ++tap) {
            rect.y.include(tap->cell);
          }
          made.x_count = append(axes[k].x, column, shift.x, slopes, &list);
          for (auto tap = list.end() - made.x_count; tap != list.end(); ++tap) {
            rect.x.include(tap->cell);
          }
          rect.reads += made.y_count * made.x_count;
        }
        rects[i - chunk.begin] = rect;
      }
      // The list does not grow any more, so its taps have addresses.
      const ShiftedTap<A>* next = list.data();
      for (int64_t bin = (share.begin - chunk.begin) * bins; bin < (share.end - chunk.begin) * bins;
           ++bin) {
        auto& made = taps->bins[bin];
        made.y = next;
        made.x = next + made.y_count;
        next += made.y_count + made.x_count;
      }
    });
    taps->coverage = Coverage(data);
    for (int64_t i = chunk.begin; i < chunk.end; ++i) {
      const Rect& rect = rects[i - chunk.begin];
      if (rect.reads == 0) continue;
      taps->coverage.add(table.rois[table.order[i]].image, rect.y, rect.x, rect.reads);
    }
    taps->coverage.finish();
  }
};

// What a bin contributes to the gradients of its offset, its mask and the box: sums over channels
// of its gradient times cells times weights or slopes.
template <class A>
struct BinSums {
  A value;
  A y_slope, y_slope_by_t, x_slope, x_slope_by_t;
};

// Writes the gradients of offset, mask and rois that are requested. Sums over channels are made for
// each block of channels, and then over the blocks, in this order.
template <class T>
void run_bin_gradients(const Call<T>& call, const RoiArrays& in, const Tensor& d_out_tensor,
                       const RoiArrays& d) {
  using A = SumOf<T>;
  const Params& p = call.p;
  const T* data = data_of<const T>(in.data);
  const T* d_out = data_of<const T>(d_out_tensor);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = call.layout.bins(), blocks = blocks_of<A>(call.layout.output_dim);
  for (const Tensor& one : {d.offsets, d.mask}) {
    if (!is_absent(one)) zero_fill(Cpu{}, one);
  }
  Vector<double> d_boxes(is_absent(d.rois) ? 0 : call.table.rois.size() * 4);  // x1 y1 x2 y2

  const int64_t at_a_time =
      rois_at_a_time<T>(in.data, call.bytes() + blocks * bins * int64_t{sizeof(BinSums<A>)});
  call.for_each_chunk(at_a_time, true, [&](const ShiftedTaps<A>& taps) {
    const Chunk& chunk = taps.chunk;
    Vector<BinSums<A>> sums(static_cast<size_t>(blocks * chunk.count() * bins));
    const auto differentiate = [&](const GroupTask<A>& task, const auto* block, A*,
                                   auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      constexpr int kCount = Values::kCount;
      BinSums<A>* const block_sums = sums.data() + task.channel / kLanes<A> * chunk.count() * bins;
      call.for_each_bin(task, taps, d_out,
                        [&](int64_t bin, int64_t output, const auto& bin_taps) INLINE_LAMBDA {
                          Values value = Values::all(0);
                          Values y_slope = value, y_by_t = value, x_slope = value, x_by_t = value;
                          for (int64_t i = 0; i < bin_taps.y_count; ++i) {
                            const ShiftedTap<A>& y = bin_taps.y[i];
                            const auto* line = block + y.cell * width * kCount;
                            Values sum = Values::all(0), slope = sum, by_t = sum;
                            for (int64_t j = 0; j < bin_taps.x_count; ++j) {
                              const ShiftedTap<A>& x = bin_taps.x[j];
                              const Values cell = Values::load(line + int64_t{x.cell} * kCount);
                              sum.add_weighted(cell, x.weight);
                              slope.add_weighted(cell, x.slope);
                              by_t.add_weighted(cell, x.slope_by_t);
                            }
                            value.add_weighted(sum, y.weight);
                            y_slope.add_weighted(sum, y.slope);
                            y_by_t.add_weighted(sum, y.slope_by_t);
                            x_slope.add_weighted(slope, y.weight);
                            x_by_t.add_weighted(by_t, y.weight);
                          }
                          const Values d_bin = Values::gather(task.lanes, d_out + output, bins);
                          BinSums<A>& of_bin = block_sums[bin];
                          const auto add = [&](Values terms, A* total) INLINE_LAMBDA {
                            terms *= d_bin;
                            terms.add_each_to(task.lanes, total);
                          };
                          add(value, &of_bin.value);
                          add(y_slope, &of_bin.y_slope);
                          add(y_by_t, &of_bin.y_slope_by_t);
                          add(x_slope, &of_bin.x_slope);
                          add(x_by_t, &of_bin.x_slope_by_t);
                        });
    };
    const int64_t work = elements(in.data) + chunk.count() * in.data.shape[1] * bins;
    parallel_for(GroupTask<A>::count(call.layout, in.data), work, [&](int64_t id) {
      const GroupTask<A> task(id, call.layout, in.data);
      if (call.table.of_image(task.image, chunk).empty()) return;
      read_maps(task, call.layout, taps.coverage, data, cells, differentiate);
    });

    parallel_for(chunk.count(), blocks * chunk.count() * bins, [&](int64_t n) {
      const int64_t k = call.table.order[chunk.begin + n];
      const auto& [y_axis, x_axis] = call.axes[k];
      for (int64_t bin = 0; bin < bins; ++bin) {
        const auto shift = call.offsets.find(k, bin);
        if (!shift.valid) continue;
        double value = 0, y = 0, y_by_t = 0, x = 0, x_by_t = 0;
        for (int64_t block = 0; block < blocks; ++block) {
          const BinSums<A>& part = sums[(block * chunk.count() + n) * bins + bin];
          value += part.value;
          y += part.y_slope;
          y_by_t += part.y_slope_by_t;
          x += part.x_slope;
          x_by_t += part.x_slope_by_t;
        }
        const double factor = shift.factor;
        if (!is_absent(d.mask)) {
          store(data_of<T>(d.mask) + k * bins + bin, static_cast<A>(value));
        }
        if (!is_absent(d.offsets)) {
          T* const d_x = data_of<T>(d.offsets) + 2 * k * bins + bin;
          store(d_x, static_cast<A>(factor * x_axis.by_offset(x)));
          store(d_x + bins, static_cast<A>(factor * y_axis.by_offset(y)));
        }
        if (!is_absent(d.rois)) {
          double* const d_box = d_boxes.data() + 4 * k;
          d_box[0] += factor * x_axis.by_low(x, x_by_t, p.gamma, shift.x);
          d_box[1] += factor * y_axis.by_low(y, y_by_t, p.gamma, shift.y);
          d_box[2] += factor * x_axis.by_high(x, x_by_t, p.gamma, shift.x);
          d_box[3] += factor * y_axis.by_high(y, y_by_t, p.gamma, shift.y);
        }
      }
    });
  });
  if (is_absent(d.rois)) return;
  const double scale = static_cast<A>(p.spatial_scale);
  write_roi_gradients(call.table, in.coordinates, elements(d.rois), d.rois,
                      [&](int64_t k, const Roi<A>&, double* gradient) {
                        for (int i = 0; i < 4; ++i) gradient[i] = d_boxes[4 * k + i] * scale;
                      });
}

}  // namespace

template <class T>
void DeformableROIAlign::forward(const Params& p, const RoiArrays& in, const Tensor& out) {
  using A = SumOf<T>;
  if (is_plain(in)) return align_forward<DeformableROIAlign, T>(p, in, out);
  const Call<T> call(p, in);
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = call.layout.bins();
  call.table.fill_special_rows(result, out.shape[1] * bins);

  const int64_t at_a_time = rois_at_a_time<T>(in.data, call.bytes());
  call.for_each_chunk(at_a_time, false, [&](const ShiftedTaps<A>& taps) {
    const auto pool = [&](const GroupTask<A>& task, const auto* block, A*,
                          auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      constexpr int kCount = Values::kCount;
      call.for_each_bin(task, taps, result,
                        [&](int64_t, int64_t output, const auto& bin) INLINE_LAMBDA {
                          Values sum = Values::all(0);
                          for (int64_t i = 0; i < bin.y_count; ++i) {
                            const auto* line = block + bin.y[i].cell * width * kCount;
                            Values row = Values::all(0);
                            for (int64_t j = 0; j < bin.x_count; ++j) {
                              row.add_weighted(Values::load(line + int64_t{bin.x[j].cell} * kCount),
                                               bin.x[j].weight);
                            }
                            sum.add_weighted(row, bin.y[i].weight);
                          }
                          sum *= Values::all(bin.factor);
                          sum.scatter(task.lanes, result + output, bins);
                        });
    };
    const int64_t work = elements(in.data) + taps.chunk.count() * in.data.shape[1] * bins;
    parallel_for(GroupTask<A>::count(call.layout, in.data), work, [&](int64_t id) {
      const GroupTask<A> task(id, call.layout, in.data);
      if (call.table.of_image(task.image, taps.chunk).empty()) return;
      read_maps(task, call.layout, taps.coverage, data, cells, pool);
    });
  });
}

template <class T>
void DeformableROIAlign::backward(const Params& p, const RoiArrays& in, const Tensor& d_out_tensor,
                                  const RoiArrays& d) {
  using A = SumOf<T>;
  if (is_plain(in)) {
    align_backward<DeformableROIAlign, T>(p, in, d_out_tensor, d.maps);
    if (!is_absent(d.rois)) align_roi_gradient<DeformableROIAlign, T>(p, in, d_out_tensor, d.rois);
    return;
  }
  const Call<T> call(p, in);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins = call.layout.bins();

  if (call.table.count() == 0) zero_fill(Cpu{}, d.data);
  bool accumulate = false;
  call.for_each_chunk(
      gradients_at_a_time<T>(in.data, call.bytes()), false, [&](const ShiftedTaps<A>& taps) {
        const auto add_gradients = [&](const GroupTask<A>& task, A* block, A*,
                                       auto simd) INLINE_LAMBDA {
          using Values = Lanes<A, decltype(simd)>;
          constexpr int kCount = Values::kCount;
          call.for_each_bin(
              task, taps, d_out, [&](int64_t, int64_t output, const auto& bin) INLINE_LAMBDA {
                Values d_bin = Values::gather(task.lanes, d_out + output, bins);
                d_bin *= Values::all(bin.factor);
                for (int64_t i = 0; i < bin.y_count; ++i) {
                  A* const line = block + bin.y[i].cell * width * kCount;
                  const Values row = d_bin.weighted(bin.y[i].weight);
                  for (int64_t j = 0; j < bin.x_count; ++j) {
                    row.weighted(bin.x[j].weight).add_to(line + int64_t{bin.x[j].cell} * kCount);
                  }
                }
              });
        };
        const int64_t work = elements(d.data) + taps.chunk.count() * in.data.shape[1] * bins;
        parallel_for(GroupTask<A>::count(call.layout, in.data), work, [&](int64_t id) {
          const GroupTask<A> task(id, call.layout, in.data);
          add_to_maps(task, call.layout, taps.coverage, accumulate, result, cells, add_gradients);
        });
        accumulate = true;
      });
  if (!is_absent(d.offsets) || !is_absent(d.mask) || !is_absent(d.rois)) {
    run_bin_gradients<T>(call, in, d_out_tensor, d);
  }
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(DeformableROIAlign, deformable_roi_align)
