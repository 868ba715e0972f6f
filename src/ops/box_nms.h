// SPDX-License-Identifier: Apache-2.0
// BoxNMS: non-maximum suppression. Keeps the boxes that no box with a higher score overlaps by more
// than a threshold.
//
// Reads data (..., n, w): batches of n rows, each with a score, an upright or rotated box and, if
// id_index is not negative, a class. Writes out (..., n, w): the kept rows by descending score
// (rows with equal scores stay in order), followed by rows of -1. Writes record (..., n, 1), int32:
// the indices of the kept rows, counted over all batches, followed by -1.
//
// A row is valid if its score is above valid_thresh and its class is not background_id. The `topk`
// valid rows of a batch with the highest scores (all if topk is negative) are visited by descending
// score. A row is kept unless a kept row of the same class, or of any class with force_suppress,
// overlaps it by more than overlap_thresh. If topk is 0, out is a copy of data, and record has the
// index of each row. Boxes of kept rows are converted to out_format unless their first coordinate
// is negative.
//
// A row with a NaN score is not valid; infinity is the highest score. Classes are truncated to
// int32; NaN and values outside int32 become -2^31. A box with a NaN or an infinite area overlaps
// nothing. Thresholds are rounded to float32, as in MXNet; torchvision compares with a float64 on
// the CPU.
//
// Soft methods lower the scores of overlapping rows instead of removing them (Decay in overlap.h).
// In each step the remaining row with the highest score (the first one of equal scores) is kept
// with its current score, and lowers the scores of its class, until all remaining scores are below
// min_score. Overlaps and scores are computed and compared in double precision, and scores are
// rounded once.
//
// Rotated boxes have five columns, and their overlaps are computed in double precision
// (rotated_overlap.h).
//
// The backward pass writes all of d_data: the gradients of kept rows, and 0. The conversion to
// another format is treated as a copy. The gradient of a lowered score is multiplied by the same
// factors, and overlaps are treated as constants. Deterministic. float16 is computed in float32.
//
// Source: MXNet's contrib.box_nms. The greedy rule is that of Felzenszwalb et al. 2010 (Object
// detection with discriminatively trained part-based models), section 3; the soft methods are those
// of Bodla et al. 2017, Soft-NMS (arXiv:1704.04503).
//
// Example: with scores 0.5, 0.9, 0.8, boxes (0, 0, 4, 4), (0, 0, 4, 5), (10, 0, 14, 4) and
// overlap_thresh 0.5, rows 1 and 2 are kept: row 0 overlaps row 1 by 16 / 20.
#pragma once
#include "../core/contract.h"
#include "../core/geometry/rotated_overlap.h"
#include "../core/params.h"
#include "../include/gluon_roi/box_nms.h"

namespace gluon_roi {

struct BoxNMS : public ArrayOperator<BoxNMS> {
  static constexpr const char* kName = "BoxNMS";
  using Params = gluon_roi_box_nms_params;
  static constexpr Input kInputs[] = {{"data", Role::kRows, 0, false, true, false}};
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}, {"record", GLUON_ROI_INT32}};

  static void params(ParamVisitor* visit, Params* p) {
    visit->threshold(FIELD(overlap_thresh), 0.5);
    visit->threshold(FIELD(valid_thresh), 0);
    visit->integer(FIELD(topk), -1);
    visit->non_negative_int(FIELD(coord_start), 2);
    visit->non_negative_int(FIELD(score_index), 1);
    visit->integer(FIELD(id_index), -1);
    visit->integer(FIELD(background_id), -1);
    visit->boolean(FIELD(force_suppress), false);
    const Choices formats = {
        {"corner", GLUON_ROI_CORNER}, {"center", GLUON_ROI_CENTER}, {"rotated", GLUON_ROI_ROTATED}};
    visit->choice(FIELD(in_format), formats);
    visit->choice(FIELD(out_format), formats);
    visit->boolean(FIELD(return_indices), false);
    visit->choice(
        FIELD(method),
        {{"hard", GLUON_ROI_HARD}, {"linear", GLUON_ROI_LINEAR}, {"gaussian", GLUON_ROI_GAUSSIAN}});
    visit->number(FIELD(sigma), 0.5);
    visit->number(FIELD(min_score), 0.001);
  }
  HOST_DEVICE static bool is_soft(const Params& p) { return p.method != GLUON_ROI_HARD; }
  HOST_DEVICE static Decay decay(const Params& p) {
    return {p.method == GLUON_ROI_GAUSSIAN, static_cast<float>(p.overlap_thresh), p.sigma};
  }

  // The input, or its gradient.
  using View = Tensor;
  static View view(const Params&, const Tensor* slots) { return slots[0]; }
  static void infer(const Params& p, const View& data, Tensor* outputs, int64_t max_elements);

  // The sizes of `data`.
  struct Sizes {
    int64_t batches, rows, width;

    explicit Sizes(const Tensor& data) : batches(1) {
      for (int i = 0; i < data.ndim - 2; ++i) batches *= data.shape[i];
      rows = data.shape[data.ndim - 2];
      width = data.shape[data.ndim - 1];
    }
  };

  template <class T>
  static void forward(const Params& p, const View& data, const Outputs& out);
  template <class T>
  static void backward(const Params& p, const View& data, const Outputs& d_outputs, const View& d);
};

