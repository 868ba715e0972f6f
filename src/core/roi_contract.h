// SPDX-License-Identifier: Apache-2.0
// The common part of operators that pool boxes: maps, rois in their three forms, and an output with
// a row for each box.
#pragma once
#include "contract.h"
#include "geometry/channels.h"

namespace gluon_roi {

// ---- What a kernel sees -------------------------------------------------------------------------

struct Inputs {
  Tensor data;         // the map, or the first of several
  const Tensor* maps;  // all maps, data among them
  int32_t count;       // number of maps
  int32_t coordinates;
  int32_t lists = 1;  // rois holds so many lists of boxes, one after the other
  Tensor rois;
  Tensor offsets;   // absent: no memory
  Tensor rois_num;  // absent: no memory
};

// Gradients to write, each completely. One without memory is not wanted.
using Gradients = Inputs;

// ---- Shapes -------------------------------------------------------------------------------------

// Throws unless the shapes of all inputs fit together; unknown ones are skipped. Returns the rows
// of the output, which are those of a list of boxes, or -1 if they are unknown.
int64_t check_shapes(const char* op, const Inputs& in);

// Throws if an output of this shape, as far as it is known, has more than `most` elements. The
// message names the responsible argument.
void check_output_size(const char* op, const Tensor& out, bool has_output_dim, int64_t most);

// Base class of these operators, with defaults for one map and upright boxes. Op defines forward
// and backward on Inputs and Gradients.
template <class Op, class P>
class RoiOperator {
 public:
  using Params = P;
  // In the order maps, rois, others. (nvcc does not count inherited ones itself.)
  static constexpr Input kInputs[3] = {kData, kRoisWithoutGradient, kRoisNum};
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}};
  // Whether a bin reads a map of its own, not its output's channel; so say layout() and output_dim.
  static constexpr bool kGrouped = false;
  static PositionSensitive layout(const P& p, int64_t channels) {
    return PositionSensitive::ungrouped(channels, p.pooled_height, p.pooled_width);
  }
  // Coordinates of a box.
  static constexpr int kCoordinates = 4;
  // Number of maps.
  static int32_t several(const P&) { return 1; }
  // Number of lists in rois.
  static int32_t lists(const P&) { return 1; }
  // Whether rois get a gradient with these parameters.
  static bool rois_gradient(const P&) { return false; }
  // Throws if this operator rejects inputs that others accept. Sizes may be unknown.
  static void check_inputs(const P&, const Inputs&) {}

  // ---- Required by bindings/operator.h ----
  static Inputs view(const P& params, const Tensor* slots) {
    Inputs in{};
    in.maps = slots;
    in.count = Op::several(params);
    in.data = slots[0];
    in.coordinates = Op::kCoordinates;
    in.lists = Op::lists(params);
    for (size_t i = 1; i < std::size(Op::kInputs); ++i) {
      const Tensor& tensor = slots[in.count + i - 1];
      switch (Op::kInputs[i].role) {
        case Role::kRois: in.rois = tensor; break;
        case Role::kLike: in.offsets = tensor; break;
        default: in.rois_num = tensor;
      }
    }
    return in;
  }
  static bool computes_gradient(const P& params, size_t input) {
    return Op::kInputs[input].has_gradient &&
           (Op::kInputs[input].role != Role::kRois || Op::rois_gradient(params));
  }
  static Gradients gradients(const P& params, const Tensor* slots) {
    Gradients d = view(params, slots);
    for (size_t i = 1; i < std::size(Op::kInputs); ++i) {
      if (computes_gradient(params, i)) continue;
      if (Op::kInputs[i].role == Role::kRois) d.rois = Tensor{};
      if (Op::kInputs[i].role == Role::kLike) d.offsets = Tensor{};
    }
    return d;
  }
  static void infer(const P& params, const Inputs& in, Tensor* out, int64_t most) {
    const int64_t rows = check_shapes(Op::kName, in);
    out->ndim = 4;
    out->shape[0] = out->shape[1] = -1;
    out->shape[2] = params.pooled_height;
    out->shape[3] = params.pooled_width;
    // Checked before the other sizes, which are counted in bins.
    check_output_size(Op::kName, *out, Op::kGrouped, most);
    out->shape[0] = rows;
    out->shape[1] = Op::layout(params, in.data.ndim < 0 ? -1 : in.data.shape[1]).output_dim;
    check_output_size(Op::kName, *out, Op::kGrouped, most);
    Op::check_inputs(params, in);
  }

 private:
  RoiOperator() = default;
  friend Op;
};

}  // namespace gluon_roi
