# SPDX-License-Identifier: Apache-2.0
"""The row of PSROIAlign."""

from __future__ import annotations

from typing import Any

from support.cases import (
    BAD_ROIS_GRAD,
    BAD_SAMPLES,
    Operator,
    Recorded,
    group_channels,
    of_reference,
)

ORDER = 4


def _mxnet(
    data: Any, rois: Any, pooled: Any, scale: float, sampling_ratio: int = -1, aligned: bool = True
) -> Any:
    import mxnet as mx

    return mx.nd.contrib.ROIAlign(
        data, rois, pooled, scale, sampling_ratio, position_sensitive=True, aligned=aligned
    )


OPERATOR = Operator(
    name="PSROIAlign",
    forward=of_reference("ps_roi_align"),
    backward=of_reference("ps_roi_align_backward"),
    arguments=(
        {},
        {"sampling_ratio": 2},
        {"aligned": False},
        {"sampling_ratio": 3, "aligned": False},
    ),
    rois_grad=True,
    sampled=True,
    linear=True,
    channels=group_channels,
    mxnet=_mxnet,
    refused=(
        *BAD_SAMPLES,
        BAD_ROIS_GRAD,
        (
            {"output_dim": 2**62 + 3, "pooled_size": 2},
            "argument output_dim: expected output_dim * 2",
        ),
        ({"output_dim": 4}, "data has 27 channels, expected output_dim * 3 * 3 = 36"),
        ({"pooled_size": 2}, "data has 27 channels, expected a multiple of 2 * 2 = 4"),
    ),
    recorded=(
        Recorded("torchvision", "ps_roi_align", {"sampling_ratio": -1}, {"sampling_ratio": -1}),
        Recorded("torchvision", "ps_roi_align", {"sampling_ratio": 2}, {"sampling_ratio": 2}),
    ),
    ramps=(
        ([0, 0, 3, 3], 1, {"aligned": False}, [3.75, 5.25, 9.75, 11.25]),
        ([0, 0, 3, 3], 1, {}, [1.5625, 3, 7.3125, 8.75]),
    ),
)
