# SPDX-License-Identifier: Apache-2.0
"""Slow, readable NumPy versions of every operator, in double precision: the oracle of the tests.

Each operator follows its formula directly, one region of interest (RoI) and one bin at a time, and
shares no code with the library. Arrays are NumPy arrays or ``mx.nd.NDArray``; results
are float64 NumPy arrays.

Notation: ``s`` is ``spatial_scale`` (map cells per image pixel), ``(P, Q)`` is ``pooled_size``,
``(H, W)`` the size of the feature map, K the number of RoIs. Boxes are ``x1, y1, x2, y2`` in
image coordinates (pixels); everything else is in map coordinates (cells). Comments only describe
the x axis; y is analogous.

Every operator treats unusual rows of ``rois`` as follows, in this order:

- a negative batch index marks a padding row: zeros, and no gradient;
- a batch index that is NaN, fractional or not below the batch size raises ``ValueError``;
- a NaN or infinite coordinate makes a row of NaN, and no gradient;
- coordinates beyond ``1e30`` cells count as ``1e30`` cells;
- cells of weight 0 are never read, so a NaN outside the box stays outside the result.
"""

from .align import ps_roi_align, ps_roi_align_backward, roi_align, roi_align_backward
from .deformable import deformable_ps_roi_pool, deformable_ps_roi_pool_backward
from .pool import ps_roi_pool, ps_roi_pool_backward, roi_pool, roi_pool_backward
from .precise import pr_roi_pool, pr_roi_pool_backward
from .pyramid import pyramid_roi_align, pyramid_roi_align_backward
from .rotated import rotated_roi_align, rotated_roi_align_backward
from .sampling import deformable_sampling, deformable_sampling_backward
from .suppression import box_nms, box_nms_backward, proposal

__all__ = [
    "roi_pool",
    "roi_pool_backward",
    "roi_align",
    "roi_align_backward",
    "ps_roi_pool",
    "ps_roi_pool_backward",
    "ps_roi_align",
    "ps_roi_align_backward",
    "rotated_roi_align",
    "rotated_roi_align_backward",
    "pr_roi_pool",
    "pr_roi_pool_backward",
    "deformable_ps_roi_pool",
    "deformable_ps_roi_pool_backward",
    "pyramid_roi_align",
    "pyramid_roi_align_backward",
    "deformable_sampling",
    "deformable_sampling_backward",
    "box_nms",
    "box_nms_backward",
    "proposal",
]
