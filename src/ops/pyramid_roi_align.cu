// SPDX-License-Identifier: Apache-2.0
// PyramidROIAlign in CUDA kernels: pyramid_roi_align.h defines the result, cuda/align.h the
// kernels.
#include "../cuda/align.h"
#include "pyramid_roi_align.h"

template class gluon_roi::AlignOperator<gluon_roi::PyramidROIAlign,
                                        gluon_roi_pyramid_roi_align_params>;
