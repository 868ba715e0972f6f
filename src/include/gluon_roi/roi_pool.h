/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of roi_pool, which src/ops/roi_pool.h describes. */
#ifndef GLUON_ROI_ROI_POOL_H_
#define GLUON_ROI_ROI_POOL_H_

#include "common.h"

typedef struct gluon_roi_roi_pool_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0, at most 1e30 */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_roi_pool_params;

#endif /* GLUON_ROI_ROI_POOL_H_ */
