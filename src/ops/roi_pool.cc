#include "roi_pool.h"

#include "../core/tables.h"

namespace gluon_roi {
namespace {

// Where the search for a maximum starts: the lowest finite number of the element type.
template <class T>
GR_INLINE SumOf<T> lowest() {
  return std::is_same<T, Half>::value ? SumOf<T>(-65504) : std::numeric_limits<SumOf<T>>::lowest();
}

template <class T>
void run_forward(const ROIPool::Params& p, const Inputs& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<float> table(ROIPool::kName, in);
  const BinTable bins(BinRule::kRoiPool, p.pooled_height, p.pooled_width, p.spatial_scale, table,
                      in.data);
  const T* data = static_cast<const T*>(in.data.data);
  T* result = static_cast<T*>(out.data);
  const int64_t channels = in.data.shape[1];
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t outputs = static_cast<int64_t>(bins.rows) * bins.columns;
  table.fill_special_rows(result, channels * outputs);

  parallel_for(ChannelTask::count(in.data), elements(in.data) + elements(out), [&](int64_t id) {
    const ChannelTask task(id, in.data);
    if (table.begin[task.image] == table.begin[task.image + 1]) return;
    A* block = scratch<A>((cells + outputs) * kLanes);
    A* tile = block + cells * kLanes;
    run_simd([&]() GR_KERNEL {
      pack_planes(data + task.offset, cells, task.lanes, cells, block);
      for (int64_t i = table.begin[task.image]; i < table.begin[task.image + 1]; ++i) {
        const int64_t k = table.order[i];
        A* target = tile;
        for (int ph = 0; ph < bins.rows; ++ph) {
          const int32_t* y = bins.row_edges(k) + 2 * ph;
          for (int pw = 0; pw < bins.columns; ++pw, target += kLanes) {
            const int32_t* x = bins.column_edges(k) + 2 * pw;
            A best[kLanes];
            const A start = bin_area(y, x) > 0 ? lowest<T>() : A(0);
            for (int lane = 0; lane < kLanes; ++lane) best[lane] = start;
            for (int64_t row = y[0]; row < y[1]; ++row) {
              const A* cell = block + (row * width + x[0]) * kLanes;
              for (int32_t j = x[0]; j < x[1]; ++j, cell += kLanes) {
#pragma omp simd
                for (int lane = 0; lane < kLanes; ++lane) {
                  best[lane] = cell[lane] > best[lane] ? cell[lane] : best[lane];
                }
              }
            }
            for (int lane = 0; lane < kLanes; ++lane) target[lane] = best[lane];
          }
        }
        unpack_planes(tile, outputs, task.lanes, outputs,
                      result + (k * channels + task.channel) * outputs);
      }
    });
  });
}

template <class T>
void run_backward(const ROIPool::Params& p, const Inputs& in, const Tensor& d_out,
                  const Tensor& d_data) {
  using A = SumOf<T>;
  using Index = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
  const RoiTable<float> table(ROIPool::kName, in);
  const BinTable bins(BinRule::kRoiPool, p.pooled_height, p.pooled_width, p.spatial_scale, table,
                      in.data);
  const T* data = static_cast<const T*>(in.data.data);
  const T* gradient = static_cast<const T*>(d_out.data);
  T* result = static_cast<T*>(d_data.data);
  const int64_t channels = in.data.shape[1];
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t outputs = static_cast<int64_t>(bins.rows) * bins.columns;

  const int64_t work = 2 * elements(d_data) + elements(d_out);
  parallel_for(ChannelTask::count(in.data), work, [&](int64_t id) {
    const ChannelTask task(id, in.data);
    A* block = scratch<A>((2 * cells + outputs) * kLanes);
    A* sums = block + cells * kLanes;
    A* tile = sums + cells * kLanes;
    run_simd([&]() GR_KERNEL {
      pack_planes(data + task.offset, cells, task.lanes, cells, block);
      std::fill(sums, sums + cells * kLanes, A(0));
      for (int64_t i = table.begin[task.image]; i < table.begin[task.image + 1]; ++i) {
        const int64_t k = table.order[i];
        pack_planes(gradient + (k * channels + task.channel) * outputs, outputs, task.lanes,
                    outputs, tile);
        const A* slope = tile;
        for (int ph = 0; ph < bins.rows; ++ph) {
          const int32_t* y = bins.row_edges(k) + 2 * ph;
          for (int pw = 0; pw < bins.columns; ++pw, slope += kLanes) {
            const int32_t* x = bins.column_edges(k) + 2 * pw;
            A best[kLanes];
            Index where[kLanes];
            for (int lane = 0; lane < kLanes; ++lane) best[lane] = lowest<T>(), where[lane] = -1;
            for (int64_t row = y[0]; row < y[1]; ++row) {
              const A* cell = block + (row * width + x[0]) * kLanes;
              for (int32_t j = x[0]; j < x[1]; ++j, cell += kLanes) {
                const Index here = static_cast<Index>(row * width + j);
#pragma omp simd
                for (int lane = 0; lane < kLanes; ++lane) {
                  const bool better = cell[lane] > best[lane];
                  best[lane] = better ? cell[lane] : best[lane];
                  where[lane] = better ? here : where[lane];
                }
              }
            }
            for (int lane = 0; lane < kLanes; ++lane) {
              if (where[lane] >= 0) sums[where[lane] * kLanes + lane] += slope[lane];
            }
          }
        }
      }
      unpack_planes(sums, cells, task.lanes, cells, result + task.offset);
    });
  });
}

}  // namespace

void ROIPool::forward(Cpu, const Params& p, const Inputs& in, const Tensor& out) {
  with_dtype(in.data.dtype, [&](auto type) { run_forward<decltype(type)>(p, in, out); });
}

void ROIPool::backward(Cpu cpu, const Params& p, const Inputs& in, const Tensor& d_out,
                       const Tensor& d_data, const Tensor* d_rois) {
  if (d_rois != nullptr) zero_fill(cpu, *d_rois);
  with_dtype(in.data.dtype, [&](auto type) { run_backward<decltype(type)>(p, in, d_out, d_data); });
}

GLUON_ROI_OPERATOR(ROIPool, roi_pool)

}  // namespace gluon_roi
