// SPDX-License-Identifier: Apache-2.0
#include "../cuda/suppression.h"
#include "box_nms.h"

namespace gluon_roi {
namespace cuda {
namespace {

using Params = BoxNMS::Params;
using Sizes = BoxNMS::Sizes;

// A thread owns a rank.
template <class T>
__global__ void __launch_bounds__(kThreads)
    rank_kernel(Segments<SumOf<T>> all, Params p, Sizes sizes, const T* data) {
  using A = SumOf<T>;
  const int64_t place = thread_number();
  if (place >= all.size()) return;
  const int64_t batch = place / all.padded, i = place % all.padded;
  Rank<A> rank = all.no_rank();
  if (i < sizes.rows) {
    const NmsRow<T> row{data + (batch * sizes.rows + i) * sizes.width, p};
    if (row.is_valid()) rank = Rank<A>::make(row.score(), static_cast<int32_t>(i));
  }
  all.ranks[place] = rank;
}

// A thread owns a box; that of the last one to consider also counts them.
template <class T>
__global__ void __launch_bounds__(kThreads)
    box_kernel(Segments<SumOf<T>> all, Params p, Sizes sizes, const T* data) {
  const int64_t place = thread_number();
  if (place >= all.size()) return;
  const int64_t batch = place / all.padded, i = place % all.padded;
  const int32_t index = all.ranks[place].index;
  const bool has_box = index >= 0, last = i + 1 == all.padded || all.ranks[place + 1].index < 0;
  if (i == 0 && !has_box) all.counts[batch] = 0;
  if (has_box && last) {
    const int64_t count = i + 1;
    all.counts[batch] = static_cast<int32_t>(p.topk < 0 || count < p.topk ? count : p.topk);
  }
  if (!has_box) return;
  const NmsRow<T> row{data + (batch * sizes.rows + index) * sizes.width, p};
  all.boxes[place] = row.box();
  all.kinds[place] = row.kind();
}

// A thread owns a row of the output.
template <class T>
__global__ void __launch_bounds__(kThreads)
    output_kernel(Segments<SumOf<T>> all, Params p, Sizes sizes, const T* data, T* out,
                  int32_t* record) {
  using A = SumOf<T>;
  const int64_t number = thread_number();
  if (number >= sizes.batches * sizes.rows) return;
  const int64_t batch = number / sizes.rows, i = number % sizes.rows;
  T* const target = out + number * sizes.width;
  record[number] = -1;
  if (i >= all.kept_counts[batch]) {
    for (int64_t n = 0; n < sizes.width; ++n) store(target + n, A(-1));
    return;
  }
  const int64_t first = batch * all.padded;
  const int64_t source = batch * sizes.rows + all.ranks[first + all.kept[first + i]].index;
  record[number] = static_cast<int32_t>(source);
  NmsRow<T>{data + source * sizes.width, p}.copy(sizes.width, target);
}

// The same, if rows are copied as they are.
template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(Sizes sizes, const T* data, T* out, int32_t* record) {
  const int64_t number = thread_number();
  if (number >= sizes.batches * sizes.rows) return;
  for (int64_t n = number * sizes.width; n < (number + 1) * sizes.width; ++n) out[n] = data[n];
  record[number] = static_cast<int32_t>(number);
}

// A thread owns a row of the output, and with it the row of data that it was. A row of record that
// names none of its batch counts as -1.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Sizes sizes, const T* d_out, const int32_t* record, T* d_data) {
  const int64_t number = thread_number();
  if (number >= sizes.batches * sizes.rows) return;
  const int64_t source = record[number], first = number / sizes.rows * sizes.rows;
  if (source < first || source >= first + sizes.rows) return;
  for (int64_t n = 0; n < sizes.width; ++n) {
    d_data[source * sizes.width + n] = d_out[number * sizes.width + n];
  }
}

}  // namespace

template <class T>
struct Call<BoxNMS, T> {
  const Params& p;
  const Tensor& data;
  Sizes sizes;
  int64_t rows;               // of all batches
  Segments<SumOf<T>> sorted;  // of none, unless rows are suppressed

  Call(Carver* carver, const Params& params, const Tensor& input, bool backward)
      : p(params),
        data(input),
        sizes(data),
        rows(sizes.batches * sizes.rows),
        sorted(carver, backward || p.topk == 0 ? 0 : sizes.batches, sizes.rows) {}

  void forward(const Gpu& gpu, const Outputs& out) const {
    const T* const from = data_of<const T>(data);
    T* const to = data_of<T>(out[0]);
    int32_t* const record = data_of<int32_t>(out[1]);
    if (p.topk == 0) {
      return launch(gpu, copy_kernel<T>, blocks_of(rows), kThreads, sizes, from, to, record);
    }
    const int64_t blocks = blocks_of(sorted.size());
    launch(gpu, rank_kernel<T>, blocks, kThreads, sorted, p, sizes, from);
    sort_segments(gpu, sorted);
    launch(gpu, box_kernel<T>, blocks, kThreads, sorted, p, sizes, from);
    suppress<false>(gpu, sorted, SumOf<T>(static_cast<float>(p.overlap_thresh)), sizes.rows);
    launch(gpu, output_kernel<T>, blocks_of(rows), kThreads, sorted, p, sizes, from, to, record);
  }
  void backward(const Gpu& gpu, const Outputs& given, const Tensor& d) const {
    if (is_absent(d)) return;
    zero_fill(gpu, d);
    launch(gpu, backward_kernel<T>, blocks_of(rows), kThreads, sizes, data_of<const T>(given[0]),
           data_of<const int32_t>(given[1]), data_of<T>(d));
  }
};

}  // namespace cuda

template struct CudaHalf<BoxNMS>;

}  // namespace gluon_roi
