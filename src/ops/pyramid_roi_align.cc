// SPDX-License-Identifier: Apache-2.0
#include "pyramid_roi_align.h"

#include "../bindings/c.h"
#include "../cpu/align.h"

GLUON_ROI_OPERATOR(PyramidROIAlign, pyramid_roi_align)
