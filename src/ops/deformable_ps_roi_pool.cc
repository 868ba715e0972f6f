// SPDX-License-Identifier: Apache-2.0
#include "deformable_ps_roi_pool.h"

#include <limits>
#include <vector>

#include "../bindings/c.h"
#include "../cpu/rois.h"
#include "../cpu/tasks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

void DeformablePSROIPool::check_inputs(const Params& p, const RoiArrays& in) {
  const Tensor& trans = in.offsets;
  if (is_absent(trans) || trans.ndim < 0) return;
  const int64_t rows = in.rois.ndim < 0 ? -1 : check_shapes(kName, in);
  const int64_t channels = layout(p, in.data.ndim < 0 ? -1 : in.data.shape[1]).output_dim;
  const auto differs = [&](int axis, int64_t expected) {
    return expected >= 0 && trans.shape[axis] >= 0 && trans.shape[axis] != expected;
  };
  if (trans.ndim != 4 || differs(0, rows) || differs(2, part_height(p)) ||
      differs(3, part_width(p))) {
    fail(kName, "trans has shape ", shape_text(trans), ", expected (",
         rows >= 0 ? std::to_string(rows) : "K", ", 2 * classes, ", part_height(p), ", ",
         part_width(p), "): a row for each of rois, and the part_size");
  }
  const int64_t classes = trans.shape[1] / 2;
  if (trans.shape[1] >= 0 && (trans.shape[1] % 2 != 0 || classes == 0)) {
    fail(kName, "trans has ", trans.shape[1],
         " channels, expected an even number: x and y for each class");
  }
  if (trans.shape[1] >= 0 && channels > 0 && channels % classes != 0) {
    fail(kName, "trans has ", trans.shape[1], " channels, which is ", classes,
         " classes, expected a number that divides output_dim = ", channels);
  }
}

namespace {

using Params = DeformablePSROIPool::Params;

// The cost of computing an output's taps, in the unit of parallel_for's `work`.
constexpr int64_t kElementsPerOutput = 20;

// The taps of one bin along both axes.
template <class A>
struct BinTaps {
  Vector<PsroiTap<A>> y, x;
  size_t y_count, x_count;  // taps in use
  A divisor;                // number of samples of the bin that are on the map, at least 1

  BinTaps(int32_t samples_per_axis, const Tensor& data)
      : y(max_taps(samples_per_axis, data.shape[2])),
        x(max_taps(samples_per_axis, data.shape[3])) {}

  ALWAYS_INLINE void find(const PsroiAxis<A>& y_axis, const PsroiAxis<A>& x_axis, A first_y,
                          A first_x) {
    y_count = x_count = 0;
    const int32_t y_samples =
        y_axis.for_each_tap(first_y, [&](const PsroiTap<A>& tap) { y[y_count++] = tap; });
    const int32_t x_samples =
        x_axis.for_each_tap(first_x, [&](const PsroiTap<A>& tap) { x[x_count++] = tap; });
    divisor = std::max(static_cast<A>(y_samples) * static_cast<A>(x_samples), A(1));
  }

 private:
  static size_t max_taps(int32_t samples, int64_t cells) {
    return static_cast<size_t>(std::min<int64_t>(2 * int64_t{samples}, cells));
  }
};

// Everything that is computed once per call: RoIs, axes, offsets and coverage. Taps are computed
// for each bin when it is pooled, because offsets differ by bin and class.
template <class T>
struct Call {
  using A = SumOf<T>;
  struct Axes {
    PsroiAxis<A> y, x;
  };
  int32_t samples;
  RoiTable<A> table;
  DeformablePSROIPool::ByClass by_class;
  PartOffsets<T> offsets;
  Vector<Axes> axes;  // K
  Coverage coverage;  // of the images of by_class

