# SPDX-License-Identifier: Apache-2.0
"""The row of RotatedROIAlign."""

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

ORDER = 5


def _mxnet(data: Any, rois: Any, pooled: Any, scale: float, sampling_ratio: int = -1) -> Any:
    import mxnet as mx

    return mx.nd.contrib.RROIAlign(data, rois, pooled, scale, sampling_ratio)


OPERATOR = Operator(
    name="RotatedROIAlign",
    forward=of_reference("rotated_roi_align"),
    backward=of_reference("rotated_roi_align_backward"),
    arguments=(
        {},
        {"sampling_ratio": 2},
        {"aligned": True},
        {"sampling_ratio": 3, "aligned": True},
    ),
    rois_grad=True,
    sampled=True,
    linear=True,
    channels=same_channels,
    mxnet=_mxnet,
    mxnet_backward=False,
    mxnet_has=lambda pooled, arguments: not arguments.get("aligned", False),
    coordinates=5,
    refused=(TOO_MANY_BINS, *BAD_SAMPLES, BAD_ROIS_GRAD),
    ramps=(
        ([1.5, 1.5, 3, 3, 0], 1, {}, [3.75, 5.25, 9.75, 11.25]),
        ([1.5, 1.5, 3, 3, 0], 1, {"aligned": True}, [1.5625, 3, 7.3125, 8.75]),
    ),
)
