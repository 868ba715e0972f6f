// SPDX-License-Identifier: Apache-2.0
// Proposal: decodes the boxes of a region proposal network, and selects the best boxes of each
// image by non-maximum suppression.
//
// Reads cls_prob (N, 2 * A, H, W), whose last A channels are the scores of the A anchors of a cell,
// bbox_pred (N, 4 * A, H, W), the predicted deltas, and im_info (N, 3), rows [height, width,
// scale]. Writes out (N * rpn_post_nms_top_n, 5), rows [image, x1, y1, x2, y2] in pixels, and score
// (N * rpn_post_nms_top_n, 1). x2 is the last pixel of a box.
//
// Each cell has an anchor for each ratio and scale (all scales of the first ratio first). bbox_pred
// has the shift of the centre, dx and dy, in units of the anchor's size, and the logarithms of the
// size factors, dw and dh; with iou_loss it has offsets of the corners in pixels. The box is
// clipped to the image. If a side is below rpn_min_size * scale, the box is extended by half of
// that in each direction, and its score becomes -1, as do the scores of cells outside im_info /
// feature_stride. The rpn_pre_nms_top_n boxes with the highest scores (all if it is not positive)
// are visited by descending score, and a box is kept unless a kept box overlaps it by more than the
// threshold, until rpn_post_nms_top_n boxes are kept. If there are fewer, the kept boxes are
// repeated cyclically.
//
// Boxes with equal scores stay in the order of cells, then anchors. A NaN score is treated as
// -infinity. A box with a NaN has the score -1, and overlaps nothing. If im_info is NaN, negative
// or larger than the map, this is an error on the CPU; CUDA kernels cannot raise errors, and treat
// all cells as outside the image if the size is NaN.
//
// No input has a gradient. Deterministic. float16 is computed in float32.
//
// Source: Ren et al. 2015, Faster R-CNN (arXiv:1506.01497), section 3.1; MXNet's contrib.Proposal
// and contrib.MultiProposal.
//
// Example: stride 16, ratio 1 and scale 1 give the anchor (0, 0, 15, 15). dx = 0.5 gives (8, 0, 23,
// 15), and dw = log 2 gives (-8, 0, 23, 15) before clipping.
#pragma once
#include <limits>

#include "../core/contract.h"
#include "../core/geometry/overlap.h"
#include "../core/geometry/proposals.h"
#include "../core/params.h"
#include "../include/gluon_roi/proposal.h"

namespace gluon_roi {

struct Proposal : public ArrayOperator<Proposal> {
  static constexpr const char* kName = "Proposal";
  using Params = gluon_roi_proposal_params;
  static constexpr Input kInputs[] = {{"cls_prob", Role::kMaps, 4, false, false, false},
                                      {"bbox_pred", Role::kLike, 4, false, false, false},
                                      {"im_info", Role::kLike, 2, false, false, false}};
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}, {"score", kLikeFirst}};

  static void params(ParamVisitor* visit, Params* p) {
    visit->integer(FIELD(rpn_pre_nms_top_n), 6000);
    visit->positive_int(FIELD(rpn_post_nms_top_n), 300);
    visit->number(FIELD(threshold), 0.7);
    visit->integer(FIELD(rpn_min_size), 16);
    visit->positive_list(FIELD(scales), FIELD(scale_count), "(4.0, 8.0, 16.0, 32.0)");
    visit->positive_list(FIELD(ratios), FIELD(ratio_count), "(0.5, 1.0, 2.0)");
    visit->positive_int(FIELD(feature_stride), 16);
    visit->boolean(FIELD(output_score), false);
    visit->boolean(FIELD(iou_loss), false);
  }

  struct View {
    Tensor cls_prob, bbox_pred, im_info;
  };
  static View view(const Params&, const Tensor* slots) { return {slots[0], slots[1], slots[2]}; }
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);

  template <class T>
  static void forward(const Params& p, const View& in, const Outputs& out);
};

