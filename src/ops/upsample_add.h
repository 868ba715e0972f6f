// SPDX-License-Identifier: Apache-2.0
// UpsampleAdd: a level of a pyramid twice as large, added to the next finer one, for inference on
// the CPU.
//
// Reads low (N, C, h, w) and high (N, C, H, W), float32, where H <= 2 * h and W <= 2 * w. Writes
// all of out (N, C, H, W):
//
//   out[n, c, y, x] = high[n, c, y, x] + low[n, c, y / 2, x / 2]
//
// It has no gradient: the backward pass fails. Deterministic, with the same bytes for any number of
// threads and any instruction set.
//
// Source: Lin et al. 2017, Feature Pyramid Networks for Object Detection (arXiv:1612.03144),
// section 3; MXNet's UpSampling(scale=2, sample_type='nearest'), slice_like and addition.
//
// A worked number: low [[1, 2]] and high [[10, 20, 30]] give [[11, 21, 32]].
#pragma once
#include "../core/contract.h"
#include "../core/params.h"

namespace gluon_roi {

struct UpsampleAdd {
  static constexpr const char* kName = "UpsampleAdd";
  static constexpr bool kIsExclusive = false;
  struct Params {};
  static constexpr Input kInputs[] = {{"low", Role::kFloat32, 4, false, false, false},
                                      {"high", Role::kFloat32, 4, false, false, false}};
  static constexpr Output kOutputs[] = {{"output", GLUON_ROI_FLOAT32}};
  static void params(ParamVisitor*, Params*) {}

  struct View {
    Tensor low, high;
  };
  static View view(const Tensor* slots) { return {slots[0], slots[1]}; }
  static void infer(const Params&, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params&, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
