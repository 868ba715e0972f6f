// SPDX-License-Identifier: Apache-2.0
// The common part of operators that pool boxes: maps, rois in their three forms, and an output with
// a row for each box.
#pragma once
#include <type_traits>

#include "contract.h"

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
struct Gradients {
  const Tensor* maps;
  Tensor data;  // of the first map
  Tensor rois;
  Tensor offsets;
};

// ---- Shapes -------------------------------------------------------------------------------------

// Throws unless the shapes of all inputs fit together; unknown ones are skipped. Returns the rows
// of the output, which are those of a list of boxes, or -1 if they are unknown.
int64_t check_shapes(const char* op, const Inputs& in);

// Throws if an output of this shape, as far as it is known, has more than `most` elements. The
// message names the responsible argument.
void check_output_size(const char* op, const Tensor& out, bool has_output_dim, int64_t most);

template <class Params, class = void>
struct HasOutputDim : std::false_type {};
template <class Params>
struct HasOutputDim<Params, std::void_t<decltype(Params::output_dim)>> : std::true_type {};

// Base class of these operators, with defaults for one map and upright boxes. Op defines kInputs
// (in the order maps, rois, others), output_channels(params, C), and forward and backward on Inputs
// and Gradients.
template <class Op>
class RoiOperator {
 public:
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}};
  // Coordinates of a box.
  static constexpr int kCoordinates = 4;
  // Number of maps.
  template <class Params>
  static int32_t several(const Params&) {
    return 1;
  }
  // Number of lists in rois.
  template <class Params>
  static int32_t lists(const Params&) {
    return 1;
  }
  // Whether rois get a gradient with these parameters.
  template <class Params>
  static bool rois_gradient(const Params&) {
    return false;
  }
  // Throws if this operator rejects inputs that others accept. Sizes may be unknown.
  template <class Params>
  static void check_inputs(const Params&, const Inputs&) {}

  // ---- Required by bindings/operator.h ----
  using View = Inputs;
  template <class Params>
  static Inputs view(const Params& params, const Tensor* slots) {
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
  template <class Params>
  static bool computes_gradient(const Params& params, size_t input) {
    return Op::kInputs[input].has_gradient &&
           (Op::kInputs[input].role != Role::kRois || Op::rois_gradient(params));
  }
  template <class Params>
  static Gradients gradients(const Params& params, const Tensor* slots) {
    const Inputs all = view(params, slots);
    Gradients d{};
    d.maps = all.maps;
    d.data = all.data;
    for (size_t i = 1; i < std::size(Op::kInputs); ++i) {
      if (!computes_gradient(params, i)) continue;
      if (Op::kInputs[i].role == Role::kRois) d.rois = all.rois;
      if (Op::kInputs[i].role == Role::kLike) d.offsets = all.offsets;
    }
    return d;
  }
  template <class Params>
  static void infer(const Params& params, const Inputs& in, Tensor* out, int64_t most) {
    constexpr bool has_output_dim = HasOutputDim<Params>::value;
    const int64_t rows = check_shapes(Op::kName, in);
    out->ndim = 4;
    out->shape[0] = out->shape[1] = -1;
    out->shape[2] = params.pooled_height;
    out->shape[3] = params.pooled_width;
    // Checked before the other sizes, which are counted in bins.
    check_output_size(Op::kName, *out, has_output_dim, most);
    out->shape[0] = rows;
    out->shape[1] = Op::output_channels(params, in.data.ndim < 0 ? -1 : in.data.shape[1]);
    check_output_size(Op::kName, *out, has_output_dim, most);
    Op::check_inputs(params, in);
  }

 private:
  RoiOperator() = default;
  friend Op;
};

}  // namespace gluon_roi
