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
#include "../core/contract.h"
#include "../core/geometry/deform_conv.h"
#include "../core/params.h"
#include "../include/gluon_roi/deformable_sampling.h"

namespace gluon_roi {

struct DeformableSampling : public ArrayOperator<DeformableSampling> {
  static constexpr const char* kName = "DeformableSampling";
  using Params = gluon_roi_deformable_sampling_params;
  static constexpr Input kInputs[] = {kData,
                                      {"offset", Role::kLike, 4, false, true, false},
                                      {"mask", Role::kLike, 4, true, true, false}};
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}};

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("kernel", FIELD(kernel_height), FIELD(kernel_width));
    visit->size("stride", FIELD(stride_height), FIELD(stride_width), kStep);
    visit->size("dilate", FIELD(dilate_height), FIELD(dilate_width), kStep);
    visit->size("pad", FIELD(pad_height), FIELD(pad_width), kMargin);
    visit->positive_int(FIELD(num_deformable_group), 1);
    visit->choice(FIELD(convention),
                  {{"mxnet", GLUON_ROI_MXNET}, {"torchvision", GLUON_ROI_TORCHVISION}});
    visit->choice(FIELD(layout), {{"map", GLUON_ROI_MAP}, {"columns", GLUON_ROI_COLUMNS}});
  }

  // The inputs, or their gradients. A mask or gradient that is omitted has no memory.
  struct View {
    Tensor data, offset, mask;
  };
  static View view(const Params&, const Tensor* slots) { return {slots[0], slots[1], slots[2]}; }
  static void infer(const Params& p, const View& in, Tensor* out, int64_t max_elements);

  template <class T>
  static DeformSampler<T> samples(const Params& p, const View& in) {
    const DeformKernel kernel{p.kernel_height,
                              p.kernel_width,
                              p.stride_height,
                              p.stride_width,
                              p.dilate_height,
                              p.dilate_width,
                              p.pad_height,
                              p.pad_width,
                              p.convention == GLUON_ROI_TORCHVISION,
                              p.layout == GLUON_ROI_COLUMNS,
                              static_cast<int32_t>(in.data.shape[2]),
                              static_cast<int32_t>(in.data.shape[3]),
                              in.offset.shape[2],
                              in.offset.shape[3]};
    return {kernel, data_of<const T>(in.offset), data_of<const T>(in.mask)};
  }

  template <class T>
  static void forward(const Params& p, const View& in, const Tensor& out);
  template <class T>
  static void backward(const Params& p, const View& in, const Tensor& d_out, const View& d);
};

// A call, divided into pairs of an image and a deformable group.
template <class T>
struct SampledPairs {
  DeformSampler<T> sampler;
  int64_t pairs, channels;  // channels: of a pair
  int64_t cells, samples;   // cells of a map, and samples of a channel of the output

  SampledPairs(const DeformableSampling::Params& p, const DeformableSampling::View& in)
      : sampler(DeformableSampling::samples<T>(p, in)),
        pairs(in.data.shape[0] * p.num_deformable_group),
        channels(in.data.shape[1] / p.num_deformable_group),
        cells(sampler.kernel.map_cells()),
        samples(sampler.kernel.samples()) {}
};

}  // namespace gluon_roi
