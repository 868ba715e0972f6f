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
        {"mode": "max", "aligned": True},
        {"mode": "max", "sampling_ratio": 2},
    ),
    rois_grad=True,
    sampled=True,
    linear=True,
    channels=same_channels,
    mxnet=_mxnet,
    mxnet_has=lambda pooled, arguments: "mode" not in arguments,
    refused=(
        TOO_MANY_BINS,
        *BAD_SAMPLES,
        BAD_ROIS_GRAD,
        ({"mode": "mean"}, "argument mode: expected 'avg' or 'max', got 'mean'"),
    ),
    recorded=tuple(
        Recorded(library, "roi_align", arguments, arguments)
        for library in ("torchvision", "paddle")
        for arguments in (
            {"sampling_ratio": -1, "aligned": False},
            {"sampling_ratio": 2, "aligned": False},
            {"sampling_ratio": -1, "aligned": True},
            {"sampling_ratio": 2, "aligned": True},
        )
    )
    + tuple(
        Recorded(
            "mmcv",
            "roi_align",
            {"sampling_ratio": sampling_ratio, "pool_mode": "max", "aligned": aligned},
            {"sampling_ratio": sampling_ratio, "mode": "max", "aligned": aligned},
        )
        for sampling_ratio, aligned in ((0, True), (2, False))
    ),
    ramps=(
        ([0, 0, 3, 3], 1, {"aligned": False}, [3.75, 5.25, 9.75, 11.25]),
        ([0, 0, 3, 3], 1, {"aligned": True}, [1.5625, 3, 7.3125, 8.75]),
        ([0, 0, 3, 3], 1, {"mode": "max"}, [5.625, 7.125, 11.625, 13.125]),
    ),
)
