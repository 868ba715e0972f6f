# SPDX-License-Identifier: Apache-2.0
"""Calls of BoxNMS and Proposal that tests of MXNet, C and CUDA share. Needs nothing but NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Suppressed(NamedTuple):
    """An operator, its parameters, and the shape of data, or (N, H, W) of maps."""

    op: str  # in C
    shape: tuple[int, ...]
    parameters: dict[str, Any]

    @property
    def name(self) -> str:
        """In Python."""
        return {"box_nms": "BoxNMS", "proposal": "Proposal"}[self.op]

    def arrays(self, dtype: str, seed: int = 0) -> list[np.ndarray]:
        """Many scores are equal, and so are some boxes."""
        rng = np.random.RandomState(seed)
        arrays = self._rows(rng) if self.op == "box_nms" else self._maps(rng)
        return [a.astype(dtype) for a in arrays]

    def _rows(self, rng: np.random.RandomState) -> list[np.ndarray]:
        """Clusters of boxes, on a grid of eighths, some of them inverted."""
        lead = self.shape[:-1]
        rows = rng.rand(*self.shape)
        start = self.parameters.get("coord_start", 2)
        score = self.parameters.get("score_index", 1)
        identity = self.parameters.get("id_index", -1)
        if identity >= 0:
            rows[..., identity] = rng.randint(-1, 4, lead)
        centers = rng.uniform(20, 80, (lead[-1] // 6 + 1, 2))
        low = centers[rng.randint(0, len(centers), lead)] + 4 * rng.randn(*lead, 2)
        side = rng.uniform(8, 24, (*lead, 2)) * np.where(rng.rand(*lead, 2) < 0.03, -1, 1)
        form = self.parameters.get("in_format", "corner")
        parts = [low, low + side if form == "corner" else side]
        if form == "rotated":
            parts.append(rng.choice([0, 90, 7, -33.5, 400], (*lead, 1)))
        boxes = np.round(8 * np.concatenate(parts, -1)) / 8
        boxes[..., 1::5, :] = boxes[..., : len(range(1, lead[-1], 5)), :]
        rows[..., start : start + boxes.shape[-1]] = boxes
        rows[..., score] = np.round(50 * rng.rand(*lead)) / 50
        return [rows]

    def _maps(self, rng: np.random.RandomState) -> list[np.ndarray]:
        """Predictions for images that are smaller than the maps."""
        images, height, width = self.shape
        anchors = len(self.parameters["scales"]) * len(self.parameters["ratios"])
        stride = self.parameters.get("feature_stride", 16)
        scores = np.round(64 * rng.rand(images, 2 * anchors, height, width)) / 64
        moves = 0.3 * rng.randn(images, 4 * anchors, height, width)
        if self.parameters.get("iou_loss"):
            moves = np.round(30 * moves)
        sizes = np.array([height, width]) * stride - rng.randint(0, 2 * stride, (images, 2))
        return [scores, moves, np.hstack([sizes, np.full((images, 1), 1.5)])]

    def d_outs(self, outputs: list[np.ndarray]) -> list[np.ndarray]:
        """Gradients of the outputs, and the outputs themselves that are integers."""
        rng = np.random.RandomState(1)
        return [a if a.dtype == np.int32 else rng.randn(*a.shape).astype(a.dtype) for a in outputs]


_FIRST = {"coord_start": 0, "score_index": 4}
_ROTATED = {"in_format": "rotated", "out_format": "rotated"}
_SOME: dict[str, Any] = {"scales": (2, 4), "ratios": (0.5, 1, 2)}

#: By name: of every parameter, around blocks of lanes and of boxes.
CALLS = {
    "plain": Suppressed("box_nms", (2, 40, 6), {}),
    "many": Suppressed("box_nms", (1100, 5), {**_FIRST, "overlap_thresh": 0.25}),
    "classes": Suppressed("box_nms", (3, 130, 7), {"id_index": 0, "background_id": 2}),
    "forced": Suppressed("box_nms", (130, 6), {"id_index": 0, "force_suppress": True}),
    "best": Suppressed("box_nms", (2, 2, 90, 6), {"topk": 33, "valid_thresh": 0.3}),
    "none": Suppressed("box_nms", (2, 9, 6), {"topk": 0, "out_format": "center"}),
    "nothing": Suppressed("box_nms", (2, 9, 6), {"valid_thresh": 2.0}),
    "centers": Suppressed("box_nms", (2, 70, 6), {"in_format": "center"}),
    "to centers": Suppressed("box_nms", (2, 70, 6), {"out_format": "center"}),
    "stays center": Suppressed(
        "box_nms", (70, 6), {"in_format": "center", "out_format": "center", "overlap_thresh": 0.0}
    ),
    "rotated": Suppressed("box_nms", (2, 90, 7), {**_ROTATED, "overlap_thresh": 0.2}),
    "rotated classes": Suppressed(
        "box_nms", (130, 8), {**_ROTATED, "id_index": 0, "topk": 100, "overlap_thresh": 0.1}
    ),
    "rotated, all meet": Suppressed("box_nms", (20, 7), {**_ROTATED, "overlap_thresh": -1.0}),
    "linear": Suppressed("box_nms", (2, 70, 6), {"method": "linear", "min_score": 0.3}),
    "gaussian": Suppressed(
        "box_nms",
        (3, 60, 7),
        {"method": "gaussian", "sigma": 0.3, "min_score": 0.2, "id_index": 0, "topk": 50},
    ),
    "linear centers": Suppressed(
        "box_nms",
        (40, 6),
        {
            "method": "linear",
            "in_format": "center",
            "out_format": "corner",
            "overlap_thresh": 0.1,
            "min_score": 0.1,
        },
    ),
    "rotated gaussian": Suppressed(
        "box_nms", (2, 50, 7), {**_ROTATED, "method": "gaussian", "min_score": 0.25}
    ),
    "proposal": Suppressed(
        "proposal", (2, 9, 11), {**_SOME, "rpn_post_nms_top_n": 60, "rpn_pre_nms_top_n": 400}
    ),
    "all boxes": Suppressed(
        "proposal",
        (1, 12, 10),
        {**_SOME, "rpn_post_nms_top_n": 900, "rpn_pre_nms_top_n": -1, "rpn_min_size": 40},
    ),
    "corners": Suppressed(
        "proposal",
        (3, 5, 4),
        {
            **_SOME,
            "rpn_post_nms_top_n": 7,
            "iou_loss": True,
            "threshold": 0.3,
            "feature_stride": 8,
            "rpn_min_size": 0,
        },
    ),
}
SOFT = [name for name, call in CALLS.items() if call.parameters.get("method", "hard") != "hard"]
NMS = [name for name, call in CALLS.items() if call.op == "box_nms"]
PROPOSALS = [name for name in CALLS if name not in NMS]