// The candidate boxes of a call, for the CPU and CUDA.
template <class T>
struct Candidates {
  using A = SumOf<T>;
  static constexpr int kMaxAnchors = GLUON_ROI_MAX_MAPS * GLUON_ROI_MAX_MAPS;
  const T *cls_prob, *bbox_pred, *im_info;
  int64_t images;
  int32_t anchor_count, stride;
  int64_t cells, width;          // cells of a map, and cells in a row
  int64_t count, pre_nms_count;  // boxes of an image, and those that go into suppression
  int64_t post_nms_count;        // rows of the output per image
  A threshold, smallest;
  bool corner_offsets;  // bbox_pred has offsets of the corners
  Corners<A> anchors[kMaxAnchors];

  Candidates(const Proposal::Params& p, const Proposal::View& in)
      : cls_prob(data_of<const T>(in.cls_prob)),
        bbox_pred(data_of<const T>(in.bbox_pred)),
        im_info(data_of<const T>(in.im_info)),
        images(in.cls_prob.shape[0]),
        anchor_count(p.ratio_count * p.scale_count),
        stride(p.feature_stride),
        cells(in.cls_prob.shape[2] * in.cls_prob.shape[3]),
        width(in.cls_prob.shape[3]),
        count(cells * anchor_count),
        pre_nms_count(p.rpn_pre_nms_top_n > 0 && p.rpn_pre_nms_top_n < count ? p.rpn_pre_nms_top_n
                                                                             : count),
        post_nms_count(p.rpn_post_nms_top_n),
        threshold(static_cast<float>(p.threshold)),
        smallest(static_cast<A>(p.rpn_min_size)),
        corner_offsets(p.iou_loss != 0) {
    for (int ratio = 0; ratio < p.ratio_count; ++ratio) {
      for (int scale = 0; scale < p.scale_count; ++scale) {
        anchors[ratio * p.scale_count + scale] =
            anchor_of(stride, static_cast<A>(static_cast<float>(p.ratios[ratio])),
                      static_cast<A>(static_cast<float>(p.scales[scale])));
      }
    }
  }

  HOST_DEVICE ImageInfo<A> image(int64_t n) const {
    const A height = load(im_info + 3 * n), across = load(im_info + 3 * n + 1);
    return {height, across, smallest * load(im_info + 3 * n + 2),
            cells_on_image(height, cells / width), cells_on_image(across, width)};
  }
  // Decodes box `index` of an image, and sets its score.
  HOST_DEVICE Corners<A> box(const ImageInfo<A>& image, int64_t n, int64_t index, A* score) const {
    const int64_t cell = index / anchor_count, y = cell / width, x = cell % width;
    const int32_t anchor = static_cast<int32_t>(index % anchor_count);
    Corners<A> box = anchors[anchor];
    for (int i = 0; i < 4; ++i) box.edge[i] += static_cast<A>((i % 2 == 0 ? x : y) * stride);
    A deltas[4];
    const T* const predicted = bbox_pred + (n * anchor_count + anchor) * 4 * cells + cell;
    for (int i = 0; i < 4; ++i) deltas[i] = load(predicted + i * cells);
    box = decode_box(box, deltas, corner_offsets, image);
    *score = load(cls_prob + ((2 * n + 1) * anchor_count + anchor) * cells + cell);
    const bool is_small = grow_small(&box, image.smallest);
    if (is_small || y >= image.rows || x >= image.columns) *score = -1;
    return box;
  }
  static HOST_DEVICE OverlapBox<A> overlap_box(const Corners<A>& box) {
    const A* const e = box.edge;
    return {e[0], e[1], e[2], e[3], (e[2] - e[0] + 1) * (e[3] - e[1] + 1)};
  }
  HOST_DEVICE static void write(int64_t n, const Corners<A>& box, A score, T* out, T* out_score) {
    store(out, static_cast<A>(n));
    for (int i = 0; i < 4; ++i) store(out + 1 + i, box.edge[i]);
    store(out_score, score);
  }

 private:
  // The number of cells, at most `max_cells`, that lie completely inside an image of this size; 0
  // if it is NaN.
  HOST_DEVICE int64_t cells_on_image(A size, int64_t max_cells) const {
    const A cells_on = size / static_cast<A>(stride);
    if (cells_on >= static_cast<A>(max_cells)) return max_cells;
    return cells_on > 0 ? static_cast<int64_t>(cells_on) : 0;
  }
};

}  // namespace gluon_roi
