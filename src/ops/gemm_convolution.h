// SPDX-License-Identifier: Apache-2.0
// GemmConvolution: a convolution as a product of matrices, for inference on the CPU. Maps stay in
// MXNet's layout, and bias, sum and activation are inside.
//
// Reads data (N, C, H, W), weight (G * ceil(F / 12), K, 12), bias (O,) and, if it is given,
// residual (N, O, P, Q), all float32. G is num_group, F = O / G the outputs of a group, and K = C /
// G * kernel_h * kernel_w the products in a sum. Writes all of out (N, O, P, Q), with P = floor((H
// + 2 * pad_h - dilate_h * (kernel_h - 1) - 1) / stride_h) + 1, and Q likewise:
//
//   sum[n, o, p, q] = sum over c, i, j of w[o, c, i, j] * data[n, o / F * (C / G) + c, y, x],
//     where y = p * stride_h - pad_h + i * dilate_h, x = q * stride_w - pad_w + j * dilate_w, and
//     data is 0 outside of maps
//   out = act(sum + bias[o] + residual[n, o, p, q]); with adds_last: act(sum + bias[o]) + residual
//
// weight has w packed: filter f of group g and k = (c * kernel_h + i) * kernel_w + j are in weight
// at [g * ceil(F / 12) + f / 12, k, f % 12], and 0 for f >= F; gluon_roi/inference/gemm.py packs
// it. core/convolution.h lists the activations.
//
// Each sum is one chain of float32 multiply-adds in the order of k. So its error against exact
// arithmetic is at most 2^-24 (K + 3) times the sum of the absolute terms, bias and residual among
// them. A weight that is no number, or infinite, also meets the zeros around the map.
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
#include "../core/convolution.h"

namespace gluon_roi {

struct GemmConvolution : ConvolutionOperator<3> {
  static constexpr const char* kName = "GemmConvolution";
  struct Params : ConvolutionParams {
    int32_t num_group;
  };

  static void params(ParamVisitor* visit, Params* p) {
    visit_convolution(visit, p);
    visit->positive_int(FIELD(num_group), 1);
  }
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params& p, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