  Call(const Params& p, const RoiArrays& in)
      : samples(p.sample_per_part),
        table(DeformablePSROIPool::kName, in, p.bad_index),
        by_class(p, in),
        offsets(DeformablePSROIPool::offsets<T>(p, in)),
        axes(table.rois.size()),
        coverage(by_class.data) {
    const int32_t height = static_cast<int32_t>(in.data.shape[2]);
    const int32_t width = static_cast<int32_t>(in.data.shape[3]);
    for (const int64_t k : table.order) {
      const Roi<A>& roi = table.rois[k];
      axes[k].y =
          PsroiAxis<A>::make(roi.y1(), roi.y2(), p.spatial_scale, p.pooled_height, samples, height);
      axes[k].x =
          PsroiAxis<A>::make(roi.x1(), roi.x2(), p.spatial_scale, p.pooled_width, samples, width);
      for (int64_t c = 0; c < by_class.classes; ++c) add_coverage(roi.image, k, c);
    }
    coverage.finish();
  }

  // The row of the pair of RoI k and the class of image `image` of by_class.
  int64_t pair(int64_t k, int64_t image) const {
    return k * by_class.classes + image % by_class.classes;
  }

  // Calls body(bin, output, taps) for the bins of a task with finite offsets, and special(output)
  // for the others. `bin` is an index over the bins of all pairs, and `output` the offset of the
  // bin in the task's first channel. The outputs of a later pair are prefetched from `out`.
  template <class Body, class Special>
  ALWAYS_INLINE void for_each_bin(const GroupTask<A>& task, const T* out, const Body& body,
                                  const Special& special) const {
    BinTaps<A> taps(samples, by_class.data);
    const int64_t bins = by_class.layout.bins();
    const int64_t image = task.image / by_class.classes;
    for (int64_t i = table.begin[image]; i < table.begin[image + 1]; ++i) {
      const int64_t k = table.order[i], row = pair(k, task.image);
      const int64_t next = pair(table.ahead(i, table.kFarAhead), task.image);
      const int64_t first_output = task.first_output(row, bins);
      const int64_t next_output = task.first_output(next, bins);
      const Axes& axis = axes[k];
      for (int ph = task.p_begin; ph < task.p_end; ++ph) {
        for (int pw = task.q_begin; pw < task.q_end; ++pw) {
          const int64_t bin = int64_t{ph} * by_class.layout.pooled_width + pw;
          A offset_y, offset_x;
          if (!offsets.find(row, offsets.part_of(ph, pw), &offset_y, &offset_x)) {
            special(first_output + bin);
            continue;
          }
          taps.find(axis.y, axis.x, axis.y.first_sample(ph, offset_y),
                    axis.x.first_sample(pw, offset_x));
          prefetch_lanes(task.lanes, out + next_output + bin, bins);
          body(row * bins + bin, first_output + bin, taps);
        }
      }
    }
  }

 private:
  void add_coverage(int64_t image, int64_t k, int64_t c) {
    A min_y = 0, max_y = 0, min_x = 0, max_x = 0;
    bool any = false;
    for (int64_t part = 0; part < offsets.parts(); ++part) {
      A y, x;
      if (!offsets.find(k * by_class.classes + c, part, &y, &x)) continue;
      min_y = any ? std::min(min_y, y) : y;
      max_y = any ? std::max(max_y, y) : y;
      min_x = any ? std::min(min_x, x) : x;
      max_x = any ? std::max(max_x, x) : x;
      any = true;
      if (offsets.trans == nullptr) break;
    }
    if (!any) return;
    const PsroiAxis<A>&y_axis = axes[k].y, &x_axis = axes[k].x;
    const int pooled_height = by_class.layout.pooled_height;
    const int pooled_width = by_class.layout.pooled_width;
    int32_t y0, y1, x0, x1;
    y_axis.cells(y_axis.first_sample(0, min_y), y_axis.first_sample(pooled_height - 1, max_y), &y0,
                 &y1);
    x_axis.cells(x_axis.first_sample(0, min_x), x_axis.first_sample(pooled_width - 1, max_x), &x0,
                 &x1);
    coverage.add(image * by_class.classes + c, {y0, y1}, {x0, x1},
                 taps_of(y_axis, pooled_height, y1 - y0) * taps_of(x_axis, pooled_width, x1 - x0));
  }
  // The approximate number of taps of all bins of an axis.
  int64_t taps_of(const PsroiAxis<A>& axis, int axis_bins, int32_t cells) const {
    const int64_t max_taps = std::min<int64_t>(2 * int64_t{samples}, cells);
    return axis_bins * static_cast<int64_t>(std::min<A>(axis.bin + 2, static_cast<A>(max_taps)));
  }
};

// Computes the derivatives with respect to the position of each bin for each block of channels, and
// then sums them over the blocks and over the bins of a part, in this order.
template <class T>
void run_offset_gradient(const Params& p, const RoiArrays& in, const Tensor& d_out_tensor,
                         const Tensor& d_trans) {
  using A = SumOf<T>;
  struct Slope {
    A y, x;
  };
  const Call<T> call(p, in);
  const Tensor& by_class = call.by_class.data;
  const ChannelLayout& layout = call.by_class.layout;
  const T* data = data_of<const T>(in.data);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d_trans);
  const int64_t width = by_class.shape[3], cells = by_class.shape[2] * width;
  const int64_t classes = call.by_class.classes, bins = layout.bins();
  const int64_t pairs = d_trans.shape[0] * classes, blocks = blocks_of<A>(layout.output_dim);
  Vector<Slope> slopes(static_cast<size_t>(blocks * pairs * bins), Slope{0, 0});

