// SPDX-License-Identifier: Apache-2.0
// ROIAlign in CUDA kernels: roi_align.h defines the result, cuda/align.h the kernels.
#include "../cuda/align.h"
#include "roi_align.h"

template class gluon_roi::AlignOperator<gluon_roi::ROIAlign, gluon_roi_roi_align_params>;
