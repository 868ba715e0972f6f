"""The row of ROIPool."""

from __future__ import annotations

from typing import Any

from cases import TOO_MANY_BINS, Operator, Recorded, of_reference, same_channels

from benchmarks.work import Item

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

ITEMS = (
    Item("ROIPool C=512 7x7 K=128", "ROIPool", 512, 128),
    Item("ROIPool C=512 7x7 K=2000", "ROIPool", 512, 2000, reuse=True),
    Item("small ROIPool C=16 7x7 K=8", "ROIPool", 16, 8),
)
