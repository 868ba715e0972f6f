#include "ps_roi_pool.h"

namespace gluon_roi {
namespace {

// The cells [begin, end) of every bin of every RoI along both axes: K * 2 * (P + Q) numbers.
struct BinTable {
  int rows, columns;
  std::vector<int32_t> edges;

  BinTable(const PSROIPool::Params& p, const RoiTable<float>& table, const Tensor& data)
      : rows(p.pooled_height), columns(p.pooled_width) {
    const BinRule rule = PSROIPool::rule(p);
    const float scale = static_cast<float>(p.spatial_scale);
    const int height = static_cast<int>(data.shape[2]), width = static_cast<int>(data.shape[3]);
    edges.resize(table.rois.size() * 2 * (rows + columns));
    for (const int64_t k : table.order) {
      const Roi<float>& roi = table.rois[k];
      const BinAxis y = BinAxis::make(rule, roi.y1, roi.y2, scale, rows, height);
      const BinAxis x = BinAxis::make(rule, roi.x1, roi.x2, scale, columns, width);
      int32_t* edge = row_edges(k);
      for (int i = 0; i < rows; ++i, edge += 2) edge[0] = y.begin(i), edge[1] = y.end(i);
      for (int i = 0; i < columns; ++i, edge += 2) edge[0] = x.begin(i), edge[1] = x.end(i);
    }
  }
  int32_t* row_edges(int64_t k) { return edges.data() + k * 2 * (rows + columns); }
  const int32_t* row_edges(int64_t k) const { return edges.data() + k * 2 * (rows + columns); }
  const int32_t* column_edges(int64_t k) const { return row_edges(k) + 2 * rows; }
};

// One task: the RoIs of one image against kLanes output channels of one group (gh, gw), that is,
// against the score maps (c * GH + gh) * GW + gw of kLanes consecutive c.
struct Task {
  int64_t image, channel, offset, stride;  // first output channel; first map and step, in elements
  int lanes;
  int p_begin, p_end, q_begin, q_end;  // the bins that read this group

  Task(int64_t task, const PositionSensitive& layout, const Tensor& data) {
    const int64_t cells = data.shape[2] * data.shape[3];
    const int64_t blocks = blocks_of(layout.output_dim);
    const int gw = static_cast<int>(task / blocks % layout.group_width);
    const int gh = static_cast<int>(task / blocks / layout.group_width % layout.group_height);
    image = task / blocks / layout.group_width / layout.group_height;
    channel = task % blocks * kLanes;
    lanes = static_cast<int>(std::min<int64_t>(kLanes, layout.output_dim - channel));
    stride = layout.group_height * layout.group_width * cells;
    offset = (image * data.shape[1] +
              (channel * layout.group_height + gh) * layout.group_width + gw) * cells;
    bins(gh, layout.group_height, layout.pooled_height, &p_begin, &p_end);
    bins(gw, layout.group_width, layout.pooled_width, &q_begin, &q_end);
  }
  static int64_t count(const PositionSensitive& layout, const Tensor& data) {
    return data.shape[0] * layout.group_height * layout.group_width * blocks_of(layout.output_dim);
  }

 private:
  static void bins(int group, int groups, int pooled, int* begin, int* end) {
    *begin = *end = 0;
    for (int bin = 0; bin < pooled; ++bin) {
      const int g = PositionSensitive::group_of(bin, groups, pooled);
      if (g < group) *begin = bin + 1;
      if (g <= group) *end = bin + 1;
    }
  }
};

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

GR_INLINE int64_t area(const int32_t* y, const int32_t* x) {
  return y[1] > y[0] && x[1] > x[0] ? static_cast<int64_t>(y[1] - y[0]) * (x[1] - x[0]) : 0;
}

template <class T>
void run_forward(const PSROIPool::Params& p, const Inputs& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<float> table(PSROIPool::kName, in);
  const BinTable bins(p, table, in.data);
  const PositionSensitive layout = PSROIPool::layout(p, in.data.shape[1]);
  const T* data = static_cast<const T*>(in.data.data);
  T* result = static_cast<T*>(out.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins_per_channel = static_cast<int64_t>(bins.rows) * bins.columns;
  table.fill_special_rows(result, layout.output_dim * bins_per_channel);

  const int64_t work = elements(in.data) + elements(out);
  parallel_for(Task::count(layout, in.data), work, [&](int64_t id) {
    const Task task(id, layout, in.data);
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
            const int64_t n = area(y, x);
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
  const BinTable bins(p, table, in.data);
  const PositionSensitive layout = PSROIPool::layout(p, in.data.shape[1]);
  const T* gradient = static_cast<const T*>(d_out.data);
  T* result = static_cast<T*>(d_data.data);
  const int64_t width = in.data.shape[3], cells = in.data.shape[2] * width;
  const int64_t bins_per_channel = static_cast<int64_t>(bins.rows) * bins.columns;

  const int64_t work = elements(d_data) + elements(d_out);
  parallel_for(Task::count(layout, in.data), work, [&](int64_t id) {
    const Task task(id, layout, in.data);
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
            const int64_t n = area(y, x);
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
