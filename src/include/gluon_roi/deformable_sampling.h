/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of deformable_sampling, which src/ops/deformable_sampling.h describes. */
#ifndef GLUON_ROI_DEFORMABLE_SAMPLING_H_
#define GLUON_ROI_DEFORMABLE_SAMPLING_H_

#include "common.h"

/* The layouts of deformable_sampling's output: (N, C, Ho * kh, Wo * kw) or (N, C * kh * kw, Ho,
 * Wo). */
enum { GLUON_ROI_MAP = 0, GLUON_ROI_COLUMNS = 1 };

typedef struct gluon_roi_deformable_sampling_params {
  int32_t kernel_height, kernel_width; /* size of the kernel, at least 1 */
  int32_t stride_height, stride_width; /* map cells between outputs, at least 1 */
  int32_t dilate_height, dilate_width; /* map cells between kernel cells, at least 1 */
  int32_t pad_height, pad_width;       /* padding in cells at each edge, at least 0 */
  int32_t num_deformable_group;        /* number of channel groups with separate offsets */
  int32_t convention;                  /* GLUON_ROI_MXNET or GLUON_ROI_TORCHVISION */
  int32_t layout;                      /* of the output, GLUON_ROI_MAP or GLUON_ROI_COLUMNS */
} gluon_roi_deformable_sampling_params;

#endif /* GLUON_ROI_DEFORMABLE_SAMPLING_H_ */
