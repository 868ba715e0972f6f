# SPDX-License-Identifier: Apache-2.0
"""MXNet's own operators."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

from ..suppression import Overlaps, Suppression
from ..work import Item, Row
from .base import Unsupported, Work
from .ndarray import Ndarray


def _roi_pooling(F: Any, item: Item) -> Callable:
    return lambda r, x, out=None: F.ROIPooling(x, r, (item.pooled,) * 2, item.scale, out=out)


def _roi_align(F: Any, item: Item) -> Callable:
    arguments = {"aligned": item.aligned, "position_sensitive": item.of.score_maps}
    return lambda r, x, out=None: F.contrib.ROIAlign(
        x, r, (item.pooled,) * 2, item.scale, item.sampling_ratio, out=out, **arguments
    )


def _ps_roi_pooling(F: Any, item: Item) -> Callable:
    return lambda r, x, out=None: F.contrib.PSROIPooling(
        x, r, item.scale, item.channels, item.pooled, item.pooled, out=out
    )


def _rotated_roi_align(F: Any, item: Item) -> Callable:
    return lambda r, x, out=None: F.contrib.RROIAlign(
        x, r, (item.pooled,) * 2, item.scale, item.sampling_ratio, out=out
    )


def _with_our_arguments(function: str) -> Callable:
    """The call of an operator with the names and values of gluon_roi's arguments."""
    return lambda F, item: functools.partial(getattr(F.contrib, function), **item.arguments)


def _deformable_ps_roi_pooling(F: Any, item: Item) -> Callable:
    return lambda r, x, trans, out=None: F.contrib.DeformablePSROIPooling(
        x,
        r,
        trans,
        spatial_scale=item.scale,
        output_dim=item.channels,
        group_size=item.pooled,
        pooled_size=item.pooled,
        part_size=item.pooled,
        sample_per_part=4,
        out=out,
        **item.arguments,
    )


class Mxnet(Ndarray):
    calls = {
        "BoxIoU": _with_our_arguments("box_iou"),
        "BoxNMS": _with_our_arguments("box_nms"),
        "Proposal": _with_our_arguments("MultiProposal"),
        "ROIPool": _roi_pooling,
        "ROIAlign": _roi_align,
        "PSROIPool": _ps_roi_pooling,
        "PSROIAlign": _roi_align,
        "DeformableConvolution": _with_our_arguments("DeformableConvolution"),
        "DeformablePSROIPool": _deformable_ps_roi_pooling,
        "RotatedROIAlign": _rotated_roi_align,
    }
    name, modules = "mxnet", ("mxnet",)
    operators = tuple(calls)
    without_gradient = (*Ndarray.without_gradient, "RotatedROIAlign")

    def _call(self, item: Any, namespace: Any = None) -> Callable:
        """The call in mx.nd, or in the namespace of a block."""
        return self.calls[item.operator](namespace or importlib.import_module("mxnet").nd, item)

    def prepare(self, item: Row) -> Work:
        if isinstance(item, (Suppression, Overlaps)) and item.rotated:
            raise Unsupported("no rotated boxes")
        return super().prepare(item)
