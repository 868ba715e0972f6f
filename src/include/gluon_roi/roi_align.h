/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of roi_align, which src/ops/roi_align.h describes. */
#ifndef GLUON_ROI_ROI_ALIGN_H_
#define GLUON_ROI_ROI_ALIGN_H_

#include "common.h"

/* What roi_align takes of a bin's samples: their mean, or the largest one. */
enum { GLUON_ROI_AVG = 0, GLUON_ROI_MAX = 1 };

typedef struct gluon_roi_roi_align_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0, at most 1e30 */
  int32_t sampling_ratio;              /* samples per bin and axis; <= 0: ceil(roi size / bins) */
  int32_t aligned;                     /* 1: shift boxes by half a cell, no minimum size */
  int32_t rois_grad;                   /* 1: backward writes real gradients to d_rois, else zeros */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
  int32_t mode;      /* GLUON_ROI_AVG or GLUON_ROI_MAX */
} gluon_roi_roi_align_params;

#endif /* GLUON_ROI_ROI_ALIGN_H_ */