  const auto differentiate = [&](const GroupTask<A>& task, const auto* block, A*,
                                 auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    constexpr int kCount = Values::kCount;
    Slope* const block_slopes = slopes.data() + task.channel / kLanes<A> * pairs * bins;
    call.for_each_bin(
        task, d_out,
        [&](int64_t bin, int64_t output, const BinTaps<A>& taps) INLINE_LAMBDA {
          Values by_y = Values::all(0), by_x = Values::all(0);
          for (size_t i = 0; i < taps.y_count; ++i) {
            const auto* line = block + taps.y[i].cell * width * kCount;
            Values sum = Values::all(0), along = Values::all(0);
            for (size_t j = 0; j < taps.x_count; ++j) {
              const Values value = Values::load(line + int64_t{taps.x[j].cell} * kCount);
              sum.add_weighted(value, taps.x[j].weight);
              along.add_weighted(value, taps.x[j].slope);
            }
            by_y.add_weighted(sum, taps.y[i].slope);
            by_x.add_weighted(along, taps.y[i].weight);
          }
          Values d_bin = Values::gather(task.lanes, d_out + output, bins);
          d_bin /= Values::all(taps.divisor);
          by_y *= d_bin;
          by_x *= d_bin;
          by_y.add_each_to(task.lanes, &block_slopes[bin].y);
          by_x.add_each_to(task.lanes, &block_slopes[bin].x);
        },
        [](int64_t) INLINE_LAMBDA {});
  };
  const int64_t work = elements(in.data) + kElementsPerOutput * elements(d_out_tensor);
  parallel_for(GroupTask<A>::count(layout, by_class), work, [&](int64_t id) {
    const GroupTask<A> task(id, layout, by_class);
    const int64_t image = task.image / classes;
    if (call.table.begin[image] == call.table.begin[image + 1]) return;
    read_maps(task, layout, call.coverage, data, cells, differentiate);
  });

  const PartOffsets<T>& offsets = call.offsets;
  parallel_for(pairs, blocks * pairs * bins + elements(d_trans), [&](int64_t pair) {
    const int64_t k = pair / classes, count = offsets.parts();
    T* d_x = result + pair * 2 * count;
    T* d_y = d_x + count;
    Slope* sums = scratch<Slope>(count);
    std::fill(sums, sums + count, Slope{0, 0});
    if (call.table.rois[k].state == RoiState::kValid) {
      for (int64_t bin = 0; bin < bins; ++bin) {
        Slope& sum = sums[offsets.part_of(static_cast<int>(bin / layout.pooled_width),
                                          static_cast<int>(bin % layout.pooled_width))];
        for (int64_t block = 0; block < blocks; ++block) {
          const Slope& slope = slopes[(block * pairs + pair) * bins + bin];
          sum.y += slope.y;
          sum.x += slope.x;
        }
      }
    }
    const A scale_y = offsets.gradient_scale(call.axes[k].y);
    const A scale_x = offsets.gradient_scale(call.axes[k].x);
    for (int64_t part = 0; part < count; ++part) {
      store(d_y + part, sums[part].y * scale_y);
      store(d_x + part, sums[part].x * scale_x);
    }
  });
}

}  // namespace

