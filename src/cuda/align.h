// What the kernels of the two align operators share: bilinear taps forward, and the gradient of the
// box.
#pragma once
#include "forward.h"

namespace gluon_roi::cuda {

template <class G>
using AlignTable = TapTable<G, AxisTap<G>>;

// out = sum over the taps of both axes: the rule of forward_kernel.
template <class T, bool kGrouped_>
struct AlignRule {
  using A = SumOf<T>;
  static constexpr bool kGrouped = kGrouped_;
  AlignTable<A> tables;

  struct View {
    const int32_t *y_begin, *x_begin;
    const AxisTap<A>*y_taps, *x_taps;
  };
  DEVICE_INLINE View stage(int64_t k, char* room, const char* end) const {
    View view;
    view.y_begin = tables.row_begin(k);
    view.x_begin = tables.column_begin(k);
    const int y_count = view.y_begin[tables.bins_y], x_count = view.x_begin[tables.bins_x];
    view.y_begin = cuda::stage(view.y_begin, tables.bins_y + 1, &room, end);
    view.x_begin = cuda::stage(view.x_begin, tables.bins_x + 1, &room, end);
    view.y_taps = cuda::stage(tables.row_taps(k), y_count, &room, end);
    view.x_taps = cuda::stage(tables.column_taps(k), x_count, &room, end);
    return view;
  }
  DEVICE_INLINE void pool(const View& view, int p, int q, int width, const T* plane,
                          const int64_t* other, A* value) const {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) value[u] = 0;
    const int32_t x_first = view.x_begin[q], x_stop = view.x_begin[q + 1];
    for (int32_t i = view.y_begin[p]; i < view.y_begin[p + 1]; ++i) {
      const AxisTap<A> y = view.y_taps[i];
      const T* line = plane + static_cast<int64_t>(y.cell) * width;
      A sum[kUnroll] = {};
      for (int32_t j = x_first; j < x_stop; ++j) {
        const AxisTap<A> x = view.x_taps[j];
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

// One block a RoI writes its whole row of d_rois: threads sum over (channel, p, q), then a tree of
// fixed shape sums over the threads.
template <class T>
__global__ void __launch_bounds__(kGradientThreads)
    roi_gradient_kernel(TapTable<SumOf<T>, AxisGradientTap<SumOf<T>>> tables, ForwardPlan plan,
                        const T* data, const T* d_out, void* d_rois, int32_t dtype) {
  using A = SumOf<T>;
  const int64_t k = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const RoiHead head = tables.heads[k];
  if (head.map != plan.map) return;
  double gradient[4] = {};  // x1, y1, x2, y2, per image pixel
  if (head.state == RoiState::kValid) {
    const int32_t *y_begin = tables.row_begin(k), *x_begin = tables.column_begin(k);
    const AxisGradientTap<A>*y_taps = tables.row_taps(k), *x_taps = tables.column_taps(k);
    const T* image = data + head.image * plan.data_channels * plan.cells;
    const int64_t count = plan.layout.output_dim * plan.outputs;
    for (int64_t n = thread; n < count; n += kGradientThreads) {
      const int64_t c = n / plan.outputs;
      const int bin = static_cast<int>(n % plan.outputs);
      const int p = bin / plan.layout.pooled_width, q = bin % plan.layout.pooled_width;
      const T* plane = image + plan.layout.channel(c, p, q) * plan.cells;
      A d_x1 = 0, d_y1 = 0, d_x2 = 0, d_y2 = 0;
      for (int32_t i = y_begin[p]; i < y_begin[p + 1]; ++i) {
        const AxisGradientTap<A> y = y_taps[i];
        const T* line = plane + static_cast<int64_t>(y.cell) * plan.width;
        A sum = 0, d_lo = 0, d_hi = 0;
        for (int32_t j = x_begin[q]; j < x_begin[q + 1]; ++j) {
          const AxisGradientTap<A> x = x_taps[j];
          const A value = load(line + x.cell);
          sum += x.weight * value;
          d_lo += x.d_lo * value;
          d_hi += x.d_hi * value;
        }
        d_x1 += y.weight * d_lo;
        d_y1 += y.d_lo * sum;
        d_x2 += y.weight * d_hi;
        d_y2 += y.d_hi * sum;
      }
      const double slope = load(d_out + k * count + n);
      gradient[0] += slope * d_x1;
      gradient[1] += slope * d_y1;
      gradient[2] += slope * d_x2;
      gradient[3] += slope * d_y2;
    }
  }
  __shared__ double part[4][kGradientThreads];
  for (int i = 0; i < 4; ++i) part[i][thread] = gradient[i];
  for (int half = kGradientThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    for (int i = 0; i < 4; ++i) part[i][thread] += part[i][thread + half];
  }
  __syncthreads();
  const int64_t columns = tables.rows.columns;
  if (thread < 4) store_as(d_rois, dtype, (k + 1) * columns - 4 + thread, part[thread][0]);
  if (thread == 4 && columns == 5) store_as(d_rois, dtype, k * columns, 0);
}

// The tables and the launch together: carve first, with the same arguments, to measure.
template <class T>
struct BoxGradient {
  TapTable<SumOf<T>, AxisGradientTap<SumOf<T>>> tables;

  BoxGradient(const char* op, Carver* carver, const Inputs& in, const PositionSensitive& layout,
              int32_t bad_index, const SampleRule& rule)
      : tables(op, carver, in, layout.pooled_height, layout.pooled_width, bad_index, rule, false) {}

  void run(const char* op, const Gpu& gpu, const PositionSensitive& layout, const Inputs& in,
           const Tensor& d_out, const Tensor& d_rois) const {
    tables.build(op, gpu);
    for (int32_t i = 0; i < in.count; ++i) {
      launch(op, gpu, roi_gradient_kernel<T>, tables.rows.rows, kGradientThreads, tables,
             ForwardPlan(layout, in.maps[i], i), static_cast<const T*>(in.maps[i].data),
             static_cast<const T*>(d_out.data), d_rois.data, d_rois.dtype);
    }
  }
};

}  // namespace gluon_roi::cuda
