// SPDX-License-Identifier: Apache-2.0
// CUDA kernels of the operators with bilinear weights: forward and backward passes over taps, and
// the gradient with respect to the box.
#pragma once
#include <optional>

#include "../core/align_contract.h"
#include "forward.h"
#include "tiles.h"

namespace gluon_roi::cuda {

template <class G>
using AlignTable = TapTable<G, Tap<G>>;

// The Rule of forward_kernel for operators with taps: out is the sum over the taps of both axes.
template <class T, bool kGrouped_>
struct AlignRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = kGrouped_;
  AlignTable<A> tables;

  using View = TapView<Tap<A>>;
  DEVICE_INLINE View stage(int64_t k, char* buffer, const char* end) const {
    View view = tables.by_bins(k);
    const int y_count = view.y_begin[tables.pooled_height],
              x_count = view.x_begin[tables.pooled_width];
    view.y_begin = cuda::stage(view.y_begin, tables.pooled_height + 1, &buffer, end);
    view.x_begin = cuda::stage(view.x_begin, tables.pooled_width + 1, &buffer, end);
    view.y_taps = cuda::stage(view.y_taps, y_count, &buffer, end);
    view.x_taps = cuda::stage(view.x_taps, x_count, &buffer, end);
    return view;
  }
  DEVICE_INLINE void pool(const View& view, int p, int q, int width, const T* plane,
                          const int64_t* other, A* value) const {
    const int32_t x_first = view.x_begin[q], x_stop = view.x_begin[q + 1];
    for (int32_t i = view.y_begin[p]; i < view.y_begin[p + 1]; ++i) {
      const Tap<A> y = view.y_taps[i];
      const T* line = plane + static_cast<int64_t>(y.cell) * width;
      A sum[kUnroll] = {};
      for (int32_t j = x_first; j < x_stop; ++j) {
        const Tap<A> x = view.x_taps[j];
        const T* cell = line + x.cell;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) sum[u] += x.weight * load(cell + other[u]);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) value[u] += y.weight * sum[u];
    }
  }
};

// ---- Gradient of the box ------------------------------------------------------------------------

constexpr int kGradientThreads = 256;

DEVICE_INLINE void store_as(void* array, int dtype, int64_t i, double value) {
  switch (dtype) {
    case GLUON_ROI_FLOAT32: return store(static_cast<float*>(array) + i, static_cast<float>(value));
    case GLUON_ROI_FLOAT64: return store(static_cast<double*>(array) + i, value);
    default: return store(static_cast<Half*>(array) + i, static_cast<float>(value));
  }
}

// A thread block per RoI writes all of the RoI's row of d_rois: threads sum over (channel, p, q),
// then a tree of fixed shape sums over the threads. Rule has:
//   tables, kCoordinates (of a box),
//   slope(view, p, q, width, plane, slope[kCoordinates]): the derivatives of a bin of one map,
//   view(k): the data of a RoI that slope() needs.
template <class T, class Rule>
__global__ void __launch_bounds__(kGradientThreads)
    roi_gradient_kernel(Rule rule, ForwardPlan plan, const T* data, const T* d_out, void* d_rois,
                        int32_t dtype) {
  using A = SumOf<T>;
  constexpr int kCoordinates = Rule::kCoordinates;
  const int64_t k = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const RoiExtent extent = rule.tables.extents[k];
  if (extent.map != plan.map) return;
  // 1. Sum the terms of this thread's bins and channels.
  double gradient[kCoordinates] = {};  // in the order of the coordinates, per image pixel
  if (extent.state == RoiState::kValid) {
    const auto view = rule.view(k);
    const T* image = data + extent.image * plan.data_channels * plan.cells;
    const int64_t count = plan.layout.output_dim * plan.bins;
    for (int64_t n = thread; n < count; n += kGradientThreads) {
      const int64_t c = n / plan.bins;
      const int bin = static_cast<int>(n % plan.bins);
      const int p = bin / plan.layout.pooled_width, q = bin % plan.layout.pooled_width;
      const T* plane = image + plan.layout.channel(c, p, q) * plan.cells;
      A slope[kCoordinates] = {};
      rule.slope(view, p, q, plan.width, plane, slope);
      const double d_bin = load(d_out + (k - plan.first) * count + n);
      for (int i = 0; i < kCoordinates; ++i) gradient[i] += d_bin * slope[i];
    }
  }
  // 2. Sum over the threads.
  __shared__ double partial[kCoordinates][kGradientThreads];
  for (int i = 0; i < kCoordinates; ++i) partial[i][thread] = gradient[i];
  sum_over_threads(partial);
  // 3. Write the row of d_rois.
  const int64_t columns = rule.tables.rows.columns;
  if (thread < kCoordinates) {
    store_as(d_rois, dtype, (k + 1) * columns - kCoordinates + thread, partial[thread][0]);
  }
  if (thread == kCoordinates && columns > kCoordinates) store_as(d_rois, dtype, k * columns, 0);
}

// The row of rois that corresponds to row 0 of out, for map i.
inline int64_t first_row(const RoiTable& tables, const RoiArrays& in, int32_t i) {
  return in.lists > 1 ? i * tables.rows.per_list : 0;
}

template <class T, class Rule>
void launch_roi_gradient(const Gpu& gpu, const Rule& rule, const ChannelLayout& layout,
                         const RoiArrays& in, const Tensor& d_out, const Tensor& d_rois) {
  for (int32_t i = 0; i < in.count; ++i) {
    launch(gpu, roi_gradient_kernel<T, Rule>, rule.tables.rows.count, kGradientThreads, rule,
           ForwardPlan(layout, in.maps[i], i, first_row(rule.tables, in, i)),
           data_of<const T>(in.maps[i]), data_of<const T>(d_out), d_rois.data, d_rois.dtype);
  }
}

