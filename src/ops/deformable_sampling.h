// SPDX-License-Identifier: Apache-2.0
// DeformableSampling: the bilinear samples that a deformable convolution multiplies by its weights.
//
// Reads data (N, C, H, W), offset (N, 2 * groups * kh * kw, Ho, Wo) and mask (N, groups * kh * kw,
// Ho, Wo), and writes all of out. Layout "map": out is (N, C, Ho * kh, Wo * kw), and out[n, c, oy *
// kh + i, ox * kw + j] is the bilinear sample of data[n, c] at
//
//   y = oy * stride - pad + i * dilate + offset[n, (group * kh * kw + i * kw + j) * 2, oy, ox]
//
// x is computed in the same way from the next channel of offset. The sample is multiplied by
// mask[n, group * kh * kw + i * kw + j, oy, ox]; group = c / (C / groups). A convolution of out
// with kernel size and stride (kh, kw) is then the deformable convolution of data, so weights,
// groups, bias and their gradients are those of an ordinary convolution. Layout "columns": out is
// (N, C * kh * kw, Ho, Wo), and the sample is out[n, (c * kh + i) * kw + j, oy, ox]; a 1 x 1
// convolution of out has the same weights as a matrix.
//
// Convention "mxnet": a sample is valid where 0 <= y < H and 0 <= x < W, and the last row and
// column are replicated. Convention "torchvision": a sample is valid where -1 < y < H and -1 < x <
// W, and the map is padded with zeros. A sample that is not valid, such as one with a NaN or
// infinite offset, is 0 whatever its mask, and has no gradient. A cell of weight 0 is read only for
// the gradient of offset.
//
// The backward pass writes all of d_data, d_offset and d_mask, summing over samples and channels in
// their order. On a cell, the derivative with respect to the position is the one towards higher
// positions. Deterministic.
//
// Source: Dai et al. 2017, Deformable Convolutional Networks (arXiv:1703.06211), section 2.1; Zhu
// et al. 2018, Deformable ConvNets v2 (arXiv:1811.11168). "mxnet" is the convention of MXNet's
// contrib.DeformableConvolution; "torchvision" is that of MXNet's
// contrib.ModulatedDeformableConvolution, torchvision's deform_conv2d and ONNX's DeformConv.
//
// Example: on the 4 x 4 ramp 0..15, with a 1 x 1 kernel and an offset of (0.5, 0.25) everywhere,
// out is 2.25 3.25 4.25 5, 6.25 7.25 8.25 9, 10.25 11.25 12.25 13, 12.25 13.25 14.25 15 ("mxnet").
#pragma once
#include "../core/deformable_contract.h"
#include "../include/gluon_roi/deformable_sampling.h"

namespace gluon_roi {

struct DeformableSampling : public ArrayOperator<DeformableSampling> {
  static constexpr const char* kName = "DeformableSampling";
  using Params = DeformableParams;
  static constexpr Input kInputs[] = {kData,
                                      {"offset", Role::kLike, 4, false, true, false},
                                      {"mask", Role::kLike, 4, true, true, false}};
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}};

  static void params(ParamVisitor* visit, Params* p) {
    visit_deformable(visit, p);
    visit->choice(FIELD(layout), {{"map", GLUON_ROI_MAP}, {"columns", GLUON_ROI_COLUMNS}});
  }

  // The inputs, or their gradients.
  using View = DeformableArrays;
  static View view(const Params&, const Tensor* slots) { return {slots[0], slots[1], slots[2]}; }
  static void infer(const Params& p, const View& in, Tensor* out, int64_t max_elements);

  template <class T>
  static void forward(const Params& p, const View& in, const Tensor& out);
  template <class T>
  static void backward(const Params& p, const View& in, const Tensor& d_out, const View& d);
};

}  // namespace gluon_roi
