# SPDX-License-Identifier: Apache-2.0
"""The row of PSROIPool."""

from __future__ import annotations

from typing import Any

from support.cases import Arguments, Operator, Recorded, group_channels, of_reference

ORDER = 3


def _mxnet(
    data: Any, rois: Any, pooled: Any, scale: float, group_size: Any = None, convention: str = ""
) -> Any:
    import mxnet as mx

    group = group_size or pooled[0]
    dim = data.shape[1] // group**2
    return mx.nd.contrib.PSROIPooling(data, rois, scale, dim, pooled[0], group)


def _mxnet_has(pooled: tuple[int, int], arguments: Arguments) -> bool:
    return pooled[0] == pooled[1] and arguments.get("convention", "rfcn") == "rfcn"


OPERATOR = Operator(
    name="PSROIPool",
    forward=of_reference("ps_roi_pool"),
    backward=of_reference("ps_roi_pool_backward"),
    arguments=(
        {},
        {"convention": "torchvision"},
        {"group_size": 3},
        {"group_size": 2, "convention": "torchvision"},
    ),
    rois_grad=False,
    sampled=False,
    linear=True,
    channels=group_channels,
    mxnet=_mxnet,
    mxnet_has=_mxnet_has,
    refused=(
        # The products of these wrap to 27 and to 0 in 64 bits.
        (
            {"output_dim": 3 * (1 + 2**62) % 2**63, "pooled_size": 4, "group_size": (2, 2)},
            "argument output_dim: expected output_dim * 2 * 2 to be at most 1152921504606846975",
        ),
        (
            {"pooled_size": 1, "group_size": 2**24, "output_dim": 2**40},
            "argument output_dim: expected output_dim * 16777216 * 16777216 to be at most",
        ),
        (
            {"pooled_size": 65536, "group_size": 2},
            "argument pooled_size: expected at most 21474836",
        ),
        (
            {"convention": "caffe"},
            "argument convention: expected 'rfcn' or 'torchvision', got 'caffe'",
        ),
        ({"output_dim": 0}, "argument output_dim: expected a positive int or None, got '0'"),
        ({"output_dim": 4}, "data has 27 channels, expected output_dim * 3 * 3 = 36"),
        ({"pooled_size": 2}, "data has 27 channels, expected a multiple of 2 * 2 = 4"),
        ({"group_size": 5}, "data has 27 channels, expected a multiple of 5 * 5 = 25"),
        ({"group_size": -1}, "argument group_size: expected a positive int or (height, width), "),
    ),
    recorded=(
        # The bins of torchvision's gradient are not those of its forward pass.
        Recorded("torchvision", "ps_roi_pool", {}, {"convention": "torchvision"}, gradient=False),
        Recorded("paddle", "psroi_pool", {}, {"convention": "rfcn"}),
    ),
    ramps=(
        ([0, 0, 3, 3], 1, {}, [2.5, 4.5, 10.5, 12.5]),
        ([0, 0, 4, 4], 1, {}, [5, 6.5, 11, 12.5]),
        ([1, 1, 4, 4], 0.5, {}, [2.5, 3.5, 6.5, 7.5]),
        ([0, 0, 3, 3], 1, {"convention": "torchvision"}, [2.5, 3.5, 6.5, 7.5]),
        ([0, 0, 4, 4], 1, {"convention": "torchvision"}, [2.5, 4, 8.5, 10]),
        ([1, 1, 4, 4], 0.5, {"convention": "torchvision"}, [5, 5, 5, 5]),
    ),
)
