# SPDX-License-Identifier: Apache-2.0
"""The row of DeformablePSROIPool without trans; with it, tests/ops/test_deformable.py."""

from __future__ import annotations

from typing import Any

from support.cases import Operator, group_channels, of_reference

ORDER = 7


def _d_data(*args: Any, **arguments: Any) -> Any:
    d_data, _ = of_reference("deformable_ps_roi_pool_backward")(*args, **arguments)
    return d_data


def by_mxnet(
    data: Any,
    rois: Any,
    pooled: Any,
    scale: float,
    trans: Any = None,
    group_size: int | None = None,
    part_size: int | None = None,
    sample_per_part: int = 4,
    trans_std: float = 0.0,
) -> Any:
    import mxnet as mx

    group = group_size or pooled[0]
    return mx.nd.contrib.DeformablePSROIPooling(
        data,
        rois,
        *(() if trans is None else (trans,)),
        spatial_scale=scale,
        output_dim=data.shape[1] // group**2,
        group_size=group,
        pooled_size=pooled[0],
        part_size=part_size or pooled[0],
        sample_per_part=sample_per_part,
        trans_std=trans_std,
        no_trans=trans is None,
    )


OPERATOR = Operator(
    name="DeformablePSROIPool",
    forward=of_reference("deformable_ps_roi_pool"),
    backward=_d_data,
    arguments=(
        {},
        {"group_size": 3, "sample_per_part": 2},
    ),
    rois_grad=False,
    sampled=True,
    linear=True,
    channels=group_channels,
    mxnet=by_mxnet,
    mxnet_has=lambda pooled, arguments: pooled[0] == pooled[1],
    ramps=(([0, 0, 3, 3], 1, {"sample_per_part": 2}, [1.25, 3, 8.25, 10]),),
)
