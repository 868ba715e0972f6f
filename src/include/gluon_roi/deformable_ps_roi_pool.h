/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of deformable_ps_roi_pool, which src/ops/deformable_ps_roi_pool.h describes. */
#ifndef GLUON_ROI_DEFORMABLE_PS_ROI_POOL_H_
#define GLUON_ROI_DEFORMABLE_PS_ROI_POOL_H_

#include "common.h"

typedef struct gluon_roi_deformable_ps_roi_pool_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0, at most 1e30 */
  int64_t output_dim; /* channels of the output; 0: C / (group_height * group_width) */
  int32_t group_height, group_width; /* grid of channel groups; 0: pooled_height / pooled_width */
  int32_t part_height, part_width;   /* grid of trans; 0: pooled_height / pooled_width */
  int32_t sample_per_part;           /* samples per bin and axis, at least 1 */
  double trans_std;                  /* factor of trans; the product is in units of the box size */
  int32_t bad_index;                 /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_deformable_ps_roi_pool_params;

#endif /* GLUON_ROI_DEFORMABLE_PS_ROI_POOL_H_ */
