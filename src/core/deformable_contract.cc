// SPDX-License-Identifier: Apache-2.0
#include "deformable_contract.h"

#include <algorithm>
#include <limits>

#include "convolution.h"

namespace gluon_roi {

void visit_deformable(ParamVisitor* visit, DeformableParams* p) {
  visit->size("kernel", FIELD(kernel_height), FIELD(kernel_width));
  visit->size("stride", FIELD(stride_height), FIELD(stride_width), kStep);
  visit->size("dilate", FIELD(dilate_height), FIELD(dilate_width), kStep);
  visit->size("pad", FIELD(pad_height), FIELD(pad_width), kMargin);
  visit->positive_int(FIELD(num_deformable_group), 1);
  visit->choice(FIELD(convention),
                {{"mxnet", GLUON_ROI_MXNET}, {"torchvision", GLUON_ROI_TORCHVISION}});
}

// Throws unless offset or mask has the shape (N, channels, Ho, Wo), where this is known. Sets
// *height and *width, if they are unknown, to its Ho and Wo.
static void check_offset_or_mask(const char* op, const char* name, const Tensor& tensor,
                                 const Tensor& data, int64_t channels, const char* of_channels,
                                 int64_t* height, int64_t* width) {
  if (is_absent(tensor)) return;
  check_rank(op, name, tensor, 4, "4 dimensions (N, channels, Ho, Wo)");
  if (data.ndim >= 0) check_dimension(op, name, tensor, 0, data.shape[0], "the batch of data");
  check_dimension(op, name, tensor, 1, channels, of_channels);
  check_dimension(op, name, tensor, 2, *height, "the height of the convolution's output");
  check_dimension(op, name, tensor, 3, *width, "the width of the convolution's output");
  if (tensor.ndim < 0) return;
  if (*height < 0) *height = tensor.shape[2];
  if (*width < 0) *width = tensor.shape[3];
}

Tensor infer_deformable(const char* op, const DeformableParams& p, const DeformableArrays& in,
                        int64_t max_elements) {
  const Tensor& data = in.data;
  check_rank(op, "data", data, 4, "4 dimensions (N, C, H, W)");
  const int64_t groups = p.num_deformable_group;
  Tensor out{};
  out.dtype = data.dtype;
  out.ndim = 4;
  std::fill(out.shape, out.shape + 4, -1);
  if (data.ndim >= 0) {
    // Cell indices have 32 bits.
    constexpr int64_t kMaxCells = std::numeric_limits<int32_t>::max();
    int64_t cells;
    if (!multiply_up_to(kMaxCells, std::max<int64_t>(data.shape[2], 1),
                        std::max<int64_t>(data.shape[3], 1), &cells)) {
      fail(op, "data has shape ", shape_text(data), ", expected at most ", kMaxCells,
           " cells in a map");
    }
    if (data.shape[1] >= 0 && data.shape[1] % groups != 0) {
      fail(op, "data has ", data.shape[1],
           " channels, expected a multiple of num_deformable_group = ", groups);
    }
    out.shape[0] = data.shape[0];
    out.shape[1] = data.shape[1];
    out.shape[2] =
        outputs_along(op, data, 2, p.kernel_height, p.stride_height, p.pad_height, p.dilate_height);
    out.shape[3] =
        outputs_along(op, data, 3, p.kernel_width, p.stride_width, p.pad_width, p.dilate_width);
  }
  int64_t cells;  // kernel cells of all groups
  if (!multiply_up_to(max_elements / 2, p.kernel_height, p.kernel_width, &cells) ||
      !multiply_up_to(max_elements / 2, cells, groups, &cells)) {
    fail(op, "argument kernel: expected at most ", max_elements / 2, " cells for ", groups,
         " deformable groups, got ", p.kernel_height, " * ", p.kernel_width);
  }
  check_offset_or_mask(op, "offset", in.offset, data, 2 * cells,
                       "2 * num_deformable_group * the cells of the kernel", &out.shape[2],
                       &out.shape[3]);
  check_offset_or_mask(op, "mask", in.mask, data, cells,
                       "num_deformable_group * the cells of the kernel", &out.shape[2],
                       &out.shape[3]);
  return out;
}

}  // namespace gluon_roi
