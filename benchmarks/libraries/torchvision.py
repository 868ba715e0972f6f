"""torchvision on torch's CPU tensors."""

from __future__ import annotations

import importlib
from typing import Any

from ..work import Item
from .base import BETWEEN, Library, Unsupported, Work


class Torchvision(Library):
    """Its ps_roi_pool has another convention: nearly the same work, other bins."""

    name, modules = "torchvision", ("torchvision", "torch")

    def prepare(self, item: Item) -> Work:
        torch = importlib.import_module("torch")
        ops = importlib.import_module("torchvision.ops")
        if item.dtype == "float16":
            raise Unsupported("no float16 on the CPU")
        torch.set_num_threads(self.threads)
        x, r, d_out = (torch.from_numpy(a.astype(item.dtype)) for a in item.arrays())
        arguments = item.arguments
        if item.operator == "PSROIAlign":
            del arguments["aligned"]  # its ps_roi_align is, always
        names = {
            "ROIPool": ops.roi_pool,
            "ROIAlign": ops.roi_align,
            "PSROIPool": ops.ps_roi_pool,
            "PSROIAlign": ops.ps_roi_align,
        }
        function, scale = names[item.operator], 1 / item.stride
        recorded = x.clone().requires_grad_()

        def forward(data: Any) -> Any:
            with torch.no_grad():
                return function(data, r, (item.pooled,) * 2, scale, **arguments)

        def both(data: Any) -> Any:
            data.grad = None
            out = function(data, r, (item.pooled,) * 2, scale, **arguments)
            out.backward(d_out)
            return out

        between = torch.zeros(BETWEEN)
        made: list[Any] = []

        def others() -> None:
            between.add_(1)
            made[:] = [(x * 1).requires_grad_()]

        return {
            "forward": lambda: forward(x),
            "forward+backward": lambda: both(recorded),
            "forward in a network": (others, lambda: forward(made[0])),
            "forward+backward in a network": (others, lambda: both(made[0])),
            "result": lambda: forward(x).numpy(),
        }
