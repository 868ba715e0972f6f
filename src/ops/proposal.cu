// SPDX-License-Identifier: Apache-2.0
#include "../cuda/suppression.h"
#include "proposal.h"

namespace gluon_roi {
namespace cuda {

// The boxes of all images.
template <class T>
struct Call<Proposal, T> {
  using A = SumOf<T>;
  Candidates<T> all;
  Segments<A> sorted;
  Corners<A>* boxes;  // by cell and anchor
  A* scores;

  Call(WorkspaceArena* arena, const Proposal::Params& p, const Proposal::View& in, bool)
      : all(p, in),
        sorted(arena, all.images, all.count),
        boxes(arena->take<Corners<A>>(all.images * all.count)),
        scores(arena->take<A>(all.images * all.count)) {}

  void forward(const Gpu& gpu, const Outputs& out) const;
};

namespace {

// One thread per box.
template <class T>
__global__ void __launch_bounds__(kThreads) decode_kernel(Call<Proposal, T> call) {
  using A = SumOf<T>;
  const int64_t place = thread_number();
  if (place >= call.sorted.size()) return;
  const int64_t n = place / call.sorted.padded, i = place % call.sorted.padded;
  Rank<A> rank = call.sorted.no_rank();
  if (i < call.all.count) {
    A* const score = call.scores + n * call.all.count + i;
    call.boxes[n * call.all.count + i] = call.all.box(call.all.image(n), n, i, score);
    rank = Rank<A>::make(*score, static_cast<int32_t>(i));
  }
  call.sorted.ranks[place] = rank;
}

// One thread per box that goes into suppression.
template <class T>
__global__ void __launch_bounds__(kThreads) box_kernel(Call<Proposal, T> call) {
  const int64_t number = thread_number();
  if (number >= call.all.images * call.all.pre_nms_count) return;
  const int64_t n = number / call.all.pre_nms_count, i = number % call.all.pre_nms_count;
  const int64_t place = n * call.sorted.padded + i;
  if (i == 0) call.sorted.counts[n] = static_cast<int32_t>(call.all.pre_nms_count);
  call.sorted.boxes[place] =
      call.all.overlap_box(call.boxes[n * call.all.count + call.sorted.ranks[place].index]);
  call.sorted.classes[place] = 0;
}

// One thread per row of the output.
template <class T>
__global__ void __launch_bounds__(kThreads)
    output_kernel(Call<Proposal, T> call, T* out, T* out_score) {
  const int64_t row = thread_number();
  if (row >= call.all.images * call.all.post_nms_count) return;
  const int64_t n = row / call.all.post_nms_count, first = n * call.sorted.padded;
  const int32_t place =
      call.sorted.kept[first + row % call.all.post_nms_count % call.sorted.kept_counts[n]];
  const int64_t index = n * call.all.count + call.sorted.ranks[first + place].index;
  call.all.write(n, call.boxes[index], call.scores[index], out + row * 5, out_score + row);
}

}  // namespace

template <class T>
void Call<Proposal, T>::forward(const Gpu& gpu, const Outputs& out) const {
  launch(gpu, decode_kernel<T>, blocks_of(sorted.size()), kThreads, *this);
  sort_segments(gpu, sorted);
  launch(gpu, box_kernel<T>, blocks_of(all.images * all.pre_nms_count), kThreads, *this);
  suppress<true>(gpu, sorted, all.threshold, all.post_nms_count);
  launch(gpu, output_kernel<T>, blocks_of(all.images * all.post_nms_count), kThreads, *this,
         data_of<T>(out[0]), data_of<T>(out[1]));
}

}  // namespace cuda

template struct CudaKernels<Proposal>;

}  // namespace gluon_roi
