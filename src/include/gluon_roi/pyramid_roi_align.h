/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of pyramid_roi_align, which src/ops/pyramid_roi_align.h describes. */
#ifndef GLUON_ROI_PYRAMID_ROI_ALIGN_H_
#define GLUON_ROI_PYRAMID_ROI_ALIGN_H_

#include "common.h"

/* How pyramid_roi_align assigns boxes to maps: by size, or as given. In the latter case rois has a
 * list of K boxes for each map, one list after the other, and row k of the output is the sum over
 * the lists of the features pooled for row k. A padding row in a list pools nothing. */
enum { GLUON_ROI_BY_SIZE = 0, GLUON_ROI_GIVEN = 1 };

typedef struct gluon_roi_pyramid_roi_align_params {
  int32_t pooled_height, pooled_width;      /* P, Q: bins of the output, at least 1 */
  double spatial_scale[GLUON_ROI_MAX_MAPS]; /* of each map, cells per image pixel, > 0, at
                                                most 1e30, and half of the previous one */
  int32_t maps;                             /* number of maps in the inputs and in spatial_scale */
  int32_t sampling_ratio;  /* samples per bin and axis; <= 0: ceil(roi size / bins) */
  int32_t aligned;         /* 1: shift boxes by half a cell, no minimum size */
  int32_t rois_grad;       /* 1: backward writes real gradients to d_rois, else zeros */
  double canonical_size;   /* side in pixels of a box of level canonical_level, > 0, at most 1e30 */
  int32_t canonical_level; /* 4: a map of stride 2^4 */
  int32_t bad_index;       /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
  int32_t assignment;      /* GLUON_ROI_BY_SIZE or GLUON_ROI_GIVEN */
} gluon_roi_pyramid_roi_align_params;

#endif /* GLUON_ROI_PYRAMID_ROI_ALIGN_H_ */
