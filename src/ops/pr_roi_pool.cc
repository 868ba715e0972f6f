// SPDX-License-Identifier: Apache-2.0
#include "pr_roi_pool.h"

#include "../bindings/c.h"
#include "../cpu/align.h"

GLUON_ROI_OPERATOR(PrROIPool, pr_roi_pool)
