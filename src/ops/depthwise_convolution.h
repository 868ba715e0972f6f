// SPDX-License-Identifier: Apache-2.0
// DepthwiseConvolution: a convolution in which each output reads one channel, for inference on the
// CPU. Maps stay in MXNet's layout, and bias, sum and activation are inside.
//
// Reads data (N, C, H, W), weight (O, 1, kernel_h, kernel_w) for O = m * C, bias (O,) and, if it is
// given, residual (N, O, P, Q), all float32. Writes all of out (N, O, P, Q), with P = floor((H + 2
// * pad_h - dilate_h * (kernel_h - 1) - 1) / stride_h) + 1, and Q likewise:
//
//   sum[n, o, p, q] = sum over i, j of weight[o, 0, i, j] * data[n, o / m, p * stride_h - pad_h +
//                     i * dilate_h, q * stride_w - pad_w + j * dilate_w], 0 outside of the map
//   out = act(sum + bias[o] + residual[n, o, p, q]); with adds_last: act(sum + bias[o]) + residual
//
// Activations are those of core/convolution.h. Each sum is one chain of float32 multiply-adds in
// the order of (i, j). A weight that is no number, or infinite, also meets the zeros around the
// map.
//
// It has no gradient: the backward pass fails. Deterministic; the bytes do not depend on the number
// of threads, and are the same for all instruction sets that fuse multiplication and addition,
// which is all but SSE2.
//
// A worked number: on a map of ones, a kernel of 3 x 3 ones with pad 1 and bias 1 gives 10 inside,
// 7 at edges and 5 in corners.
#pragma once
#include "../core/convolution.h"

namespace gluon_roi {

struct DepthwiseConvolution : ConvolutionOperator<4> {
  static constexpr const char* kName = "DepthwiseConvolution";
  using Params = ConvolutionParams;

  static void params(ParamVisitor* visit, Params* p) { visit_convolution(visit, p); }
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params& p, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
