// SPDX-License-Identifier: Apache-2.0
#include "roi_align.h"

#include "../bindings/c.h"
#include "../cpu/align.h"

GLUON_ROI_OPERATOR(ROIAlign, roi_align)
