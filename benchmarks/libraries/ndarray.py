# SPDX-License-Identifier: Apache-2.0
"""Common code of libraries on MXNet's NDArray."""

from __future__ import annotations

import importlib
from typing import Any, Callable

from ..work import Row
from .base import BETWEEN, Library, Work


class Ndarray(Library):
    """Libraries on MXNet's NDArray."""

    without_gradient: tuple[str, ...] = ("BoxIoU",)

    def _call(self, item: Any) -> Callable:
        """Function of the fixed inputs, the variable ones, and `out`."""
        raise NotImplementedError

    def prepare(self, item: Row) -> Work:
        mx = importlib.import_module("mxnet")
        call = self._call(item)
        inputs = item.inputs()
        fixed = [mx.nd.array(array, dtype=self.fixed_dtype(item)) for array in inputs.fixed]
        given = [mx.nd.array(array, dtype=item.dtype) for array in inputs.variable]
        d_out = mx.nd.array(inputs.d_out, dtype=item.dtype)
        recorded = [array.copy() for array in given]
        for array in recorded:
            array.attach_grad()
        buffer = mx.nd.zeros_like(d_out)

        def forward(inputs: list[Any]) -> Any:
            out = call(*fixed, *inputs)
            out.wait_to_read()
            return out

        def reused() -> None:
            call(*fixed, *given, out=buffer)
            buffer.wait_to_read()

        def both(inputs: list[Any], leaves: list[Any]) -> Any:
            with mx.autograd.record():
                out = call(*fixed, *inputs)
            out.backward(d_out)
            for array in leaves:
                array.grad.wait_to_read()
            return out

        between = mx.nd.zeros(BETWEEN)
        cells = [array.reshape(-1)[:1].copy() for array in given]
        for array in cells:
            array.attach_grad()
        origins = [mx.nd.zeros((array.ndim, 1)) for array in given]
        made: list[Any] = []

        def others() -> None:
            mx.nd.broadcast_add(between, mx.nd.ones(1), out=between)
            with mx.autograd.record():
                made[:] = [
                    mx.nd.scatter_nd(cell, origin, values.shape)
                    for cell, origin, values in zip(cells, origins, given)
                ]
            for values, array in zip(given, made):
                values.copyto(array)
            mx.nd.waitall()

        work: Work = {
            "forward": lambda: forward(given),
            "forward, out=": reused,
            "forward+backward": lambda: both(recorded, recorded),
            "forward in a network": (others, lambda: forward(made)),
            "forward+backward in a network": (others, lambda: both(made, cells)),
            "result": lambda: forward(given).asnumpy(),
        }
        if item.operator in self.without_gradient:
            return {way: function for way, function in work.items() if "backward" not in way}
        return work

    def fixed_dtype(self, item: Row) -> str:
        return item.dtype
