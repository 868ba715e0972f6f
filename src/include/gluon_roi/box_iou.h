/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of box_iou, which src/ops/box_iou.h describes. */
#ifndef GLUON_ROI_BOX_IOU_H_
#define GLUON_ROI_BOX_IOU_H_

#include "common.h"

/* The divisor of box_iou: the area of the union, or of the lhs box. */
enum { GLUON_ROI_IOU = 0, GLUON_ROI_IOF = 1 };

typedef struct gluon_roi_box_iou_params {
  int32_t format;  /* GLUON_ROI_CORNER, GLUON_ROI_CENTER or GLUON_ROI_ROTATED */
  int32_t mode;    /* GLUON_ROI_IOU or GLUON_ROI_IOF */
  int32_t aligned; /* 1: pairs row i of lhs with row i of rhs; 0: all pairs */
} gluon_roi_box_iou_params;

#endif /* GLUON_ROI_BOX_IOU_H_ */
