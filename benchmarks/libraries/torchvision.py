# SPDX-License-Identifier: Apache-2.0
"""torchvision on torch's CPU tensors."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Callable

from ..suppression import Overlaps, Suppression
from ..work import Item, Row
from .base import COMMON, Library, Unsupported, Work
from .tensor import work_of


class Torchvision(Library):
    """Its ps_roi_pool has another convention: nearly the same work, other bins.

    Its nms returns numbers of rows, so the call includes taking these rows.
    """

    name, modules = "torchvision", ("torchvision", "torch")
    operators = (*COMMON, "DeformableConvolution", "BoxNMS", "BoxIoU")

    def _call(self, ops: Any, item: Any) -> Callable:
        """Function of the fixed inputs and the variable ones."""
        arguments = item.arguments
        if isinstance(item, Suppression):
            return lambda data: data.flatten(0, -2)[self._kept(ops, item, data)]
        if isinstance(item, Overlaps):
            return functools.partial(ops.box_iou, fmt="cxcywhr") if item.rotated else ops.box_iou
        if not isinstance(item, Item):
            return functools.partial(ops.deform_conv2d, padding=arguments["pad"])
        if item.operator == "PSROIAlign":
            del arguments["aligned"]  # its ps_roi_align is, always
        names = {
            "ROIPool": ops.roi_pool,
            "ROIAlign": ops.roi_align,
            "PSROIPool": ops.ps_roi_pool,
            "PSROIAlign": ops.ps_roi_align,
        }
        function, size = names[item.operator], (item.pooled,) * 2
        return lambda rois, data: function(data, rois, size, 1 / item.stride, **arguments)

    def _kept(self, ops: Any, item: Suppression, data: Any) -> Any:
        """The numbers of the rows that are kept, by descending score."""
        torch = importlib.import_module("torch")
        rows, threshold = data.flatten(0, -2), item.arguments["overlap_thresh"]
        if item.batches == 1:
            return ops.nms(rows[:, 2:], rows[:, 1], threshold)
        batch = torch.arange(len(rows)) // item.boxes
        return ops.batched_nms(rows[:, 2:], rows[:, 1], batch, threshold)

    def prepare(self, item: Row) -> Work:
        torch = importlib.import_module("torch")
        ops = importlib.import_module("torchvision.ops")
        if item.dtype == "float16":
            raise Unsupported("no float16 on the CPU")
        if isinstance(item, Suppression) and item.topk >= 0:
            raise Unsupported("nms has no topk")
        if isinstance(item, Suppression) and item.rotated:
            raise Unsupported("no rotated boxes")
        torch.set_num_threads(self.threads)
        inputs = item.inputs()
        has_gradient = not isinstance(item, (Suppression, Overlaps))
        work = work_of(self._call(ops, item), inputs, item.dtype, has_gradient)
        if isinstance(item, Suppression):
            data = torch.from_numpy(inputs.variable[0])
            work["result"] = lambda: item.output(
                inputs.variable[0], self._kept(ops, item, data).numpy()
            )
        return work
