"""The row of ROIAlign."""

from __future__ import annotations

from typing import Any

from cases import (
    BAD_ROIS_GRAD,
    BAD_SAMPLES,
    TOO_MANY_BINS,
    Operator,
    Recorded,
    of_reference,
    same_channels,
)

from benchmarks.work import Item

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
)

_FPN: dict[str, Any] = {"image": (800, 1216), "stride": 4, "sides": (16, 112)}

ITEMS = (
    Item("ROIAlign C=512 sampling 2 K=128", "ROIAlign", 512, 128, sampling_ratio=2),
    Item("ROIAlign C=512 adaptive K=128", "ROIAlign", 512, 128),
    Item("ROIAlign C=512 sampling 2 K=2000", "ROIAlign", 512, 2000, sampling_ratio=2, reuse=True),
    Item("ROIAlign FPN C=256 7x7 K=1000", "ROIAlign", 256, 1000, sampling_ratio=2, **_FPN),
    Item(
        "ROIAlign FPN C=256 14x14 K=1000",
        "ROIAlign",
        256,
        1000,
        pooled=14,
        sampling_ratio=2,
        **_FPN,
    ),
    Item("small ROIAlign C=16 7x7 K=8", "ROIAlign", 16, 8, sampling_ratio=2),
)