// A row of data, for the CPU and CUDA.
template <class T>
struct NmsRow {
  using A = SumOf<T>;
  const T* values;
  gluon_roi_box_nms_params p;

  HOST_DEVICE A score() const { return load(values + p.score_index); }
  HOST_DEVICE bool is_valid() const {
    if (!(score() > static_cast<A>(static_cast<float>(p.valid_thresh)))) return false;
    return p.id_index < 0 || load(values + p.id_index) != static_cast<A>(p.background_id);
  }
  // The class of the row; 0 if classes are ignored.
  HOST_DEVICE int32_t class_id() const {
    if (p.id_index < 0 || p.force_suppress != 0) return 0;
    const A id = load(values + p.id_index);
    return id > -2147483648.0 && id < 2147483648.0 ? static_cast<int32_t>(id) : INT32_MIN;
  }
  // Loads the box, in the type in which overlaps are computed.
  template <class B>
  HOST_DEVICE void load_box(OverlapBox<B>* box) const {
    B row[4];
    for (int i = 0; i < 4; ++i) row[i] = load(values + p.coord_start + i);
    *box = box_of_row(row, p.in_format == GLUON_ROI_CENTER);
  }
  HOST_DEVICE void load_box(RotatedOverlapBox* box) const {
    A row[5];
    for (int i = 0; i < 5; ++i) row[i] = load(values + p.coord_start + i);
    *box = rotated_overlap_box_of_row(row);
  }
  // Writes the row to the output, with the box in out_format.
  HOST_DEVICE void copy(int64_t width, T* out) const {
    for (int64_t i = 0; i < width; ++i) out[i] = values[i];
    const T* const from = values + p.coord_start;
    T* const to = out + p.coord_start;
    if (p.in_format == p.out_format || load(from) < 0) return;
    for (int axis = 0; axis < 2; ++axis) {
      const A first = load(from + axis), second = load(from + 2 + axis);
      if (p.out_format == GLUON_ROI_CENTER) {
        store(to + axis, (first + second) / 2);
        store(to + 2 + axis, second - first);
      } else {
        store(to + axis, first - second / 2);
        store(to + 2 + axis, first + second / 2);
      }
    }
  }
};

// The factor by which the score of row i of the output was multiplied: the product over the rows of
// its class before it, from `begin` on.
template <class Box, class T>
HOST_DEVICE double decay_by(const gluon_roi_box_nms_params& p, const BoxNMS::Sizes& sizes,
                            const T* data, const int32_t* record, int64_t begin, int64_t i) {
  const NmsRow<T> row{data + record[i] * sizes.width, p};
  const Decay decay = BoxNMS::decay(p);
  Box box, better_box;
  row.load_box(&box);
  double factor = 1.0;
  for (int64_t j = begin; j < i; ++j) {
    // A record that forward() did not write may have rows of other batches.
    if (record[j] < begin || record[j] >= begin + sizes.rows) continue;
    const NmsRow<T> better{data + record[j] * sizes.width, p};
    if (better.class_id() != row.class_id()) continue;
    better.load_box(&better_box);
    factor *= decay.factor(overlap_of(better_box, box));
  }
  return factor;
}
template <class T>
HOST_DEVICE double decay_of_row(const gluon_roi_box_nms_params& p, const BoxNMS::Sizes& sizes,
                                const T* data, const int32_t* record, int64_t begin, int64_t i) {
  return p.in_format == GLUON_ROI_ROTATED
             ? decay_by<RotatedOverlapBox>(p, sizes, data, record, begin, i)
             : decay_by<OverlapBox<double>>(p, sizes, data, record, begin, i);
}

}  // namespace gluon_roi
