# SPDX-License-Identifier: Apache-2.0
"""detectron2 and mmcv on torch's CPU tensors: operators for rotated boxes, and mmcv's ROIAlign.

Their nms_rotated returns indices, so the call includes taking these rows. The angles are converted
before the call.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..suppression import Overlaps, Suppression
from ..work import Item, Row
from .base import Library, Unsupported, Work
from .tensor import work_of


class Rotated(Library):
    """Libraries that suppress rotated boxes, and intersect every pair of two lists."""

    operators: tuple[str, ...] = ("BoxNMS", "BoxIoU")

    def boxes(self, torch: Any, boxes: Any) -> Any:
        """gluon_roi's boxes in the form of the library."""
        return boxes

    def kept(self, boxes: Any, scores: Any, threshold: float) -> Any:
        """Indices, by descending score."""
        raise NotImplementedError

    def overlaps(self, one: Any, other: Any) -> Any:
        raise NotImplementedError

    def prepare(self, item: Row) -> Work:
        torch = importlib.import_module("torch")
        if not isinstance(item, (Suppression, Overlaps)) or not item.rotated:
            raise Unsupported("measured with rotated boxes")
        if item.dtype != "float32":
            raise Unsupported("the overlaps are in float32")
        torch.set_num_threads(self.threads)
        given = item.inputs().variable
        if isinstance(item, Overlaps):
            one, other = (self.boxes(torch, torch.from_numpy(boxes)) for boxes in given)
            return {
                "forward": lambda: self.overlaps(one, other),
                "result": lambda: self.overlaps(one, other).numpy(),
            }
        (rows,) = given[0]
        data = torch.from_numpy(rows)
        boxes = self.boxes(torch, data[:, 2:].contiguous())
        scores = data[:, 1].contiguous()
        threshold = item.arguments["overlap_thresh"]
        return {
            "forward": lambda: data[self.kept(boxes, scores, threshold)],
            "result": lambda: item.output(given[0], self.kept(boxes, scores, threshold).numpy()),
        }


class Detectron2(Rotated):
    name, modules = "detectron2", ("detectron2", "torch")

    def kept(self, boxes: Any, scores: Any, threshold: float) -> Any:
        layers = importlib.import_module("detectron2.layers")
        return layers.nms_rotated(boxes, scores, threshold)

    def overlaps(self, one: Any, other: Any) -> Any:
        rotated_boxes = importlib.import_module("detectron2.layers.rotated_boxes")
        return rotated_boxes.pairwise_iou_rotated(one, other)


class Mmcv(Rotated):
    """Its DeformRoIPool has no kernel for the CPU."""

    name, modules = "mmcv", ("mmcv", "torch")
    operators = (*Rotated.operators, "ROIAlign")
    modes = ("avg", "max")

    def prepare(self, item: Row) -> Work:
        if not isinstance(item, Item):
            return super().prepare(item)
        if item.dtype == "float16":
            raise Unsupported("it sums in float16")
        importlib.import_module("torch").set_num_threads(self.threads)
        roi_align = importlib.import_module("mmcv.ops").roi_align  # takes no keywords
        more = (item.pooled,) * 2, item.scale, item.sampling_ratio, item.mode, item.aligned
        return work_of(lambda rois, data: roi_align(data, rois, *more), item.inputs(), item.dtype)

    def boxes(self, torch: Any, boxes: Any) -> Any:
        """Its angles are clockwise radians."""
        boxes = boxes.clone()
        boxes[:, 4] = -torch.deg2rad(boxes[:, 4])
        return boxes

    def kept(self, boxes: Any, scores: Any, threshold: float) -> Any:
        return importlib.import_module("mmcv.ops").nms_rotated(boxes, scores, threshold)[1]

    def overlaps(self, one: Any, other: Any) -> Any:
        return importlib.import_module("mmcv.ops").box_iou_rotated(one, other)
