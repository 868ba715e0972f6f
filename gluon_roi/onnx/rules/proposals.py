# SPDX-License-Identifier: Apache-2.0
"""Proposals of a region proposal network."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import END, Graph, Node
from ..registry import rule
from ..roi.arithmetic import product, quotient
from ..roi.boxes import count_to
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
def _proposal(g: Graph, node: Node) -> list[str]:
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
    images = g.size(node.inputs[0], 0)
    height, width, scale = (g.column(node.inputs[2], n, 1) for n in range(3))  # (N, 1)
    boxes = _clipped(g, _decoded(g, node, what), (width, height))
    scores = g("Where", _on_image(g, node, what, height, width), _scores(g, node, what), _F32(-1))
    boxes, is_small = _grown(g, boxes, g("Mul", scale, _F32(what.smallest)))
    scores = g("Where", is_small, _F32(-1), scores)
    number = g.size(scores, 1)  # of boxes per image
    before = g("Min", number, np.array([what.before])) if what.before > 0 else number
    columns = (g.unsqueeze(column, 2) for column in (*boxes, scores))
    rows = g("Concat", *columns, axis=2)
    rows = gathered_rows(g, rows, first_of_equal(g, scores, number, before), 5)
    rows = g.reshape(gathered_rows(g, rows, _chosen(g, rows, before, what), 5), -1, 5)
    image = g.cast(g.reshape(count_to(g, images), -1, 1), _F32)
    image = g("Expand", image, g.joined(images, what.after))
    rois = g("Concat", g.reshape(image, -1, 1), g.columns(rows, 0, 4, 1), axis=1)
    return [rois, g.columns(rows, 4, 5, 1)]


# ---- Boxes and scores of all cells and anchors, (N, n), cell by cell -----------------------------


def _scores(g: Graph, node: Node, what: _Settings) -> str:
    """Scores of the foreground."""
    scores = g.columns(node.inputs[0], len(what.anchors), END, 1)
    return g("Flatten", g("Transpose", scores, perm=[0, 2, 3, 1]))


def _over_cells(g: Graph, node: Node, what: _Settings, axis: int, step: int, values: Any) -> str:
    """step times the index of the cell along y (0) or x (1), plus a value per anchor: (1, n)."""
    number = count_to(g, g.size(node.inputs[0], 2 + axis))
    along = g("Mul", g.cast(g.reshape(number, -1, *[1] * (2 - axis)), _F32), _F32(step))
    shape = g.joined(g.shape(node.inputs[0], 2, 4), len(what.anchors))
    return g.reshape(g("Expand", g("Add", along, values.astype(_F32)), shape), 1, -1)


def _decoded(g: Graph, node: Node, what: _Settings) -> list[str]:
    """Corners x1, y1, x2, y2; a box from pixel x1 to x2 is x2 - x1 + 1 wide."""
    corners = [
        _over_cells(g, node, what, 1 - n % 2, what.stride, what.anchors[:, n]) for n in range(4)
    ]
    size = g.shape(node.inputs[1], 2, 4)
    apart = g.reshape(node.inputs[1], g.size(node.inputs[1], 0), -1, 4, size)
    deltas = [
        g("Flatten", g("Transpose", g.squeeze(part, 2), perm=[0, 2, 3, 1]))
        for part in g("Split", apart, np.ones(4, np.int64), axis=2, outputs=4)
    ]
    if what.are_corners:
        return [g("Add", corner, delta) for corner, delta in zip(corners, deltas)]
    low, high = [], []
    for first, last, shift, growth in zip(corners[:2], corners[2:], deltas[:2], deltas[2:]):
        reach = g("Sub", last, first)
        size = g("Add", reach, _F32(1))
        centre = g("Add", first, g("Mul", reach, _F32(0.5)))
        centre = g.cast(g("Add", product(g, shift, size), centre), _F64)
        # From here on MXNet computes in float64, and rounds only the size to float32.
        size = g("Mul", g("Exp", g.cast(growth, _F64)), g.cast(size, _F64))
        size = g.cast(g.cast(size, _F32), _F64)
        reach = g("Mul", g("Sub", size, _F64(1)), _F64(0.5))
        low.append(g.cast(g("Sub", centre, reach), _F32))
        high.append(g.cast(g("Add", centre, reach), _F32))
    return [*low, *high]


def _clipped(g: Graph, boxes: list[str], limits: tuple[str, str]) -> list[str]:
    """Boxes clipped to images of a width and a height, (N, 1) each."""
    last = [g("Sub", limit, _F32(1)) for limit in limits]
    return [g("Max", g("Min", edge, last[n % 2]), _F32(0)) for n, edge in enumerate(boxes)]


def _on_image(g: Graph, node: Node, what: _Settings, height: str, width: str) -> str:
    """Whether a cell lies on the image, which may be smaller than the map."""
    inside = []
    for axis, size in enumerate((height, width)):
        cell = _over_cells(g, node, what, axis, 1, np.zeros(len(what.anchors)))
        cells = g("Floor", quotient(g, size, _F32(what.stride)))
        inside.append(g("Less", cell, cells))
    return g("And", *inside)


def _grown(g: Graph, boxes: list[str], smallest: str) -> tuple[list[str], str]:
    """Enlarge boxes with a side below `smallest` by it; also return which boxes they are."""
    sides = [g("Add", g("Sub", boxes[2 + n], boxes[n]), _F32(1)) for n in range(2)]
    is_small = g("Or", *(g("Less", side, smallest) for side in sides))
    half = g("Mul", smallest, _F32(0.5))
    grown = [g("Sub" if n < 2 else "Add", edge, half) for n, edge in enumerate(boxes)]
    return [g("Where", is_small, new, old) for new, old in zip(grown, boxes)], is_small


# ---- The choice ----------------------------------------------------------------------------------


def _chosen(g: Graph, rows: str, before: str, what: _Settings) -> str:
    """Places (N, after) of the kept rows of (N, before, 5); if too few, they repeat in turn.

    NonMaxSuppression does not have boxes of whole pixels, whose sides are x2 - x1 + 1. With x2 + 1
    and y2 + 1 as the second corner the sides are the same, also those of intersections. It would
    swap the corners of inverted boxes, which overlap nothing here, so they get a side of 0.
    """
    x1, y1, x2, y2 = (g.column(rows, n) for n in range(4))
    x2, y2 = (g("Max", g("Add", end, _F32(1)), low) for end, low in ((x2, x1), (y2, y1)))
    boxes = g("Concat", y1, x1, y2, x2, axis=2)
    # Ranks replace scores: they have no ties, and all are positive.
    rank = g("Sub", g.cast(before, _F32), g.cast(count_to(g, before), _F32))
    rank = g("Expand", rank, g.shape(rows, 0, 2))
    after = np.array([what.after])
    scores = g.unsqueeze(rank, 1)
    kept = kept_boxes(g, boxes, scores, rank, after, what.threshold)
    most = g("Min", before, after)
    _, order = g("TopK", g("Mul", kept, rank), most, axis=1, outputs=2)
    count = g("Min", g.cast(g("ReduceSum", kept, np.array([1])), np.int64), most)  # (N, 1)
    turn = g("Mod", np.arange(what.after)[None], count)
    return g("GatherElements", order, turn, axis=1)
