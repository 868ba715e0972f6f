# SPDX-License-Identifier: Apache-2.0
"""Proposals of a region proposal network."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import END, Node, OnnxGraph, Tensor, concat, concat_sizes
from ..registry import rule
from ..roi.arithmetic import product, quotient
from .suppression import first_of_equal, gathered_rows, kept_boxes

_F32, _F64 = np.float32, np.float64


class _Settings(NamedTuple):
    """Attributes of Proposal."""

    pre_nms: int  # number of boxes that go into suppression; all if it is not above 0
    post_nms: int  # rows of the output per image
    threshold: float  # overlap
    smallest: int  # minimum side of a box in pixels, multiplied by the scale of im_info
    stride: int  # pixels per cell
    anchors: np.ndarray  # (A, 4), at cell (0, 0)
    corner_offsets: bool  # bbox_pred has offsets of corners (iou_loss), not of centres and sizes


def _settings(node: Node) -> _Settings:
    stride, ratios = node.get("feature_stride", 16), node.sizes("ratios", (0.5, 1.0, 2.0))
    anchors = _anchors(stride, node.sizes("scales", (4.0, 8.0, 16.0, 32.0)), ratios)
    if node.dtype != _F32:
        raise node.refusal(f"{node.dtype} data have no translation")
    threshold = float(node.get("threshold", 0.7))
    if not 0 <= threshold <= 1:
        raise node.refusal(f"threshold={threshold} has no translation")
    node.ignore("output_score")  # there are always both outputs
    return _Settings(
        node.get("rpn_pre_nms_top_n", 6000),
        node.get("rpn_post_nms_top_n", 300),
        threshold,
        node.get("rpn_min_size", 16),
        stride,
        anchors,
        bool(node.get("iou_loss", False)),
    )


def _anchors(stride: int, scales: tuple, ratios: tuple) -> np.ndarray:
    """Corners (A, 4), sorted by ratio and then scale, rounded in float32 as in MXNet."""
    rows, size, middle = [], _F32(stride), _F32((stride - 1) / 2)
    for ratio in np.array(ratios, _F32):
        root = np.sqrt(np.floor(size * size / ratio))
        for scale in np.array(scales, _F32):
            width = np.floor(root + _F32(0.5)) * scale
            height = np.floor(width / scale * ratio + _F32(0.5)) * scale
            reach = _F32(0.5) * (np.array([width, height], _F32) - _F32(1))
            rows.append([*(middle - reach), *(middle + reach)])
    return np.array(rows, _F32)


@rule("_gluon_roi_Proposal")
def _proposal(g: OnnxGraph, node: Node) -> list[Tensor]:
    """Boxes (N * post_nms, 5) that non-maximum suppression keeps for each image, and their scores.

    ::

        cls_prob --> scores (N, n) ------- -1 beyond im_info and for small boxes --+
                                                        ^                          |
        bbox_pred -> _decode with anchors -> _clip -> _grow_small: boxes           |
        im_info ----------------------------> sizes                |               |
                                                                   |    first_of_equal: order
                        Gather, the best `pre_nms` <---------------+---------------+
                                 |
                                 +-> _select: non-maximum suppression
                                 |                              |
                                 +--> Gather, `post_nms` rows <-+
    """
    attrs = _settings(node)
    images = node.inputs[0].size(0)
    height, width, scale = (node.inputs[2].column(n, 1) for n in range(3))  # (N, 1)
    boxes = _clip(_decode(node, attrs), (width, height))
    scores = _on_image(node, attrs, height, width).where(_scores(node, attrs), -1)
    boxes, is_small = _grow_small(boxes, scale * attrs.smallest)
    scores = is_small.where(-1, scores)
    number = scores.size(1)  # of boxes per image
    pre_nms = number.min([attrs.pre_nms]) if attrs.pre_nms > 0 else number
    rows = concat(*(column.unsqueeze(2) for column in (*boxes, scores)), axis=2)
    order_by = (scores >= -np.inf).where(scores, -np.inf)  # NaN comes last
    rows = gathered_rows(rows, first_of_equal(order_by, number, pre_nms), 5)
    rows = gathered_rows(rows, _select(rows, pre_nms, attrs), 5).reshape(-1, 5)
    image = images.numbers().reshape(-1, 1).cast(_F32).expand(images, attrs.post_nms)
    rois = concat(image.reshape(-1, 1), rows.columns(0, 4, 1), axis=1)
    return [rois, rows.columns(4, 5, 1)]


# ---- Boxes and scores of all cells and anchors, (N, n), cell by cell -----------------------------


def _scores(node: Node, attrs: _Settings) -> Tensor:
    """Scores of the foreground."""
    scores = node.inputs[0].columns(len(attrs.anchors), END, 1)
    return scores.transpose(0, 2, 3, 1).flatten()


def _over_cells(node: Node, attrs: _Settings, axis: int, step: int, values: Any) -> Tensor:
    """step times the index of the cell along y (0) or x (1), plus a value per anchor: (1, n)."""
    number = node.inputs[0].size(2 + axis).numbers()
    along = number.reshape(-1, *[1] * (2 - axis)).cast(_F32) * step
    shape = concat_sizes(node.inputs[0].shape(2, 4), len(attrs.anchors))
    return (along + values).expand(shape).reshape(1, -1)


def _decode(node: Node, attrs: _Settings) -> list[Tensor]:
    """Corners x1, y1, x2, y2 of the decoded boxes; the width of a box is x2 - x1 + 1."""
    corners = [
        _over_cells(node, attrs, 1 - n % 2, attrs.stride, attrs.anchors[:, n]) for n in range(4)
    ]
    size = node.inputs[1].shape(2, 4)
    apart = node.inputs[1].reshape(node.inputs[1].size(0), -1, 4, size)
    deltas = [part.squeeze(2).transpose(0, 2, 3, 1).flatten() for part in apart.split(4, 2)]
    if attrs.corner_offsets:
        return [corner + delta for corner, delta in zip(corners, deltas)]
    low, high = [], []
    for first, last, shift, growth in zip(corners[:2], corners[2:], deltas[:2], deltas[2:]):
        reach = last - first
        size = reach + 1
        centre = first + reach * 0.5
        centre = (product(shift, size) + centre).cast(_F64)
        # From here on MXNet computes in float64, and rounds only the size to float32.
        size = (growth.cast(_F64).exp() * size.cast(_F64)).cast(_F32).cast(_F64)
        # OpenVINO's Exp and Clip of NaN are numbers.
        is_number = (shift >= -np.inf) & (growth >= -np.inf)
        size = is_number.where(size, np.nan)
        reach = (size - 1) * 0.5
        low.append((centre - reach).cast(_F32))
        high.append((centre + reach).cast(_F32))
    return [*low, *high]


def _clip(boxes: list[Tensor], limits: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Clip boxes to images with these widths and heights, (N, 1) each. NaN stays NaN.

    OpenVINO's Min and Max return the second of two numbers if one is NaN.
    """
    last, g = [limit - 1 for limit in limits], boxes[0].graph
    return [g("Max", _F32(0), last[n % 2].min(edge)) for n, edge in enumerate(boxes)]


