// SPDX-License-Identifier: Apache-2.0
#include "../cuda/suppression.h"
#include "box_nms.h"

namespace gluon_roi {
namespace cuda {
namespace {

using Params = BoxNMS::Params;
using Sizes = BoxNMS::Sizes;

// One thread per rank.
template <class T, class Box>
__global__ void __launch_bounds__(kThreads)
    rank_kernel(Segments<SumOf<T>, Box> all, Params p, Sizes sizes, const T* data) {
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

// One thread per box; the thread of the last box also writes the number of boxes. `scores` is for
// the soft methods.
template <class T, class Box>
__global__ void __launch_bounds__(kThreads)
    box_kernel(Segments<SumOf<T>, Box> all, SoftScores scores, Params p, Sizes sizes,
               const T* data) {
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
  row.load_box(all.boxes + place);
  all.classes[place] = row.class_id();
  if (BoxNMS::is_soft(p)) scores.boxes[place] = row.score();
}

// One thread per row of the output.
template <class T, class Box>
__global__ void __launch_bounds__(kThreads)
    output_kernel(Segments<SumOf<T>, Box> all, SoftScores scores, Params p, Sizes sizes,
                  const T* data, T* out, int32_t* record) {
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
  if (BoxNMS::is_soft(p)) store(target + p.score_index, static_cast<A>(scores.kept[first + i]));
}

// The same for topk = 0, which copies all rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(Sizes sizes, const T* data, T* out, int32_t* record) {
  const int64_t number = thread_number();
  if (number >= sizes.batches * sizes.rows) return;
  for (int64_t n = number * sizes.width; n < (number + 1) * sizes.width; ++n) out[n] = data[n];
  record[number] = static_cast<int32_t>(number);
}

// One thread per row of the output, which writes the gradient of the corresponding row of data. A
// record outside the row's batch is treated as -1.
template <class T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(Params p, Sizes sizes, const T* data, const T* d_out, const int32_t* record,
                    T* d_data) {
  const int64_t number = thread_number();
  if (number >= sizes.batches * sizes.rows) return;
  const int64_t source = record[number], first = number / sizes.rows * sizes.rows;
  if (source < first || source >= first + sizes.rows) return;
  const T* const from = d_out + number * sizes.width;
  T* const to = d_data + source * sizes.width;
  for (int64_t n = 0; n < sizes.width; ++n) to[n] = from[n];
  if (!BoxNMS::is_soft(p) || p.topk == 0) return;
  const double factor = decay_of_row(p, sizes, data, record, first, number);
  store(to + p.score_index, static_cast<SumOf<T>>(load(from + p.score_index) * factor));
}

}  // namespace

template <class T>
struct Call<BoxNMS, T> {
  using A = SumOf<T>;
  const Params& p;
  const Tensor& data;
  Sizes sizes;
  int64_t rows;  // of all batches
  // Only one of the three is used; the others are empty.
  Segments<A> upright;
  Segments<A, OverlapBox<double>> upright_for_decay;
  Segments<A, RotatedOverlapBox> rotated;
  SoftScores scores;

  Call(WorkspaceArena* arena, const Params& params, const Tensor& input, bool backward)
      : p(params),
        data(input),
        sizes(data),
        rows(sizes.batches * sizes.rows),
        upright(arena, suppresses(backward, false, false) ? sizes.batches : 0, sizes.rows),
        upright_for_decay(arena, suppresses(backward, false, true) ? sizes.batches : 0, sizes.rows),
        rotated(arena,
                suppresses(backward, true, false) || suppresses(backward, true, true)
                    ? sizes.batches
                    : 0,
                sizes.rows),
        scores(arena, BoxNMS::is_soft(p) ? upright_for_decay.size() + rotated.size() : 0) {}

  void forward(const Gpu& gpu, const Outputs& out) const {
    if (p.topk == 0) {
      return launch(gpu, copy_kernel<T>, blocks_of(rows), kThreads, sizes, data_of<const T>(data),
                    data_of<T>(out[0]), data_of<int32_t>(out[1]));
    }
    const float threshold = static_cast<float>(p.overlap_thresh);
    if (p.in_format == GLUON_ROI_ROTATED) {
      run(gpu, rotated, out, [&] { suppress_rotated(gpu, rotated, threshold); });
    } else if (BoxNMS::is_soft(p)) {
      run(gpu, upright_for_decay, out, [] {});
    } else {
      run(gpu, upright, out, [&] { suppress<false>(gpu, upright, A(threshold), sizes.rows); });
    }
  }
  void backward(const Gpu& gpu, const Outputs& d_outputs, const Tensor& d) const {
    if (is_absent(d)) return;
    zero_fill(gpu, d);
    launch(gpu, backward_kernel<T>, blocks_of(rows), kThreads, p, sizes, data_of<const T>(data),
           data_of<const T>(d_outputs[0]), data_of<const int32_t>(d_outputs[1]), data_of<T>(d));
  }

 private:
  // Whether the call suppresses boxes of this format by a method of this kind.
  bool suppresses(bool backward, bool is_rotated, bool is_soft) const {
    return !backward && p.topk != 0 && is_rotated == (p.in_format == GLUON_ROI_ROTATED) &&
           is_soft == BoxNMS::is_soft(p);
  }
  template <class Box, class Suppress>
  void run(const Gpu& gpu, const Segments<A, Box>& sorted, const Outputs& out,
           const Suppress& suppress_greedily) const {
    const T* const from = data_of<const T>(data);
    const int64_t blocks = blocks_of(sorted.size());
    launch(gpu, rank_kernel<T, Box>, blocks, kThreads, sorted, p, sizes, from);
    sort_segments(gpu, sorted);
    launch(gpu, box_kernel<T, Box>, blocks, kThreads, sorted, scores, p, sizes, from);
    if (BoxNMS::is_soft(p)) {
      if constexpr (!std::is_same_v<Box, OverlapBox<float>>) {
        soften(gpu, sorted, scores, BoxNMS::decay(p), p.min_score);
      }
    } else {
      suppress_greedily();
    }
    launch(gpu, output_kernel<T, Box>, blocks_of(rows), kThreads, sorted, scores, p, sizes, from,
           data_of<T>(out[0]), data_of<int32_t>(out[1]));
  }
};

}  // namespace cuda

template struct CudaKernels<BoxNMS>;

}  // namespace gluon_roi