template <class T>
void DeformablePSROIPool::forward(const Params& p, const RoiArrays& in, const Tensor& out) {
  using A = SumOf<T>;
  const Call<T> call(p, in);
  const Tensor& by_class = call.by_class.data;
  const ChannelLayout& layout = call.by_class.layout;
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t width = by_class.shape[3], cells = by_class.shape[2] * width;
  const int64_t bins = layout.bins();
  call.table.fill_special_rows(result, out.shape[1] * bins);

  const auto pool = [&](const GroupTask<A>& task, const auto* block, A*, auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    constexpr int kCount = Values::kCount;
    call.for_each_bin(
        task, result,
        [&](int64_t, int64_t output, const BinTaps<A>& taps) INLINE_LAMBDA {
          Values sum = Values::all(0);
          for (size_t i = 0; i < taps.y_count; ++i) {
            const auto* line = block + taps.y[i].cell * width * kCount;
            Values row = Values::all(0);
            for (size_t j = 0; j < taps.x_count; ++j) {
              row.add_weighted(Values::load(line + int64_t{taps.x[j].cell} * kCount),
                               taps.x[j].weight);
            }
            sum.add_weighted(row, taps.y[i].weight);
          }
          sum /= Values::all(taps.divisor);
          sum.scatter(task.lanes, result + output, bins);
        },
        [&](int64_t output) INLINE_LAMBDA {
          Values::all(std::numeric_limits<A>::quiet_NaN())
              .scatter(task.lanes, result + output, bins);
        });
  };
  const int64_t work = elements(in.data) + kElementsPerOutput * elements(out);
  parallel_for(GroupTask<A>::count(layout, by_class), work, [&](int64_t id) {
    const GroupTask<A> task(id, layout, by_class);
    const int64_t image = task.image / call.by_class.classes;
    if (call.table.begin[image] == call.table.begin[image + 1]) return;
    read_maps(task, layout, call.coverage, data, cells, pool);
  });
}

template <class T>
void DeformablePSROIPool::backward(const Params& p, const RoiArrays& in, const Tensor& d_out_tensor,
                                   const RoiArrays& d) {
  using A = SumOf<T>;
  const Call<T> call(p, in);
  const Tensor& by_class = call.by_class.data;
  const ChannelLayout& layout = call.by_class.layout;
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d.data);
  const int64_t width = by_class.shape[3], cells = by_class.shape[2] * width;
  const int64_t bins = layout.bins();

  const auto add_gradients = [&](const GroupTask<A>& task, A* block, A*, auto simd) INLINE_LAMBDA {
    using Values = Lanes<A, decltype(simd)>;
    constexpr int kCount = Values::kCount;
    call.for_each_bin(
        task, d_out,
        [&](int64_t, int64_t output, const BinTaps<A>& taps) INLINE_LAMBDA {
          Values d_bin = Values::gather(task.lanes, d_out + output, bins);
          d_bin /= Values::all(taps.divisor);
          for (size_t i = 0; i < taps.y_count; ++i) {
            A* line = block + taps.y[i].cell * width * kCount;
            const Values row = d_bin.weighted(taps.y[i].weight);
            for (size_t j = 0; j < taps.x_count; ++j) {
              row.weighted(taps.x[j].weight).add_to(line + int64_t{taps.x[j].cell} * kCount);
            }
          }
        },
        [](int64_t) INLINE_LAMBDA {});
  };
  const int64_t work = elements(d.data) + kElementsPerOutput * elements(d_out_tensor);
  parallel_for(GroupTask<A>::count(layout, by_class), work, [&](int64_t id) {
    const GroupTask<A> task(id, layout, by_class);
    add_to_maps(task, layout, call.coverage, false, result, cells, add_gradients);
  });
  if (!is_absent(d.offsets)) run_offset_gradient<T>(p, in, d_out_tensor, d.offsets);
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(DeformablePSROIPool, deformable_ps_roi_pool)
