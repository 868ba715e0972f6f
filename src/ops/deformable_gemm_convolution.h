// SPDX-License-Identifier: Apache-2.0
// DeformableGemmConvolution: a deformable convolution as a product of matrices, for inference on
// the CPU. Samples go where the product reads them, and never make a map of C * kernel_h * kernel_w
// channels; bias and activation are inside.
//
// Reads data (N, C, H, W), offset and, if it is given, mask, as DeformableSampling does, weight
// (ceil(O / 12), C * kernel_h * kernel_w, 12) and bias (O,), all float32. Writes all of out (N, O,
// Ho, Wo):
//
//   sum[n, o, y, x] = sum over c, i, j of w[o, c, i, j] * sample[n, c, i, j, y, x]
//   out = act(sum + bias[o])
//
// sample[n, c, i, j, y, x] is channel (c * kernel_h + i) * kernel_w + j of DeformableSampling's
// output in the layout "columns". Weights are packed, and sums are added, as for the 1 x 1
// GemmConvolution of that output, so the bytes of out are the same as of the two operators. What
// their headers say of errors, special numbers and threads holds here, too.
//
// It has no gradient: the backward pass fails.
//
// Source: as for the two operators; that samples are packed for the product right away, as in the
// implicit products of Chetlur et al. 2014, cuDNN: Efficient Primitives for Deep Learning
// (arXiv:1410.0759).
//
// A worked number: 1 x 1, weights 2 and 3, bias 1, an offset of (0.5, 0.25) on the ramps 0 ... 15
// and 100 ... 115 of 4 x 4 cells: at (0, 0) 2 * 2.25 + 3 * 102.25 + 1 = 312.25.
#pragma once
#include "../core/convolution.h"
#include "../core/deformable_contract.h"

namespace gluon_roi {

struct DeformableGemmConvolution {
  static constexpr const char* kName = "DeformableGemmConvolution";
  static constexpr bool kIsExclusive = false;
  struct Params {
    DeformableParams sampling;
    int64_t num_filter;
    ActivationParams activation;
  };
  static constexpr Input kInputs[] = {{"data", Role::kFloat32, 4, false, false, false},
                                      {"offset", Role::kFloat32, 4, false, false, false},
                                      {"mask", Role::kFloat32, 4, true, false, false},
                                      {"weight", Role::kFloat32, 3, false, false, false},
                                      {"bias", Role::kFloat32, 1, false, false, false}};
  static constexpr Output kOutputs[] = {{"output", GLUON_ROI_FLOAT32}};

  static void params(ParamVisitor* visit, Params* p) {
    visit_deformable(visit, &p->sampling);
    visit->optional_positive(FIELD(num_filter));
    visit_activation(visit, &p->activation);
  }
  struct View {
    DeformableArrays sampled;
    Tensor weight, bias;
  };
  static View view(const Tensor* slots) {
    return {{slots[0], slots[1], slots[2]}, slots[3], slots[4]};
  }
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params& p, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
