// SPDX-License-Identifier: Apache-2.0
// WinogradConvolution: a 3 x 3 convolution of stride 1 by Winograd's F(4 x 4, 3 x 3) or F(6 x 6,
// 3 x 3), for inference on the CPU.
//
// Reads data (N, C, H, W), weight (36 or 64, ceil(O / 16), C, 16), bias (O,) and, if it is given,
// residual (N, O, H, W), all float32. Writes all of out (N, O, H, W):
//
//   sum[n, o, y, x] = sum over c, i, j of
//                     w[o, c, i, j] * data[n, c, y + (i - 1) * dilate, x + (j - 1) * dilate]
//   out = act(sum + bias[o] + residual[n, o, y, x]); with adds_last: act(sum + bias[o]) + residual
//
// with zeros around the map, so that the map keeps its size. weight has w transformed: weight[S * a
// + b, o / 16, c, o % 16] = (G w[o, c] G')[a, b], and 0 for o >= O, where S is 6 for tiles of 4 x 4
// outputs, and 8 for 6 x 6; gluon_roi/inference/winograd.py computes it. Activations are those of
// core/convolution.h.
//
// Products and sums are float32. error_bound() of winograd.py bounds the error against exact
// arithmetic; for trained weights it is some units of 2^-24 max|data| sum|w|. A NaN or an infinity
// reaches every output of its tile, and one row and one column of adjacent tiles: up to 5 x 5
// outputs, or 7 x 7. Numbers beyond 1e35 may overflow.
//
// It has no gradient: the backward pass fails. Deterministic; the bytes do not depend on the number
// of threads, and are the same for all instruction sets that fuse multiplication and addition,
// which is all but SSE2.
//
// Source: Lavin and Gray 2016, Fast Algorithms for Convolutional Neural Networks
// (arXiv:1509.09308). For 4 x 4 its matrices belong to the points 0, +-1, +-2 and infinity; those
// here to 0, +-5/8, +-3/2 and infinity, as in the float32 kernels of oneDNN, which take as many
// operations and have a third of the error. Those for 6 x 6 belong to 0, +-1, +-2, +-1/2 and
// infinity, as in NNPACK and ncnn. On the choice of points: Barabasz et al. 2018, Error Analysis
// and Improving the Accuracy of Winograd Convolution for Deep Neural Networks (arXiv:1803.10986).
//
// A worked number: on a map of ones, a kernel of ones gives 9 inside, 6 at edges and 4 in corners.
#pragma once
#include "../core/convolution.h"

namespace gluon_roi {

struct WinogradConvolution : ConvolutionOperator<4> {
  static constexpr const char* kName = "WinogradConvolution";
  struct Params {
    int64_t num_filter;
    int32_t dilate;
    ActivationParams activation;
  };

  static void params(ParamVisitor* visit, Params* p);
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params& p, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
