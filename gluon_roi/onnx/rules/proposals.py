# SPDX-License-Identifier: Apache-2.0
"""Proposals of a region proposal network."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import END, Graph, Node, Tensor, concat, joined
from ..registry import rule
from ..roi.arithmetic import product, quotient
from .boxes import first_of_equal, gathered_rows, kept_boxes

_F32, _F64 = np.float32, np.float64


class _Settings(NamedTuple):
    """Attributes of Proposal."""

    before: int  # number of boxes considered; all if it is not above 0
    after: int  # rows per image
    threshold: float  # of the overlap
    smallest: int  # side of a box in pixels, times the scale of im_info
    stride: int  # pixels per cell
    anchors: np.ndarray  # (A, 4), of cell (0, 0)
    are_corners: bool  # bbox_pred moves corners (iou_loss), not centres and sizes


def _settings(node: Node) -> _Settings:
    stride, ratios = node.get("feature_stride", 16), node.sizes("ratios", (0.5, 1.0, 2.0))
    anchors = _anchors(stride, node.sizes("scales", (4.0, 8.0, 16.0, 32.0)), ratios)
    if node.dtype != _F32:
        raise node.refusal(f"{node.dtype} data have no translation")
    threshold = float(node.get("threshold", 0.7))
    if not 0 <= threshold <= 1:
        raise node.refusal(f"threshold={threshold} has no translation")
    node.accept("output_score")  # there are always both outputs
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
    """Corners (A, 4), ratio by ratio, rounded in float32 as in MXNet."""
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
def _proposal(g: Graph, node: Node) -> list[Tensor]:
    """The best boxes of each image that do not overlap, (N * after, 5), and their scores.

    ::

        cls_prob --> scores (N, n) ------- -1 beyond im_info and for small boxes --+
                                                        ^                          |
        bbox_pred -> _decoded with anchors -> clipped -> grown if small: boxes     |
        im_info ----------------------------> sizes                |               |
                                                                   |    first_of_equal: order
                        Gather, the best `before` <----------------+---------------+
                                 |
                                 +-> _chosen: those that no better one overlaps, in turn
                                 |                              |
                                 +--> Gather, `after` rows <----+
    """
    what = _settings(node)
    images = node.inputs[0].size(0)
    height, width, scale = (node.inputs[2].column(n, 1) for n in range(3))  # (N, 1)
    boxes = _clipped(_decoded(node, what), (width, height))
    scores = _on_image(node, what, height, width).where(_scores(node, what), -1)
    boxes, is_small = _grown(boxes, scale * what.smallest)
    scores = is_small.where(-1, scores)
    number = scores.size(1)  # of boxes per image
    before = number.min([what.before]) if what.before > 0 else number
    rows = concat(*(column.unsqueeze(2) for column in (*boxes, scores)), axis=2)
    order_by = (scores >= -np.inf).where(scores, -np.inf)  # NaN is the last of all
    rows = gathered_rows(rows, first_of_equal(order_by, number, before), 5)
    rows = gathered_rows(rows, _chosen(rows, before, what), 5).reshape(-1, 5)
    image = images.numbers().reshape(-1, 1).cast(_F32).expand(images, what.after)
    rois = concat(image.reshape(-1, 1), rows.columns(0, 4, 1), axis=1)
    return [rois, rows.columns(4, 5, 1)]


# ---- Boxes and scores of all cells and anchors, (N, n), cell by cell -----------------------------


def _scores(node: Node, what: _Settings) -> Tensor:
    """Scores of the foreground."""
    scores = node.inputs[0].columns(len(what.anchors), END, 1)
    return scores.transpose(0, 2, 3, 1).flatten()


def _over_cells(node: Node, what: _Settings, axis: int, step: int, values: Any) -> Tensor:
    """step times the index of the cell along y (0) or x (1), plus a value per anchor: (1, n)."""
    number = node.inputs[0].size(2 + axis).numbers()
    along = number.reshape(-1, *[1] * (2 - axis)).cast(_F32) * step
    shape = joined(node.inputs[0].shape(2, 4), len(what.anchors))
    return (along + values).expand(shape).reshape(1, -1)


def _decoded(node: Node, what: _Settings) -> list[Tensor]:
    """Corners x1, y1, x2, y2; a box from pixel x1 to x2 is x2 - x1 + 1 wide."""
    corners = [
        _over_cells(node, what, 1 - n % 2, what.stride, what.anchors[:, n]) for n in range(4)
    ]
    size = node.inputs[1].shape(2, 4)
    apart = node.inputs[1].reshape(node.inputs[1].size(0), -1, 4, size)
    deltas = [part.squeeze(2).transpose(0, 2, 3, 1).flatten() for part in apart.split(4, 2)]
    if what.are_corners:
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


def _clipped(boxes: list[Tensor], limits: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Boxes clipped to images of a width and a height, (N, 1) each; NaN stays NaN.

    OpenVINO's Min and Max return the second of two numbers if one is NaN.
    """
    last, g = [limit - 1 for limit in limits], boxes[0].graph
    return [g("Max", _F32(0), last[n % 2].min(edge)) for n, edge in enumerate(boxes)]


def _on_image(node: Node, what: _Settings, height: Tensor, width: Tensor) -> Tensor:
    """Whether a cell lies on the image, which may be smaller than the map."""
    inside = []
    for axis, size in enumerate((height, width)):
        cell = _over_cells(node, what, axis, 1, np.zeros(len(what.anchors)))
        inside.append(cell < quotient(size, what.stride).floor())
    return inside[0] & inside[1]


def _grown(boxes: list[Tensor], smallest: Tensor) -> tuple[list[Tensor], Tensor]:
    """Enlarge boxes with a side that is below `smallest`, or NaN, by it; also return which."""
    sides = [boxes[2 + n] - boxes[n] + 1 for n in range(2)]
    is_small = ~((sides[0] >= smallest) & (sides[1] >= smallest))
    half = smallest * 0.5
    grown = [edge - half if n < 2 else edge + half for n, edge in enumerate(boxes)]
    return [is_small.where(new, old) for new, old in zip(grown, boxes)], is_small


# ---- The choice ----------------------------------------------------------------------------------


def _chosen(rows: Tensor, before: Tensor, what: _Settings) -> Tensor:
    """Places (N, after) of the kept rows of (N, before, 5); if too few, they repeat in turn.

    NonMaxSuppression does not have boxes of whole pixels, whose sides are x2 - x1 + 1. With x2 + 1
    and y2 + 1 as the second corner the sides are the same, also those of intersections. It would
    swap the corners of inverted boxes, which overlap nothing here, so they get a side of 0.
    """
    x1, y1, x2, y2 = (rows.column(n) for n in range(4))
    x2, y2 = ((end + 1).max(low) for end, low in ((x2, x1), (y2, y1)))
    boxes = concat(y1, x1, y2, x2, axis=2)
    # Ranks replace scores: they have no ties, and all are positive.
    rank = (before.cast(_F32) - before.numbers().cast(_F32)).expand(rows.shape(0, 2))
    after = np.array([what.after])
    kept = kept_boxes(boxes, rank.unsqueeze(1), rank, after, what.threshold)
    most, g = before.min(after), rows.graph
    _, order = g("TopK", kept * rank, most, axis=1, outputs=2)
    count = g("ReduceSum", kept, np.array([1])).cast(np.int64).min(most)  # (N, 1)
    return g("GatherElements", order, np.arange(what.after)[None] % count, axis=1)
