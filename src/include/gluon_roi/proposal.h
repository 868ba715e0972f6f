/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of proposal, which src/ops/proposal.h describes. */
#ifndef GLUON_ROI_PROPOSAL_H_
#define GLUON_ROI_PROPOSAL_H_

#include "common.h"

typedef struct gluon_roi_proposal_params {
  int32_t rpn_pre_nms_top_n;  /* number of boxes per image to consider; <= 0: all */
  int32_t rpn_post_nms_top_n; /* rows of the output per image, at least 1 */
  double threshold;           /* overlap above which the lower score is suppressed */
  int32_t rpn_min_size;       /* minimum side in pixels, multiplied by the scale of im_info */
  double scales[GLUON_ROI_MAX_MAPS]; /* anchor scales, > 0, at most 1e30 */
  int32_t scale_count;               /* their number */
  double ratios[GLUON_ROI_MAX_MAPS]; /* anchor ratios, height / width, > 0, at most 1e30 */
  int32_t ratio_count;               /* their number */
  int32_t feature_stride;            /* pixels per cell, at least 1 */
  int32_t output_score;              /* used by Python only: scores are always written */
  int32_t iou_loss;                  /* 1: bbox_pred holds corner offsets in pixels */
} gluon_roi_proposal_params;

#endif /* GLUON_ROI_PROPOSAL_H_ */
