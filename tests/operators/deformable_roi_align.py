# SPDX-License-Identifier: Apache-2.0
"""The row of DeformableROIAlign without offset; with it, tests/ops/test_deformable_roi_align.py."""

from __future__ import annotations

from typing import Any

from support.cases import (
    BAD_ROIS_GRAD,
    BAD_SAMPLES,
    TOO_MANY_BINS,
    Operator,
    of_reference,
    same_channels,
)

ORDER = 9


def _gradients(*args: Any, **arguments: Any) -> Any:
    return of_reference("deformable_roi_align_backward")(*args, **arguments)[:2]


OPERATOR = Operator(
    name="DeformableROIAlign",
    forward=of_reference("deformable_roi_align"),
    backward=_gradients,
    arguments=(
        {},
        {"sampling_ratio": 2, "aligned": False},
    ),
    rois_grad=True,
    sampled=True,
    linear=True,
    channels=same_channels,
    refused=(
        TOO_MANY_BINS,
        *BAD_SAMPLES,
        BAD_ROIS_GRAD,
        ({"gamma": "much"}, "argument gamma: expected a finite number, got 'much'"),
    ),
    ramps=(
        ([0, 0, 3, 3], 1, {}, [1.5625, 3, 7.3125, 8.75]),
        ([0, 0, 3, 3], 1, {"aligned": False}, [3.75, 5.25, 9.75, 11.25]),
    ),
)
