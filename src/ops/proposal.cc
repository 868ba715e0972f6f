// SPDX-License-Identifier: Apache-2.0
#include "proposal.h"

#include <cfloat>
#include <limits>
#include <vector>

#include "../bindings/c.h"
#include "../cpu/suppression.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

void Proposal::infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements) {
  if (!(std::fabs(p.threshold) <= FLT_MAX)) {
    fail(kName, "argument threshold: expected a number of float32, got ", p.threshold);
  }
  const Tensor& cls = in.cls_prob;
  check_rank(kName, "cls_prob", cls, 4, "4 dimensions (N, 2 * anchors, H, W)");
  check_rank(kName, "bbox_pred", in.bbox_pred, 4, "4 dimensions (N, 4 * anchors, H, W)");
  check_rank(kName, "im_info", in.im_info, 2, "2 dimensions (N, 3)");
  const int64_t anchors = int64_t{p.scale_count} * p.ratio_count;
  check_dimension(kName, "cls_prob", cls, 1, 2 * anchors, "2 for each scale and ratio");
  check_dimension(kName, "bbox_pred", in.bbox_pred, 1, 4 * anchors, "4 for each scale and ratio");
  check_dimension(kName, "im_info", in.im_info, 1, 3, "height, width and scale");
  int64_t images = -1;
  if (cls.ndim >= 0) {
    images = cls.shape[0];
    check_dimension(kName, "bbox_pred", in.bbox_pred, 0, images, "the batch of cls_prob");
    check_dimension(kName, "bbox_pred", in.bbox_pred, 2, cls.shape[2], "the height of cls_prob");
    check_dimension(kName, "bbox_pred", in.bbox_pred, 3, cls.shape[3], "the width of cls_prob");
    check_dimension(kName, "im_info", in.im_info, 0, images, "the batch of cls_prob");
    // Box indices have 32 bits.
    constexpr int64_t kMaxBoxes = std::numeric_limits<int32_t>::max();
    int64_t boxes = std::max<int64_t>(cls.shape[2], 1);
    if (!multiply_up_to(kMaxBoxes, boxes, std::max<int64_t>(cls.shape[3], 1), &boxes) ||
        !multiply_up_to(kMaxBoxes, boxes, anchors, &boxes)) {
      fail(kName, "cls_prob has shape ", shape_text(cls), ", expected at most ", kMaxBoxes,
           " boxes of an image");
    }
    if (cls.shape[2] == 0 || cls.shape[3] == 0) {
      fail(kName, "cls_prob has shape ", shape_text(cls), ", expected at least one cell");
    }
  }
  for (int i = 0; i < 2; ++i) {
    outputs[i].ndim = 2;
    outputs[i].shape[0] = -1;
    outputs[i].shape[1] = i == 0 ? 5 : 1;
    if (images >= 0 &&
        !multiply_up_to(max_elements, images, p.rpn_post_nms_top_n, &outputs[i].shape[0])) {
      fail(kName, "argument rpn_post_nms_top_n: expected at most ", max_elements, " rows, got ",
           p.rpn_post_nms_top_n, " for each of ", images, " images");
    }
    check_elements(kName, kOutputs[i].name, outputs[i], max_elements);
  }
}

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

template <class T>
void check_images(const Candidates<T>& all) {
  const int64_t sizes[] = {all.cells / all.width, all.width};
  for (int64_t n = 0; n < all.images; ++n) {
    for (int i = 0; i < 3; ++i) {
      const auto value = load(all.im_info + 3 * n + i);
      if (!(value >= 0) || std::isinf(value)) {
        fail(Proposal::kName, "im_info row ", n, " has ", value,
             ", expected finite numbers from 0 on: height, width and scale");
      }
      if (i == 2 || std::floor(value / all.stride) <= sizes[i]) continue;
      fail(Proposal::kName, "im_info row ", n, " has ", i == 0 ? "height " : "width ", value,
           ", expected at most ", sizes[i], " cells of ", all.stride, " pixels");
    }
  }
}

template <class T>
void run_image(const Candidates<T>& all, int64_t n, bool parallel, T* out, T* out_score) {
  using A = SumOf<T>;
  Vector<Corners<A>> boxes(static_cast<size_t>(all.count));
  Vector<Rank<A>> ranks(static_cast<size_t>(all.count));
  Vector<A> scores(static_cast<size_t>(all.count));
  const ImageInfo<A> image = all.image(n);
  // The cost of decoding a box, in the unit of parallel_for's `work`.
  constexpr int64_t kElementsPerBox = 20, kAtATime = 512;
  parallel_for(div_up(all.count, kAtATime), parallel ? all.count * kElementsPerBox : 0,
               [&](int64_t task) {
                 const int64_t end = std::min(all.count, (task + 1) * kAtATime);
                 for (int64_t i = task * kAtATime; i < end; ++i) {
                   boxes[i] = all.box(image, n, i, &scores[i]);
                   ranks[i] = Rank<A>::make(scores[i], static_cast<int32_t>(i));
                 }
               });
  sort_best(&ranks, all.pre_nms_count);
  BoxColumns<A> sorted(all.pre_nms_count);
  for (int64_t i = 0; i < all.pre_nms_count; ++i)
    sorted.set(i, all.overlap_box(boxes[ranks[i].index]));
  Suppression<A, true> suppression(sorted, all.threshold);
  const Vector<int32_t> kept =
      suppression.run(std::min(all.post_nms_count, all.pre_nms_count), parallel);
  for (int64_t row = 0; row < all.post_nms_count; ++row) {
    const int32_t index = ranks[kept[row % kept.size()]].index;
    all.write(n, boxes[index], scores[index], out + row * 5, out_score + row);
  }
}

}  // namespace

template <class T>
void Proposal::forward(const Params& p, const View& in, const Outputs& out) {
  const Candidates<T> all(p, in);
  T *const rows = data_of<T>(out[0]), *const scores = data_of<T>(out[1]);
  check_images(all);
  // The cost of sorting, as a lower bound.
  constexpr int64_t kElementsPerBox = 50;
  parallel_for(all.images, all.images * all.count * kElementsPerBox, [&](int64_t n) {
    run_image(all, n, all.images == 1, rows + n * all.post_nms_count * 5,
              scores + n * all.post_nms_count);
  });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(Proposal, proposal)
