# SPDX-License-Identifier: Apache-2.0
"""The row of ROIAlign."""

from __future__ import annotations

from typing import Any

from support.cases import (
    BAD_ROIS_GRAD,
    BAD_SAMPLES,
    TOO_MANY_BINS,
    Operator,
    Recorded,
    of_reference,
    same_channels,
)

ORDER = 2


def _mxnet(
    data: Any, rois: Any, pooled: Any, scale: float, sampling_ratio: int = -1, aligned: bool = False
) -> Any:
    import mxnet as mx

    return mx.nd.contrib.ROIAlign(data, rois, pooled, scale, sampling_ratio, aligned=aligned)


OPERATOR = Operator(
    name="ROIAlign",
    forward=of_reference("roi_align"),
    backward=of_reference("roi_align_backward"),
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
    refused=(TOO_MANY_BINS, *BAD_SAMPLES, BAD_ROIS_GRAD),
    recorded=tuple(
        Recorded(library, "roi_align", arguments, arguments)
        for library in ("torchvision", "paddle")
        for arguments in (
            {"sampling_ratio": -1, "aligned": False},
            {"sampling_ratio": 2, "aligned": False},
            {"sampling_ratio": -1, "aligned": True},
            {"sampling_ratio": 2, "aligned": True},
        )
    ),
    ramps=(
        ([0, 0, 3, 3], 1, {"aligned": False}, [3.75, 5.25, 9.75, 11.25]),
        ([0, 0, 3, 3], 1, {"aligned": True}, [1.5625, 3, 7.3125, 8.75]),
    ),
)
