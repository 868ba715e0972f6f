# SPDX-License-Identifier: Apache-2.0
"""The row of PrROIPool."""

from __future__ import annotations

from support.cases import BAD_ROIS_GRAD, TOO_MANY_BINS, Operator, of_reference, same_channels

ORDER = 6

OPERATOR = Operator(
    name="PrROIPool",
    forward=of_reference("pr_roi_pool"),
    backward=of_reference("pr_roi_pool_backward"),
    arguments=({},),
    rois_grad=True,
    sampled=False,
    linear=True,
    channels=same_channels,
    refused=(TOO_MANY_BINS, BAD_ROIS_GRAD),
    ramps=(([0, 0, 2, 2], 1, {}, [2.5, 3.5, 6.5, 7.5]),),
)
