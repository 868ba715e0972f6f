# SPDX-License-Identifier: Apache-2.0
"""Pooling every RoI on every level, which PyramidROIAlign replaces."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from .gluon_roi import GluonRoi


class EveryLevel(GluonRoi):
    """In place of PyramidROIAlign: every RoI on every level, masked, as in GluonCV's FPN.

    With our own ROIAlign.
    """

    name = "every level"
    operators = ("PyramidROIAlign",)

    def _call(self, item: Any) -> Callable:
        nd = importlib.import_module("mxnet").nd
        function = importlib.import_module("gluon_roi").nd.ROIAlign
        first = item.stride.bit_length() - 1

        def call(rois: Any, *maps: Any, out: Any = None) -> Any:
            sides = nd.slice_axis(rois, 1, 3, 5) - nd.slice_axis(rois, 1, 1, 3)
            area = nd.prod(sides, axis=1)
            level = nd.clip(
                nd.floor(4 + nd.log2(nd.sqrt(area) / 224 + 1e-6)), first, first + len(maps) - 1
            )
            pooled = []
            for i, (one, stride) in enumerate(zip(maps, item.strides)):
                all_rows = function(one, rois, item.pooled, 1 / stride, item.sampling_ratio)
                pooled.append(nd.where(level == first + i, all_rows, nd.zeros_like(all_rows)))
            return nd.add_n(*pooled, out=out)

        return call
