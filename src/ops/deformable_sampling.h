// SPDX-License-Identifier: Apache-2.0
// DeformableSampling: what a deformable convolution multiplies by its weights.
//
// Reads data (N, C, H, W), offset (N, 2 * groups * kh * kw, Ho, Wo) and mask (N, groups * kh * kw,
// Ho, Wo), writes out, overwriting it whole. layout "map": out is (N, C, Ho * kh, Wo * kw), and
// out[n, c, oy * kh + i, ox * kw + j] is the bilinear sample of data[n, c] at
//
//   y = oy * stride - pad + i * dilate + offset[n, (group * kh * kw + i * kw + j) * 2, oy, ox]
//
// and x alike from the next channel of offset, times mask[n, group * kh * kw + i * kw + j, oy, ox];
// group = c / (C / groups). A convolution of out with a kernel and a stride of (kh, kw) is then the
// deformable convolution of data with that kernel: its weights, groups of weights and bias, and the
// gradients of these, are those of any convolution. layout "columns": out is (N, C * kh * kw, Ho,
// Wo), and the sample is out[n, (c * kh + i) * kw + j, oy, ox]; a convolution with a kernel of 1
// takes the same weights, as a matrix.
//
// convention "mxnet": a sample counts where 0 <= y < H and 0 <= x < W; behind the last row and the
// last column the map goes on as it ends. convention "torchvision": it counts where -1 < y < H and
// -1 < x < W, on a map that has zeros around it, so that samples fade out. A sample that does not
// count, among them one that is moved by NaN or infinity, is 0 whatever its mask, and gives no
// gradient. A cell of weight 0 is not read, but by the gradient of offset.
//
// The backward pass writes d_data, d_offset and d_mask whole, samples and channels in their order.
// Derivatives by a position on a cell are those towards higher positions. Deterministic.
//
// Source: Dai et al. 2017, Deformable Convolutional Networks (arXiv:1703.06211), section 2.1; Zhu
// et al. 2018, Deformable ConvNets v2 (arXiv:1811.11168). "mxnet" is the rule of MXNet's
// contrib.DeformableConvolution; "torchvision" that of its ModulatedDeformableConvolution, of
// torchvision's deform_conv2d, and of ONNX's DeformConv.
//
// A worked number: of the ramp 0..15 on 4 x 4, with a kernel of 1 and an offset of (0.5, 0.25)
// everywhere, out is 2.25 3.25 4.25 5, 6.25 7.25 8.25 9, 10.25 11.25 12.25 13, 12.25 13.25 14.25 15
// ("mxnet").
#pragma once
#include "../core/contract.h"
#include "../core/geometry/deformed.h"
#include "../core/params.h"

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
    visit->samples(FIELD(num_deformable_group), 1);
    visit->choice(FIELD(convention),
                  {{"mxnet", GLUON_ROI_MXNET}, {"torchvision", GLUON_ROI_TORCHVISION}});
    visit->choice(FIELD(layout), {{"map", GLUON_ROI_MAP}, {"columns", GLUON_ROI_COLUMNS}});
  }

  // The inputs, or their gradients; mask and gradients that are absent have no memory.
  struct View {
    Tensor data, offset, mask;
  };
  static View view(const Params&, const Tensor* slots) { return {slots[0], slots[1], slots[2]}; }
  static void infer(const Params& p, const View& in, Tensor* out, int64_t most);

  template <class T>
  static MovedSamples<T> samples(const Params& p, const View& in) {
    const DeformedKernel kernel{p.kernel_height,
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

// A call, cut into pairs of an image and a deformable group.
template <class T>
struct SampledPairs {
  MovedSamples<T> moved;
  int64_t pairs, channels;  // channels of a pair
  int64_t cells, samples;   // of a map and of its output

  SampledPairs(const DeformableSampling::Params& p, const DeformableSampling::View& in)
      : moved(DeformableSampling::samples<T>(p, in)),
        pairs(in.data.shape[0] * p.num_deformable_group),
        channels(in.data.shape[1] / p.num_deformable_group),
        cells(moved.kernel.map_cells()),
        samples(moved.kernel.samples()) {}
};

}  // namespace gluon_roi
