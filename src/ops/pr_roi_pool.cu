// SPDX-License-Identifier: Apache-2.0
#include "../cuda/align.h"
#include "pr_roi_pool.h"

template struct gluon_roi::CudaKernels<gluon_roi::PrROIPool>;