def _on_image(node: Node, attrs: _Settings, height: Tensor, width: Tensor) -> Tensor:
    """Whether a cell lies on the image, which may be smaller than the map."""
    inside = []
    for axis, size in enumerate((height, width)):
        cell = _over_cells(node, attrs, axis, 1, np.zeros(len(attrs.anchors)))
        inside.append(cell < quotient(size, attrs.stride).floor())
    return inside[0] & inside[1]


def _grow_small(boxes: list[Tensor], smallest: Tensor) -> tuple[list[Tensor], Tensor]:
    """Extend boxes with a side below `smallest`, or NaN, by it; also return which boxes."""
    sides = [boxes[2 + n] - boxes[n] + 1 for n in range(2)]
    is_small = ~((sides[0] >= smallest) & (sides[1] >= smallest))
    half = smallest * 0.5
    extended = [edge - half if n < 2 else edge + half for n, edge in enumerate(boxes)]
    return [is_small.where(new, old) for new, old in zip(extended, boxes)], is_small


# ---- Selection -----------------------------------------------------------------------------------


def _select(rows: Tensor, pre_nms: Tensor, attrs: _Settings) -> Tensor:
    """Indices (N, post_nms) of the kept rows of (N, pre_nms, 5), repeated cyclically if too few.

    NonMaxSuppression does not support inclusive corners, with which a side is x2 - x1 + 1. With
    x2 + 1 and y2 + 1 as the second corner the sides are the same, also those of intersections. It
    would swap the corners of inverted boxes, which overlap nothing here, so they get a side of 0.
    """
    x1, y1, x2, y2 = (rows.column(n) for n in range(4))
    x2, y2 = ((end + 1).max(low) for end, low in ((x2, x1), (y2, y1)))
    boxes = concat(y1, x1, y2, x2, axis=2)
    # Ranks replace scores: they have no ties, and all are positive.
    rank = (pre_nms.cast(_F32) - pre_nms.numbers().cast(_F32)).expand(rows.shape(0, 2))
    post_nms = np.array([attrs.post_nms])
    kept = kept_boxes(boxes, rank.unsqueeze(1), rank, post_nms, attrs.threshold)
    max_kept, g = pre_nms.min(post_nms), rows.graph
    _, order = g("TopK", kept * rank, max_kept, axis=1, outputs=2)
    count = g("ReduceSum", kept, np.array([1])).cast(np.int64).min(max_kept)  # (N, 1)
    return g("GatherElements", order, np.arange(attrs.post_nms)[None] % count, axis=1)
