// SPDX-License-Identifier: Apache-2.0
#include "../cuda/suppression.h"
#include "box_iou.h"

namespace gluon_roi {
namespace cuda {
namespace {

// The arguments of the kernels. `columns` is 1 if `aligned`.
template <class T>
struct Pairs {
  const T *lhs, *rhs;
  T* out;
  int64_t rows, columns;
  bool aligned, over_first, center;
};

// One thread per output.
template <class T>
__global__ void __launch_bounds__(kThreads) upright_kernel(Pairs<T> pairs) {
  using A = SumOf<T>;
  const int64_t number = thread_number();
  if (number >= pairs.rows * pairs.columns) return;
  const int64_t row = number / pairs.columns;
  const int64_t column = pairs.aligned ? row : number % pairs.columns;
  A a[4], b[4];
  for (int i = 0; i < 4; ++i) {
    a[i] = load(pairs.lhs + 4 * row + i);
    b[i] = load(pairs.rhs + 4 * column + i);
  }
  A overlap;
  measure_overlap(box_of_row(a, pairs.center), box_of_row(b, pairs.center), pairs.over_first, A(1),
                  &overlap);
  store(pairs.out + number, overlap);
}

// One thread per output.
template <class T>
__global__ void __launch_bounds__(kThreads) rotated_kernel(Pairs<T> pairs) {
  using A = SumOf<T>;
  const int64_t number = thread_number();
  if (number >= pairs.rows * pairs.columns) return;
  const int64_t row = number / pairs.columns;
  const int64_t column = pairs.aligned ? row : number % pairs.columns;
  A a[5], b[5];
  for (int i = 0; i < 5; ++i) {
    a[i] = load(pairs.lhs + 5 * row + i);
    b[i] = load(pairs.rhs + 5 * column + i);
  }
  const double overlap =
      overlap_of(rotated_overlap_box_of_row(a), rotated_overlap_box_of_row(b), pairs.over_first);
  store(pairs.out + number, static_cast<A>(overlap));
}

}  // namespace

template <class T>
struct Call<BoxIoU, T> {
  const BoxIoU::Params& p;
  const BoxIoU::View in;

  Call(WorkspaceArena*, const BoxIoU::Params& params, const BoxIoU::View& view, bool)
      : p(params), in(view) {}

  void forward(const Gpu& gpu, const Outputs& out) const {
    const bool aligned = p.aligned != 0;
    const Pairs<T> pairs{
        data_of<const T>(in.lhs), data_of<const T>(in.rhs),        data_of<T>(out[0]),
        box_count(in.lhs),        aligned ? 1 : box_count(in.rhs), aligned,
        p.mode == GLUON_ROI_IOF,  p.format == GLUON_ROI_CENTER};
    const int64_t blocks = blocks_of(pairs.rows * pairs.columns);
    if (p.format == GLUON_ROI_ROTATED) {
      launch(gpu, rotated_kernel<T>, blocks, kThreads, pairs);
    } else {
      launch(gpu, upright_kernel<T>, blocks, kThreads, pairs);
    }
  }
};

}  // namespace cuda

template struct CudaKernels<BoxIoU>;

}  // namespace gluon_roi
