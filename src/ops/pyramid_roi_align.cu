// SPDX-License-Identifier: Apache-2.0
#include "../cuda/align.h"
#include "pyramid_roi_align.h"

template struct gluon_roi::CudaKernels<gluon_roi::PyramidROIAlign>;
