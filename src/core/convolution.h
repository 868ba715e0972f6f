// SPDX-License-Identifier: Apache-2.0
// What the convolutions for inference have in common: parameters, arrays, and the checks of all
// inputs but the weights, whose layouts differ.
#pragma once
#include "contract.h"
#include "params.h"

namespace gluon_roi {

// kRelu replaces numbers < 0 by 0, kRelu6 numbers > 6 by 6 as well, and kLeaky multiplies numbers <
// 0 by a slope. NaN stays.
enum Activation : int32_t { kNoActivation, kRelu, kRelu6, kLeaky };

struct ActivationParams {
  int32_t act_type;   // an Activation
  double slope;       // of kLeaky
  int32_t adds_last;  // whether a residual is added behind the activation, not before it
};
// Without adds_last, for operators without a residual.
void visit_activation(ParamVisitor* visit, ActivationParams* p);
// With adds_last.
void visit_epilogue(ParamVisitor* visit, ActivationParams* p);

struct ConvolutionParams {
  int64_t num_filter;
  int32_t kernel_height, kernel_width;
  int32_t stride_height, stride_width;
  int32_t pad_height, pad_width;
  int32_t dilate_height, dilate_width;
  ActivationParams activation;

  int64_t kernel_cells() const { return int64_t{kernel_height} * kernel_width; }
};
void visit_convolution(ParamVisitor* visit, ConvolutionParams* p);

struct ConvolutionArrays {
  Tensor data, weight, bias, residual;  // residual may be absent
};
// Base class of these operators, whose weights have kWeightAxes axes.
template <int kWeightAxes>
struct ConvolutionOperator {
  static constexpr bool kIsExclusive = false;
  static constexpr Input kInputs[] = {{"data", Role::kFloat32, 4, false, false, false},
                                      {"weight", Role::kFloat32, kWeightAxes, false, false, false},
                                      {"bias", Role::kFloat32, 1, false, false, false},
                                      {"residual", Role::kFloat32, 4, true, false, false}};
  static constexpr Output kOutputs[] = {{"output", GLUON_ROI_FLOAT32}};

  using View = ConvolutionArrays;
  static View view(const Tensor* slots) { return {slots[0], slots[1], slots[2], slots[3]}; }
};

// Throws if num_filter, which has no default, is omitted.
void check_num_filter(const char* op, int64_t num_filter);
// The weights of a filter that reads so many channels, at most max_elements; -1 if the channels are
// unknown, which is -1 too.
int64_t filter_depth(const char* op, int64_t channels, int32_t kernel_height, int32_t kernel_width,
                     int64_t max_elements);
// The size of a convolution's output along an axis of data, whose rank is known; -1 if its size is
// not.
int64_t outputs_along(const char* op, const Tensor& data, int axis, int64_t kernel, int64_t stride,
                      int64_t pad, int64_t dilate);
// Returns the output: `out`, which has its batch, height and width or an unknown rank, with
// num_filter channels. Checks bias and residual, which may be absent.
Tensor infer_output(const char* op, int64_t num_filter, Tensor out, const Tensor& bias,
                    const Tensor& residual, int64_t max_elements);
// The same for data, which is checked, and the kernel.
Tensor infer_convolution(const char* op, const ConvolutionParams& p, const Tensor& data,
                         const Tensor& bias, const Tensor& residual, int64_t max_elements);

}  // namespace gluon_roi
