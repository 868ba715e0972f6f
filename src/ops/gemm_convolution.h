// SPDX-License-Identifier: Apache-2.0
// GemmConvolution: a convolution as a product of matrices, for inference on the CPU. Maps stay in
// MXNet's layout, and bias, sum and activation are inside.
//
// Reads data (N, C, H, W), weight (ceil(O / 12), C * kernel_h * kernel_w, 12), bias (O,) and, if it
// is given, residual (N, O, P, Q), all float32. Writes all of out (N, O, P, Q), with P =
// floor((H + 2 * pad_h - dilate_h * (kernel_h - 1) - 1) / stride_h) + 1, and Q likewise:
//
//   sum[n, o, p, q] = sum over c, i, j of w[o, c, i, j] * data[n, c, p * stride_h - pad_h +
//                     i * dilate_h, q * stride_w - pad_w + j * dilate_w], 0 outside of the map
//   out = act(sum + bias[o] + residual[n, o, p, q]); with adds_last: act(sum + bias[o]) + residual
//
// weight has w packed: weight[o / 12, (c * kernel_h + i) * kernel_w + j, o % 12] = w[o, c, i, j],
// and 0 for o >= O; gluon_roi/inference/gemm.py packs it. act_type 'relu' replaces numbers < 0 by
// 0, 'leaky' multiplies them by slope; both keep NaN.
//
// Each sum is one chain of float32 multiply-adds in the order of (c, i, j). So its error against
// exact arithmetic is at most 2^-24 (C * kernel_h * kernel_w + 3) times the sum of the absolute
// terms, bias and residual among them. A weight that is no number, or infinite, also meets the
// zeros around the map.
//
// It has no gradient: the backward pass fails. Deterministic; the bytes do not depend on the number
// of threads, and are the same for all instruction sets that fuse multiplication and addition,
// which is all but SSE2.
//
// Source: the layers of panels and blocks are those of Goto and van de Geijn 2008, Anatomy of
// High-Performance Matrix Multiplication, doi:10.1145/1356052.1356053, and of BLIS (Van Zee and van
// de Geijn 2015, doi:10.1145/2764454); that the panels are filled straight from the map, as in
// Chetlur et al. 2014, cuDNN: Efficient Primitives for Deep Learning (arXiv:1410.0759).
//
// A worked number: 1 x 1, weights 2 and 3, bias 1, on a cell with the channels 10 and 100: 321.
#pragma once
#include "../core/contract.h"
#include "../core/params.h"

namespace gluon_roi {

struct GemmConvolution {
  static constexpr const char* kName = "GemmConvolution";
  static constexpr bool kIsExclusive = false;
  struct Params {
    int64_t num_filter;
    int32_t kernel_height, kernel_width;
    int32_t stride_height, stride_width;
    int32_t pad_height, pad_width;
    int32_t dilate_height, dilate_width;
    int32_t act_type;  // an Activation of cpu/epilogue.h
    double slope;
    int32_t adds_last;
  };
  static constexpr Input kInputs[] = {{"data", Role::kFloat32, 4, false, false, false},
                                      {"weight", Role::kFloat32, 3, false, false, false},
                                      {"bias", Role::kFloat32, 1, false, false, false},
                                      {"residual", Role::kFloat32, 4, true, false, false}};
  static constexpr Output kOutputs[] = {{"output", GLUON_ROI_FLOAT32}};

  static void params(ParamVisitor* visit, Params* p);

  struct View {
    Tensor data, weight, bias, residual;  // residual may be absent
  };
  static View view(const Tensor* slots) { return {slots[0], slots[1], slots[2], slots[3]}; }
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params& p, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
