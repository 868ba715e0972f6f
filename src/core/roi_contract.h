// SPDX-License-Identifier: Apache-2.0
// Base class of the operators that pool boxes: feature maps, the three layouts of rois, and an
// output with a row for each box.
#pragma once
#include "contract.h"
#include "geometry/channels.h"

namespace gluon_roi {

// ---- Arrays of a kernel -------------------------------------------------------------------------

// The inputs of a call. As the last argument of backward(), the gradients to write: every element
// is overwritten, and a gradient without memory is not requested.
struct RoiArrays {
  Tensor data;         // the map, or the first map of a pyramid
  const Tensor* maps;  // all maps, including data
  int32_t count;       // number of maps
  int32_t coordinates;
  int32_t lists = 1;  // number of lists of boxes in rois, one after the other
  Tensor rois;
  Tensor offsets;   // trans or offset: the first kLike input; no memory if omitted
  Tensor mask;      // the second kLike input
  Tensor rois_num;  // no memory if omitted
};

// ---- Shapes -------------------------------------------------------------------------------------

// Throws if the known shapes of the inputs do not fit together. Returns the number of rows of the
// output (the boxes in one list), or -1 if it is unknown.
int64_t check_shapes(const char* op, const RoiArrays& in);

// Throws if the known dimensions of the output already give more than `max_elements` elements. The
// message names the argument that is responsible.
void check_output_size(const char* op, const Tensor& out, bool has_output_dim,
                       int64_t max_elements);

// The defaults are for one map and upright boxes. Op defines forward() and backward() on RoiArrays.
template <class Op, class P>
class RoiOperator {
 public:
  using Params = P;
  // Maps first, then rois, then the others. (The size is explicit because nvcc does not deduce it
  // for an inherited array.)
  static constexpr Input kInputs[3] = {kData, kRoisWithoutGradient, kRoisNum};
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}};
  // Whether the operator is position-sensitive: bin (p, q) reads its own score map, as layout()
  // defines, instead of the output's channel. Such an operator has output_dim.
  static constexpr bool kGrouped = false;
  static ChannelLayout layout(const P& p, int64_t channels) {
    return ChannelLayout::ungrouped(channels, p.pooled_height, p.pooled_width);
  }
  // Number of coordinates of a box.
  static constexpr int kCoordinates = 4;
  // Number of maps.
  static int32_t array_count(const P&) { return 1; }
  // Number of lists in rois.
  static int32_t lists(const P&) { return 1; }
  // Whether rois has a gradient with these parameters.
  static bool rois_gradient(const P&) { return false; }
  // Checks what is specific to the operator. Sizes may be unknown.
  static void check_inputs(const P&, const RoiArrays&) {}

  // ---- Required by bindings/operator.h ----
  static RoiArrays view(const P& params, const Tensor* slots) {
    RoiArrays in{};
    in.maps = slots;
    in.count = Op::array_count(params);
    in.data = slots[0];
    in.coordinates = Op::kCoordinates;
    in.lists = Op::lists(params);
    for (size_t i = 1; i < std::size(Op::kInputs); ++i) {
      const Tensor& tensor = slots[in.count + i - 1];
      switch (Op::kInputs[i].role) {
        case Role::kRois: in.rois = tensor; break;
        case Role::kLike: (is_first_like(i) ? in.offsets : in.mask) = tensor; break;
        default: in.rois_num = tensor;
      }
    }
    return in;
  }
  static bool computes_gradient(const P& params, size_t input) {
    return Op::kInputs[input].has_gradient &&
           (Op::kInputs[input].role != Role::kRois || Op::rois_gradient(params));
  }
  static RoiArrays gradients(const P& params, const Tensor* slots) {
    RoiArrays d = view(params, slots);
    for (size_t i = 1; i < std::size(Op::kInputs); ++i) {
      if (computes_gradient(params, i)) continue;
      if (Op::kInputs[i].role == Role::kRois) d.rois = Tensor{};
      if (Op::kInputs[i].role == Role::kLike) (is_first_like(i) ? d.offsets : d.mask) = Tensor{};
    }
    return d;
  }
  static void infer(const P& params, const RoiArrays& in, Tensor* out, int64_t max_elements) {
    const int64_t rows = check_shapes(Op::kName, in);
    out->ndim = 4;
    out->shape[0] = out->shape[1] = -1;
    out->shape[2] = params.pooled_height;
    out->shape[3] = params.pooled_width;
    // pooled_size is checked first, because the limits of the other sizes depend on it.
    check_output_size(Op::kName, *out, Op::kGrouped, max_elements);
    out->shape[0] = rows;
    out->shape[1] = Op::layout(params, in.data.ndim < 0 ? -1 : in.data.shape[1]).output_dim;
    check_output_size(Op::kName, *out, Op::kGrouped, max_elements);
    Op::check_inputs(params, in);
  }

 private:
  static bool is_first_like(size_t input) { return Op::kInputs[input - 1].role != Role::kLike; }
  RoiOperator() = default;
  friend Op;
};

}  // namespace gluon_roi
