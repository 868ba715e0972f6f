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

template <class T>
using Plan = Call<Proposal, T>;

// One thread per box.
template <class T>
__global__ void __launch_bounds__(kThreads) decode_kernel(Plan<T> plan) {
  using A = SumOf<T>;
  const int64_t place = thread_number();
  if (place >= plan.sorted.size()) return;
  const int64_t n = place / plan.sorted.padded, i = place % plan.sorted.padded;
  Rank<A> rank = plan.sorted.no_rank();
  if (i < plan.all.count) {
    A* const score = plan.scores + n * plan.all.count + i;
    plan.boxes[n * plan.all.count + i] = plan.all.box(plan.all.image(n), n, i, score);
    rank = Rank<A>::make(*score, static_cast<int32_t>(i));
  }
  plan.sorted.ranks[place] = rank;
}

// One thread per box that goes into suppression.
template <class T>
__global__ void __launch_bounds__(kThreads) box_kernel(Plan<T> plan) {
  const int64_t number = thread_number();
  if (number >= plan.all.images * plan.all.pre_nms_count) return;
  const int64_t n = number / plan.all.pre_nms_count, i = number % plan.all.pre_nms_count;
  const int64_t place = n * plan.sorted.padded + i;
  if (i == 0) plan.sorted.counts[n] = static_cast<int32_t>(plan.all.pre_nms_count);
  plan.sorted.boxes[place] =
      plan.all.ranked(plan.boxes[n * plan.all.count + plan.sorted.ranks[place].index]);
  plan.sorted.classes[place] = 0;
}

// One thread per row of the output.
template <class T>
__global__ void __launch_bounds__(kThreads) output_kernel(Plan<T> plan, T* out, T* out_score) {
  const int64_t row = thread_number();
  if (row >= plan.all.images * plan.all.post_nms_count) return;
  const int64_t n = row / plan.all.post_nms_count, first = n * plan.sorted.padded;
  const int32_t place =
      plan.sorted.kept[first + row % plan.all.post_nms_count % plan.sorted.kept_counts[n]];
  const int64_t index = n * plan.all.count + plan.sorted.ranks[first + place].index;
  plan.all.write(n, plan.boxes[index], plan.scores[index], out + row * 5, out_score + row);
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