// The Rule of roi_gradient_kernel for operators with taps.
template <class T>
struct AlignGradientRule {
  using A = SumOf<T>;
  static constexpr int kCoordinates = 4;
  TapTable<A, GradientTap<A>> tables;

  using View = TapView<GradientTap<A>>;
  DEVICE_INLINE View view(int64_t k) const { return tables.by_bins(k); }
  DEVICE_INLINE void slope(const View& view, int p, int q, int width, const T* plane,
                           A* slope) const {
    for (int32_t i = view.y_begin[p]; i < view.y_begin[p + 1]; ++i) {
      const GradientTap<A> y = view.y_taps[i];
      const T* line = plane + static_cast<int64_t>(y.cell) * width;
      A sum = 0, d_lo = 0, d_hi = 0;
      for (int32_t j = view.x_begin[q]; j < view.x_begin[q + 1]; ++j) {
        const GradientTap<A> x = view.x_taps[j];
        const A value = load(line + x.cell);
        sum += x.weight * value;
        d_lo += x.d_lo * value;
        d_hi += x.d_hi * value;
      }
      slope[0] += y.weight * d_lo;
      slope[1] += y.d_lo * sum;
      slope[2] += y.weight * d_hi;
      slope[3] += y.d_hi * sum;
    }
  }
};

// ---- AlignOperator ------------------------------------------------------------------------------

// The tables have the taps of every RoI on its own map; the main kernels run once per map. Each
// thread of the backward pass looks up the bins that read its cell.
template <class T>
__global__ void __launch_bounds__(kTileThreads)
    align_backward_kernel(AlignTable<SumOf<T>> tables, RoiLists lists, TilePlan plan,
                          int64_t first_row, const T* d_out, T* d_data) {
  using A = SumOf<T>;
  const Tile tile(plan);
  A sum[kTileChannels] = {};
  const auto meets = [&](int64_t k) { return tile.meets(tables.extents[k]); };
  for_each_roi(lists, tile.image, meets, [&](int64_t k) {
    if (!tile.inside(tables.extents[k])) return;
    const TapView<BinTap<A>> view = tables.by_cells(k);
    const int32_t x_first = view.x_begin[tile.x], x_stop = view.x_begin[tile.x + 1];
    for (int32_t i = view.y_begin[tile.y]; i < view.y_begin[tile.y + 1]; ++i) {
      const BinTap<A> y = view.y_taps[i];
      for (int32_t j = x_first; j < x_stop; ++j) {
        const BinTap<A> x = view.x_taps[j];
        add_gradients(tile, plan, d_out, k - first_row,
                      static_cast<int64_t>(y.bin) * tables.pooled_width + x.bin,
                      y.weight * x.weight, sum);
      }
    }
  });
  store_tile(tile, sum, d_data);
}

// Op::rule(params) defines the weights of a bin, Op::pyramid(params) the map of each RoI.
template <class Op, class T>
struct AlignCall {
  using Params = typename Op::Params;
  const Params& p;
  const RoiArrays& in;
  ChannelLayout layout;
  decltype(Op::rule(std::declval<Params>())) rule;
  AlignTable<SumOf<T>> tables;
  RoiLists lists;
  std::optional<AlignGradientRule<T>> gradient;

  AlignCall(WorkspaceArena* arena, const Params& params, const RoiArrays& inputs, bool backward)
      : p(params),
        in(inputs),
        layout(Op::layout(p, in.data.shape[1])),
        rule(Op::rule(p)),
        tables(arena, p, in, Op::pyramid(p), rule, backward && !Op::kGrouped),
        lists(arena, tables) {
    if (!backward || !Op::rois_gradient(p)) return;
    gradient = AlignGradientRule<T>{{arena, p, in, tables.pyramid, rule, false}};
  }

  void forward(const Gpu& gpu, const Tensor& out) const {
    tables.build(gpu, rule);
    for (int32_t i = 0; i < in.count; ++i) {
      launch_forward<T>(gpu, AlignRule<T, Op::kGrouped>{tables}, layout, in.maps[i], out, i,
                        first_row(tables, in, i));
    }
  }
  // Launches `kernel`, which writes the gradient of a map, for every map.
  template <class Kernel>
  void align_backward(const Gpu& gpu, Kernel* kernel, const Tensor& d_out,
                      const RoiArrays& d) const {
    if (d_out.shape[0] == 0) {
      for (int32_t i = 0; i < in.count; ++i) zero_fill(gpu, d.maps[i]);
      return;
    }
    tables.build(gpu, rule);
    lists.build(gpu, tables);
    for (int32_t i = 0; i < in.count; ++i) {
      const TilePlan plan(layout, in.maps[i]);
      launch(gpu, kernel, plan.blocks(), kTileThreads, tables, lists.of_map(tables, i), plan,
             first_row(tables, in, i), data_of<const T>(d_out), data_of<T>(d.maps[i]));
    }
    if (is_absent(d.rois)) return;
    gradient->tables.build(gpu, rule);
    launch_roi_gradient<T>(gpu, *gradient, layout, in, d_out, d.rois);
  }
};

// The Call of an operator whose .cu file does not specialise it.
template <class Op, class T>
struct Call : AlignCall<Op, T> {
  using AlignCall<Op, T>::AlignCall;

  void backward(const Gpu& gpu, const Tensor& d_out, const RoiArrays& d) const {
    this->align_backward(gpu, align_backward_kernel<T>, d_out, d);
  }
};

}  // namespace gluon_roi::cuda
