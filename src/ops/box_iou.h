// SPDX-License-Identifier: Apache-2.0
// BoxIoU: the intersection over union of every pair of boxes.
//
// Reads lhs (a..., w) and rhs (b..., w), with a box in each row; w is 4, or 5 in format 'rotated'.
// Writes out (a..., b...), or out (a...) with `aligned`, which pairs row i of lhs with row i of
// rhs. Mode 'iof' divides by the area of the lhs box instead of the union.
//
// Overlaps of rotated boxes are computed in double precision (src/core/geometry/rotated_overlap.h),
// those of upright boxes in the type of the data, or in float32 for float16. Results are between 0
// and 1. A result is 0 if the boxes do not intersect, if either has an area of 0, a negative side
// or a NaN, or if both areas are infinite.
//
// The backward pass writes zeros. Deterministic.
//
// Source: MXNet's contrib.box_iou; the rotated boxes of Ma et al. 2018, Arbitrary-Oriented Scene
// Text Detection via Rotation Proposals (arXiv:1703.01086).
//
// Example: the rotated boxes (0, 0, 4, 2, 0) and (0, 0, 4, 2, 90) intersect in a square of 2 x 2,
// so the result is 4 / (8 + 8 - 4) = 1 / 3.
#pragma once
#include "../core/contract.h"
#include "../core/geometry/overlap.h"
#include "../core/geometry/rotated_overlap.h"
#include "../core/params.h"
#include "../include/gluon_roi/box_iou.h"

namespace gluon_roi {

struct BoxIoU : public ArrayOperator<BoxIoU> {
  static constexpr const char* kName = "BoxIoU";
  using Params = gluon_roi_box_iou_params;
  static constexpr Input kInputs[] = {{"lhs", Role::kBoxes, 0, false, false, false},
                                      {"rhs", Role::kBoxes, 0, false, false, false}};
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}};

  static void params(ParamVisitor* visit, Params* p) {
    visit->choice(FIELD(format), {{"corner", GLUON_ROI_CORNER},
                                  {"center", GLUON_ROI_CENTER},
                                  {"rotated", GLUON_ROI_ROTATED}});
    visit->choice(FIELD(mode), {{"iou", GLUON_ROI_IOU}, {"iof", GLUON_ROI_IOF}});
    visit->boolean(FIELD(aligned), false);
  }

  struct View {
    Tensor lhs, rhs;
  };
  static View view(const Params&, const Tensor* slots) { return {slots[0], slots[1]}; }
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);

  template <class T>
  static void forward(const Params& p, const View& in, const Outputs& out);
};

// The number of boxes in a tensor whose last dimension is a box.
inline int64_t box_count(const Tensor& tensor) {
  int64_t count = 1;
  for (int i = 0; i + 1 < tensor.ndim; ++i) count *= tensor.shape[i];
  return count;
}

}  // namespace gluon_roi
