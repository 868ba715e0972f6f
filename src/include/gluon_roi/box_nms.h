/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of box_nms, which src/ops/box_nms.h describes. */
#ifndef GLUON_ROI_BOX_NMS_H_
#define GLUON_ROI_BOX_NMS_H_

#include "common.h"

/* The methods of box_nms: a box with a higher score removes the boxes that it overlaps by more than
 * overlap_thresh; or multiplies their scores by 1 - overlap; or multiplies all scores by
 * exp(-overlap^2 / sigma). */
enum { GLUON_ROI_HARD = 0, GLUON_ROI_LINEAR = 1, GLUON_ROI_GAUSSIAN = 2 };

typedef struct gluon_roi_box_nms_params {
  double overlap_thresh;  /* overlap above which the lower score is suppressed */
  double valid_thresh;    /* rows with scores <= this are ignored */
  int32_t topk;           /* number of valid rows of a batch to consider; negative: all */
  int32_t coord_start;    /* first column of the box, which has four columns, or five if rotated */
  int32_t score_index;    /* column of the score */
  int32_t id_index;       /* column of the class; negative: no classes */
  int32_t background_id;  /* class whose rows are ignored */
  int32_t force_suppress; /* 1: suppress boxes of all classes, 0: only of the same class */
  int32_t in_format;      /* box format of data: GLUON_ROI_CORNER, _CENTER or _ROTATED */
  int32_t out_format;     /* box format of out; GLUON_ROI_ROTATED if and only if in_format is */
  int32_t return_indices; /* used by Python only: the record is always written */
  int32_t method;         /* GLUON_ROI_HARD, GLUON_ROI_LINEAR or GLUON_ROI_GAUSSIAN */
  double sigma;           /* for GLUON_ROI_GAUSSIAN, > 0 */
  double min_score;       /* minimum score for the soft methods, >= 0 */
} gluon_roi_box_nms_params;

#endif /* GLUON_ROI_BOX_NMS_H_ */
