// SPDX-License-Identifier: Apache-2.0
#include "convolution.h"

#include "errors.h"

namespace gluon_roi {

void visit_activation(ParamVisitor* visit, ActivationParams* p) {
  visit->choice(FIELD(act_type),
                {{"", kNoActivation}, {"relu", kRelu}, {"relu6", kRelu6}, {"leaky", kLeaky}});
  visit->number(FIELD(slope), 0.25);
}

void visit_epilogue(ParamVisitor* visit, ActivationParams* p) {
  visit_activation(visit, p);
  visit->boolean(FIELD(adds_last), false);
}

void visit_convolution(ParamVisitor* visit, ConvolutionParams* p) {
  visit->optional_positive(FIELD(num_filter));
  visit->size("kernel", FIELD(kernel_height), FIELD(kernel_width));
  visit->size("stride", FIELD(stride_height), FIELD(stride_width), kStep);
  visit->size("pad", FIELD(pad_height), FIELD(pad_width), kMargin);
  visit->size("dilate", FIELD(dilate_height), FIELD(dilate_width), kStep);
  visit_epilogue(visit, &p->activation);
}

void check_num_filter(const char* op, int64_t num_filter) {
  if (num_filter == 0) fail(op, "argument num_filter: expected a positive int, got None");
}

int64_t filter_depth(const char* op, int64_t channels, int32_t kernel_height, int32_t kernel_width,
                     int64_t max_elements) {
  int64_t depth = -1;
  if (channels >= 0 &&
      !multiply_up_to(max_elements, channels, int64_t{kernel_height} * kernel_width, &depth)) {
    fail(op, "argument kernel: expected at most ", max_elements,
         " weights of a filter, got a kernel of ", kernel_height, " * ", kernel_width);
  }
  return depth;
}

int64_t outputs_along(const char* op, const Tensor& data, int axis, int64_t kernel, int64_t stride,
                      int64_t pad, int64_t dilate) {
  const int64_t min_size = dilate * (kernel - 1) + 1 - 2 * pad;
  if (data.shape[axis] < 0) return -1;
  if (data.shape[axis] < min_size) {
    fail(op, "data has shape ", shape_text(data), ", expected at least ", min_size, " along axis ",
         axis, ", for the dilated kernel and the pad");
  }
  return (data.shape[axis] - min_size) / stride + 1;
}

Tensor infer_output(const char* op, int64_t num_filter, Tensor out, const Tensor& bias,
                    const Tensor& residual, int64_t max_elements) {
  check_rank(op, "bias", bias, 1, "1 dimension (num_filter,)");
  check_dimension(op, "bias", bias, 0, num_filter, "num_filter");
  if (!is_absent(residual)) {
    check_rank(op, "residual", residual, 4, "4 dimensions (N, num_filter, P, Q)");
  }
  if (out.ndim < 0) return unknown_tensor();
  out.dtype = GLUON_ROI_FLOAT32;
  out.data = nullptr;
  out.shape[1] = num_filter;
  if (!is_absent(residual)) {
    for (int axis = 0; axis < 4; ++axis) {
      check_dimension(op, "residual", residual, axis, out.shape[axis], "as the output");
    }
  }
  check_elements(op, "output", out, max_elements);
  return out;
}

Tensor infer_convolution(const char* op, const ConvolutionParams& p, const Tensor& data,
                         const Tensor& bias, const Tensor& residual, int64_t max_elements) {
  Tensor out = data;
  if (data.ndim >= 0) {
    out.shape[2] =
        outputs_along(op, data, 2, p.kernel_height, p.stride_height, p.pad_height, p.dilate_height);
    out.shape[3] =
        outputs_along(op, data, 3, p.kernel_width, p.stride_width, p.pad_width, p.dilate_width);
  }
  return infer_output(op, p.num_filter, out, bias, residual, max_elements);
}

}  // namespace gluon_roi
