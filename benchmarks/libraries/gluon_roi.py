# SPDX-License-Identifier: Apache-2.0
"""This package."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

from ..work import Item, Row
from .ndarray import Ndarray


class GluonRoi(Ndarray):
    name, modules = "gluon_roi", ("gluon_roi", "mxnet")
    operators: tuple[str, ...] | None = None
    modes = ("avg", "max")

    def version(self) -> str:
        info = importlib.import_module("gluon_roi").build_info()
        return f"{info['version']} ({info['simd']})"

    def fixed_dtype(self, item: Row) -> str:
        return "float32"

    def _call(self, item: Any) -> Callable:
        function = getattr(importlib.import_module("gluon_roi").nd, item.operator)
        if not isinstance(item, Item):
            return functools.partial(function, **item.arguments)
        size, scale, arguments = (item.pooled,) * 2, item.scale, item.arguments
        if item.of.several_maps:
            return lambda rois, *maps, out=None: function(
                maps, rois, size, scale, out=out, **arguments
            )
        if item.of.offsets:
            return lambda rois, data, trans, out=None: function(
                data, rois, trans, size, scale, out=out, **arguments
            )
        return lambda rois, data, out=None: function(data, rois, size, scale, out=out, **arguments)
