# SPDX-License-Identifier: Apache-2.0
"""The rows of suppression, of overlaps and of proposals. Needs only NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .rows import Inputs, Row


def aerial_boxes(random: np.random.RandomState, boxes: int, objects: int) -> np.ndarray:
    """Rotated boxes around the objects of an aerial image of 1024 x 1024, sides of 3 to 60."""
    place = random.randint(0, objects, boxes)
    center = random.uniform(0, 1024, (objects, 2))[place] + 2 * random.randn(boxes, 2)
    long = np.exp(random.uniform(np.log(12), np.log(60), objects))
    sides = np.stack([long, long / random.uniform(1, 4, objects)], axis=-1)[place]
    sides = sides * np.exp(0.1 * random.randn(boxes, 2))
    angle = random.uniform(-90, 90, objects)[place] + 5 * random.randn(boxes)
    return np.column_stack([center, sides, angle])


@dataclass(frozen=True)
class Suppression(Row):
    """Batches of scored boxes: upright ones in an image of 600 x 1000, anywhere or in clusters, or
    rotated ones in clusters, which are the objects of an aerial image."""

    name: str
    boxes: int
    clusters: int = 0  # 0: nearly all boxes are kept
    batches: int = 1
    topk: int = -1
    rotated: bool = False
    operator: str = "BoxNMS"
    dtype: str = "float32"
    reuse: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        if self.rotated:
            # The threshold of mmrotate's detectors on aerial images.
            return {"overlap_thresh": 0.1, "in_format": "rotated", "out_format": "rotated"}
        return {"overlap_thresh": 0.7, "topk": self.topk}

    def inputs(self) -> Inputs:
        random = np.random.RandomState(1)
        lead = (self.batches, self.boxes)
        if self.rotated:
            boxes = aerial_boxes(random, self.boxes, self.clusters)
            rows = np.column_stack([np.zeros(self.boxes), random.rand(self.boxes), boxes])
            rows = rows[None].astype(self.dtype)
            return Inputs([], [rows], random.randn(*rows.shape).astype(self.dtype))
        low, sides = random.uniform(0, (1000, 600), (*lead, 2)), random.uniform(2, 40, (*lead, 2))
        if self.clusters:
            place = random.randint(0, self.clusters, lead)
            low = low[0, place] + 8 * random.randn(*lead, 2)
            sides = 5 * sides[0, place] * np.exp(0.1 * random.randn(*lead, 2))
        first = np.zeros((*lead, 1)), random.rand(*lead, 1)
        rows = np.concatenate([*first, low, low + sides], axis=-1).astype(self.dtype)
        return Inputs([], [rows], random.randn(*rows.shape).astype(self.dtype))

    def output(self, data: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """The output of BoxNMS: the kept rows of each batch, best first, then rows of -1."""
        out = np.full_like(data, -1)
        for batch, (rows, result) in enumerate(zip(data, out)):
            indices = kept[kept // self.boxes == batch] % self.boxes
            result[: len(indices)] = rows[indices]
        return out

    def shrunk(self) -> Suppression:
        few = min(self.clusters, 4), min(self.batches, 2)
        return replace(self, boxes=40, clusters=few[0], batches=few[1])


@dataclass(frozen=True)
class Overlaps(Row):
    """Every pair of two lists of boxes, upright or rotated."""

    name: str
    boxes: int  # of each list
    rotated: bool = False
    operator: str = "BoxIoU"
    dtype: str = "float32"
    reuse: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        return {"format": "rotated" if self.rotated else "corner"}

    def inputs(self) -> Inputs:
        random = np.random.RandomState(1)
        boxes = aerial_boxes(random, 2 * self.boxes, self.boxes)
        if not self.rotated:
            boxes = np.hstack([boxes[:, :2] - boxes[:, 2:4] / 2, boxes[:, :2] + boxes[:, 2:4] / 2])
        lists = [part.astype(self.dtype) for part in np.split(boxes, 2)]
        d_out = random.randn(self.boxes, self.boxes).astype(self.dtype)
        return Inputs([], lists, d_out)

    def shrunk(self) -> Overlaps:
        return replace(self, boxes=20)


@dataclass(frozen=True)
class Proposals(Row):
    """Predictions for one image of 600 x 1000: 9 anchors in each cell of stride 16."""

    name: str
    before: int
    after: int
    size: tuple[int, int] = (38, 63)  # of the map
    operator: str = "Proposal"
    dtype: str = "float32"
    reuse: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        top = {"rpn_pre_nms_top_n": self.before, "rpn_post_nms_top_n": self.after}
        return {**top, "scales": (8, 16, 32), "ratios": (0.5, 1, 2)}

    def inputs(self) -> Inputs:
        random = np.random.RandomState(1)
        scores, moves = random.rand(1, 18, *self.size), 0.2 * random.randn(1, 36, *self.size)
        info = np.array([[self.size[0] * 16 - 8, self.size[1] * 16 - 8, 1.5]])
        arrays = [array.astype(self.dtype) for array in (scores, moves, info)]
        return Inputs([], arrays, random.randn(self.after, 5).astype(self.dtype))

    def shrunk(self) -> Proposals:
        return replace(self, before=60, after=20, size=(5, 6))


SUPPRESSIONS = (
    Suppression("BoxNMS n=6000, nearly all kept", 6000),
    Suppression("BoxNMS n=6000 in 200 clusters", 6000, 200),
    Suppression("BoxNMS n=12000, nearly all kept", 12000),
    Suppression("BoxNMS n=12000 in 400 clusters", 12000, 400),
    Suppression("BoxNMS 80 x 1000", 1000, batches=80),
    Suppression("BoxNMS 80 x 1000 topk 400", 1000, batches=80, topk=400),
    Suppression("BoxNMS rotated n=5000 of an aerial image", 5000, 1000, rotated=True),
    Overlaps("BoxIoU 1000 x 1000", 1000),
    Overlaps("BoxIoU rotated 1000 x 1000", 1000, rotated=True),
    Proposals("Proposal 6000 -> 300", 6000, 300),
    Proposals("Proposal 12000 -> 2000", 12000, 2000),
)
