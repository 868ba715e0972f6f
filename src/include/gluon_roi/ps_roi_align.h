/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of ps_roi_align, which src/ops/ps_roi_align.h describes. */
#ifndef GLUON_ROI_PS_ROI_ALIGN_H_
#define GLUON_ROI_PS_ROI_ALIGN_H_

#include "common.h"

typedef struct gluon_roi_ps_roi_align_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0, at most 1e30 */
  int64_t output_dim;                  /* channels of the output; 0: C / (P * Q) */
  int32_t sampling_ratio;              /* samples per bin and axis; <= 0: ceil(roi size / bins) */
  int32_t aligned;                     /* 1: shift boxes by half a cell, no minimum size */
  int32_t rois_grad;                   /* 1: backward writes real gradients to d_rois, else zeros */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_ps_roi_align_params;

#endif /* GLUON_ROI_PS_ROI_ALIGN_H_ */
