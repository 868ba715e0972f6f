// SPDX-License-Identifier: Apache-2.0
// MaxPooling: the maximum of each window of a map, for inference on the CPU, in MXNet's layout.
// (MXNet 1.9.1's own Pooling is as fast only in the layouts of oneDNN: on 64 maps of 300 x 400 in
// MXNet's layout it takes 50 times as long.)
//
// Reads data (N, C, H, W), float32. Writes all of out (N, C, P, Q), with P = round((H + 2 * pad_h -
// kernel_h) / stride_h) + 1, and Q likewise; `round` is floor for the convention 'valid' and ceil
// for 'full':
//
//   out[n, c, p, q] = max over i, j of
//     data[n, c, p * stride_h - pad_h + i, q * stride_w - pad_w + j]
//
// Cells outside of the map and NaN do not count. As in MXNet, a window without a cell that counts,
// or of -infinity alone, gives the lowest finite number.
//
// With keep_maxima, data stays where it is the maximum of the window around it, and is multiplied
// by 0 elsewhere, as CenterNet finds the peaks of its heatmaps (Zhou et al. 2019, Objects as
// Points, arXiv:1904.07850). Then out has the shape of data: strides are 1, and each side of the
// kernel is 2 * pad + 1. With `max` as above:
//
//   out[n, c, p, q] = data[n, c, p, q] * (1 if data[n, c, p, q] == max else 0)
//
// It has no gradient: the backward pass fails. Exact and deterministic.
//
// A worked number: on the row 1 5 2 4, kernel (1, 2) and stride (1, 2) give 5 4, kernel (1, 3), pad
// (0, 1) and keep_maxima 0 5 0 4.
#pragma once
#include "../core/contract.h"
#include "../core/params.h"

namespace gluon_roi {

struct MaxPooling {
  static constexpr const char* kName = "MaxPooling";
  static constexpr bool kIsExclusive = false;
  enum Convention : int32_t { kValid, kFull };
  struct Params {
    int32_t kernel_height, kernel_width;
    int32_t stride_height, stride_width;
    int32_t pad_height, pad_width;
    int32_t pooling_convention;
    int32_t keep_maxima;
  };
  static constexpr Input kInputs[] = {{"data", Role::kFloat32, 4, false, false, false}};
  static constexpr Output kOutputs[] = {{"output", GLUON_ROI_FLOAT32}};

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("kernel", FIELD(kernel_height), FIELD(kernel_width));
    visit->size("stride", FIELD(stride_height), FIELD(stride_width), kStep);
    visit->size("pad", FIELD(pad_height), FIELD(pad_width), kMargin);
    visit->choice(FIELD(pooling_convention), {{"valid", kValid}, {"full", kFull}});
    visit->boolean(FIELD(keep_maxima), false);
  }

  using View = Tensor;
  static View view(const Tensor* slots) { return slots[0]; }
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params& p, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
