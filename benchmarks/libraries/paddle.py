# SPDX-License-Identifier: Apache-2.0
"""Paddle."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from .base import BETWEEN, Library, Unsupported, Work


class Paddle(Library):
    name, modules = "paddle", ("paddle",)
    operators = ("ROIPool", "ROIAlign", "PSROIPool")

    def prepare(self, item: Any) -> Work:
        paddle = importlib.import_module("paddle")
        ops = importlib.import_module("paddle.vision.ops")
        if item.dtype == "float16":
            raise Unsupported("no float16 on the CPU")
        if item.operator == "PSROIPool" and item.channels < 2:
            raise Unsupported("psroi_pool needs 2 output channels")
        paddle.set_device("cpu")
        x, r, d = (a.astype(item.dtype) for a in item.arrays())
        plain, recorded = paddle.to_tensor(x), paddle.to_tensor(x, stop_gradient=False)
        boxes, d_out = paddle.to_tensor(r[:, 1:]), paddle.to_tensor(d)
        counts = paddle.to_tensor(np.array([len(r)], np.int32))
        names = {"ROIPool": ops.roi_pool, "ROIAlign": ops.roi_align, "PSROIPool": ops.psroi_pool}
        function, scale = names[item.operator], 1 / item.stride

        def forward(data: Any) -> Any:
            with paddle.no_grad():
                return function(data, boxes, counts, item.pooled, scale, **item.arguments)

        def both(data: Any) -> Any:
            data.clear_gradient()
            out = function(data, boxes, counts, item.pooled, scale, **item.arguments)
            paddle.autograd.backward([out], [d_out])
            return out

        between = paddle.zeros([BETWEEN])
        made: list[Any] = []

        def others() -> None:
            between.add_(paddle.ones([1]))
            made[:] = [plain * 1]
            made[0].stop_gradient = False

        return {
            "forward": lambda: forward(plain),
            "forward+backward": lambda: both(recorded),
            "forward in a network": (others, lambda: forward(made[0])),
            "forward+backward in a network": (others, lambda: both(made[0])),
            "result": lambda: forward(plain).numpy(),
        }
