// SPDX-License-Identifier: Apache-2.0
// PrROIPool in CUDA kernels: pr_roi_pool.h defines the result, cuda/align.h the kernels.
#include "../cuda/align.h"
#include "pr_roi_pool.h"

template class gluon_roi::AlignOperator<gluon_roi::PrROIPool, gluon_roi_pr_roi_pool_params>;
