#include "ps_roi_pool.h"

#include "../core/tables.h"

namespace gluon_roi {
namespace {

template <class A>
GR_INLINE void sum_bin(const A* block, int64_t width, const int32_t* y, const int32_t* x, A* sum) {
  A acc[kLanes] = {};
  for (int64_t i = y[0]; i < y[1]; ++i) {
    const A* cell = block + (i * width + x[0]) * kLanes;
    for (int32_t j = x[0]; j < x[1]; ++j, cell += kLanes) {
#pragma omp simd
      for (int lane = 0; lane < kLanes; ++lane) acc[lane] += cell[lane];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) sum[lane] = acc[lane];
}

template <class A>
GR_INLINE void add_to_bin(A* block, int64_t width, const int32_t* y, const int32_t* x,
                          const A* value) {
  for (int64_t i = y[0]; i < y[1]; ++i) {
    A* cell = block + (i * width + x[0]) * kLanes;
    for (int32_t j = x[0]; j < x[1]; ++j, cell += kLanes) {
#pragma omp simd
      for (int lane = 0; lane < kLanes; ++lane) cell[lane] += value[lane];
    }
  }
}

template <class T>
void run_forward(const PSROIPool::Params& p, const Inputs& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<float> table(PSROIPool::kName, in);
  const BinTable bins(PSROIPool::rule(p), p.pooled_height, p.pooled_width, p.spatial_scale, table,
                      in.data);
  const PositionSensitive layout = PSROIPool::layout(p, in.data.shape[1]);
  const T* data = static_cast<const T*>(in.data.data);
  T* result = static_cast<T*>(out.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins_per_channel = static_cast<int64_t>(bins.rows) * bins.columns;
  table.fill_special_rows(result, layout.output_dim * bins_per_channel);

  const int64_t work = elements(in.data) + elements(out);
  parallel_for(GroupTask::count(layout, in.data), work, [&](int64_t id) {
    const GroupTask task(id, layout, in.data);
    if (table.begin[task.image] == table.begin[task.image + 1]) return;
    A* block = scratch<A>(cells * kLanes);
    run_simd([&]() GR_KERNEL {
      pack_planes(data + task.offset, task.stride, task.lanes, cells, block);
      for (int64_t i = table.begin[task.image]; i < table.begin[task.image + 1]; ++i) {
        const int64_t k = table.order[i];
        T* row = result + (k * layout.output_dim + task.channel) * bins_per_channel;
        for (int ph = task.p_begin; ph < task.p_end; ++ph) {
          const int32_t* y = bins.row_edges(k) + 2 * ph;
          for (int pw = task.q_begin; pw < task.q_end; ++pw) {
            const int32_t* x = bins.column_edges(k) + 2 * pw;
            A sum[kLanes];
            sum_bin(block, width, y, x, sum);
            const int64_t n = bin_area(y, x);
            const A divisor = n > 0 ? static_cast<A>(n) : A(1);
            for (int lane = 0; lane < kLanes; ++lane) sum[lane] /= divisor;
            T* target = row + ph * bins.columns + pw;
            for (int lane = 0; lane < task.lanes; ++lane) {
              store(target + lane * bins_per_channel, sum[lane]);
            }
          }
        }
      }
    });
  });
}

template <class T>
void run_backward(const PSROIPool::Params& p, const Inputs& in, const Tensor& d_out,
                  const Tensor& d_data) {
  using A = SumOf<T>;
  const RoiTable<float> table(PSROIPool::kName, in);
  const BinTable bins(PSROIPool::rule(p), p.pooled_height, p.pooled_width, p.spatial_scale, table,
                      in.data);
  const PositionSensitive layout = PSROIPool::layout(p, in.data.shape[1]);
  const T* gradient = static_cast<const T*>(d_out.data);
  T* result = static_cast<T*>(d_data.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins_per_channel = static_cast<int64_t>(bins.rows) * bins.columns;

  const int64_t work = elements(d_data) + elements(d_out);
  parallel_for(GroupTask::count(layout, in.data), work, [&](int64_t id) {
    const GroupTask task(id, layout, in.data);
    A* block = scratch<A>(cells * kLanes);
    run_simd([&]() GR_KERNEL {
      std::fill(block, block + cells * kLanes, A(0));
      for (int64_t i = table.begin[task.image]; i < table.begin[task.image + 1]; ++i) {
        const int64_t k = table.order[i];
        const T* row = gradient + (k * layout.output_dim + task.channel) * bins_per_channel;
        for (int ph = task.p_begin; ph < task.p_end; ++ph) {
          const int32_t* y = bins.row_edges(k) + 2 * ph;
          for (int pw = task.q_begin; pw < task.q_end; ++pw) {
            const int32_t* x = bins.column_edges(k) + 2 * pw;
            const int64_t n = bin_area(y, x);
            if (n == 0) continue;
            const T* source = row + ph * bins.columns + pw;
            A share[kLanes] = {};
            for (int lane = 0; lane < task.lanes; ++lane) {
              share[lane] = load(source + lane * bins_per_channel);
            }
            for (int lane = 0; lane < kLanes; ++lane) share[lane] /= static_cast<A>(n);
            add_to_bin(block, width, y, x, share);
          }
        }
      }
      unpack_planes(block, task.stride, task.lanes, cells, result + task.offset);
    });
  });
}

}  // namespace

void PSROIPool::forward(Cpu, const Params& p, const Inputs& in, const Tensor& out) {
  with_dtype(in.data.dtype, [&](auto type) { run_forward<decltype(type)>(p, in, out); });
}

void PSROIPool::backward(Cpu cpu, const Params& p, const Inputs& in, const Tensor& d_out,
                         const Tensor& d_data, const Tensor* d_rois) {
  if (d_rois != nullptr) zero_fill(cpu, *d_rois);
  with_dtype(in.data.dtype, [&](auto type) { run_backward<decltype(type)>(p, in, d_out, d_data); });
}

GLUON_ROI_OPERATOR(PSROIPool, ps_roi_pool)

}  // namespace gluon_roi
