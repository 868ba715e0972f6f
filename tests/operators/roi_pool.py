# SPDX-License-Identifier: Apache-2.0
"""The row of ROIPool."""

from __future__ import annotations

from typing import Any

from support.cases import TOO_MANY_BINS, Operator, Recorded, of_reference, same_channels

ORDER = 1


def _mxnet(data: Any, rois: Any, pooled: Any, scale: float) -> Any:
    import mxnet as mx

    return mx.nd.ROIPooling(data, rois, pooled, scale)


OPERATOR = Operator(
    name="ROIPool",
    forward=of_reference("roi_pool"),
    backward=of_reference("roi_pool_backward"),
    arguments=({},),
    rois_grad=False,
    sampled=False,
    linear=False,
    channels=same_channels,
    mxnet=_mxnet,
    refused=(TOO_MANY_BINS,),
    recorded=(
        Recorded("torchvision", "roi_pool", {}, {}),
        Recorded("paddle", "roi_pool", {}, {}),
    ),
)
