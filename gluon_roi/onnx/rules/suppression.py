# SPDX-License-Identifier: Apache-2.0
"""Decoding of boxes, their overlaps, and suppression.

proposals.py and multibox.py use first_of_equal and other functions of this file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import END, Node, OnnxGraph, Tensor, concat, concat_sizes
from ..registry import rule


@rule("_contrib_box_decode")
def _box_decode(g: OnnxGraph, node: Node) -> Tensor:
    """Decode offsets from anchors to corners.

    ::

        anchors -> Split -> centres, sizes --+
                                             |  centre = shift * size + anchor's centre
        data * deviations -> Split ----------+  reach = exp(growth) * size / 2
                                                corners = centre - reach, centre + reach
    """
    data, anchors = node.inputs
    node.expect_equal_sizes(1, 1, other_axis=1)
    deviations = [node.get(f"std{n}", 1.0) for n in range(4)]
    clip = float(node.get("clip", -1.0))
    ax, ay, aw, ah = anchors.split(4, 2)
    node.expect("format", "center", "corner")
    if node.get("format", "center") == "corner":
        aw, ah = aw - ax, ah - ay
        ax, ay = ax + aw * 0.5, ay + ah * 0.5
    dx, dy, dw, dh = (data * deviations).split(4, 2)
    x1, x2 = decode_axis(ax, aw, dx, dw, clip)
    y1, y2 = decode_axis(ay, ah, dy, dh, clip)
    return concat(x1, y1, x2, y2, axis=2)


def decode_axis(
    centre: Tensor, size: Tensor, shift: Tensor, growth: Tensor, clip: float = 0
) -> tuple[Tensor, Tensor]:
    """Apply predicted deltas to anchors along one axis, and return both edges.

    `clip` is the maximum of `growth`, or 0 for none.
    """
    centre = shift * size + centre
    growth = growth.min(clip) if clip > 0 else growth
    reach = growth.exp() * size * 0.5
    return centre - reach, centre + reach


@rule("_gluon_roi_BoxIoU")
def _box_iou(g: OnnxGraph, node: Node) -> Tensor:
    """Overlaps of upright boxes, lhs along the first axis and rhs along the second.

    ::

        lhs (M, 1, 4) -> corners --+
                                   +-> Max, Min -> intersection -> / union -> 0 to 1
        rhs (1, N, 4) -> corners --+
    """
    if node.get("format", "corner") == "rotated":
        raise node.refusal(
            "format=rotated has no translation: ONNX has no operator for polygons, and clipping "
            "them needs a loop"
        )
    node.expect("format", "corner", "center")
    node.expect("mode", "iou", "iof")
    node.expect_floats()
    half = node.dtype == np.float16
    lhs, rhs = (boxes.cast(np.float32) if half else boxes for boxes in node.inputs)
    leading = [boxes.shape(0, len(shape) - 1) for boxes, shape in zip(node.inputs, node.shapes)]
    aligned = node.get("aligned", False)
    sides = [
        _upright(boxes.reshape(*sizes, 4), node.get("format", "corner") == "center")
        for boxes, sizes in ((lhs, (-1, 1)), (rhs, (-1, 1) if aligned else (1, -1)))
    ]
    (ax1, ay1, ax2, ay2, area), (bx1, by1, bx2, by2, other_area) = sides
    width, height = ax2.min(bx2) - ax1.max(bx1), ay2.min(by2) - ay1.max(by1)
    intersection = width.max(0) * height.max(0)
    divisor = area if node.get("mode", "iou") == "iof" else area + other_area - intersection
    quotient = intersection / divisor
    quotient = (quotient < 0).where(1, quotient)
    # Comparisons with NaN are false.
    overlap = ((intersection > 0) & (quotient >= 0)).where(quotient.min(1), 0)
    overlap = overlap.cast(np.float16) if half else overlap
    return overlap.reshape(*(leading[:1] if aligned else leading))


def _upright(boxes: Tensor, center: bool) -> list[Tensor]:
    """Corners and area, each of the shape without the last axis."""
    a, b, c, d = (boxes.column(n).squeeze(2) for n in range(4))
    if not center:
        return [a, b, c, d, (c - a) * (d - b)]
    return [a - c / 2, b - d / 2, a + c / 2, b + d / 2, c * d]


class _Suppression(NamedTuple):
    """Attributes of BoxNMS."""

    threshold: float  # overlap
    max_invalid_score: float  # scores up to it are invalid
    topk: int  # number of boxes to consider; all if below 0
    corner: int  # first column of the box
    score: int  # column of the score
    id_index: int  # column of the class; below 0: none
    background: float  # class whose boxes are invalid
    per_class: bool  # boxes suppress only boxes of their class
    in_format: str  # box format of the data
    out_format: str  # box format of the output


def _suppression(node: Node) -> _Suppression:
    if node.get("in_format", "corner") == "rotated":
        raise node.refusal(
            "in_format=rotated has no translation: NonMaxSuppression has upright boxes only"
        )
    if node.get("method", "hard") != "hard":
        raise node.refusal(
            f"method={node.get('method')} has no translation: each row that is kept changes the "
            "scores of the others, which needs a loop"
        )
    node.ignore("sigma")  # for the other methods
    node.ignore("min_score")
    node.ignore("return_indices")  # both outputs always exist
    node.expect("in_format", "corner", "center")
    node.expect("out_format", "corner", "center")
    if node.dtype not in (np.float16, np.float32):
        raise node.refusal(f"{node.dtype} boxes have no translation")
    threshold = float(node.get("overlap_thresh", 0.5))
    if not 0 <= threshold <= 1:
        raise node.refusal(f"overlap_thresh={threshold} has no translation")
    id_index, together = node.get("id_index", -1), node.get("force_suppress", False)
    return _Suppression(
        threshold,
        float(node.get("valid_thresh", 0)),
        node.get("topk", -1),
        node.get("coord_start", 2),
        node.get("score_index", 1),
        id_index,
        float(node.get("background_id", -1)),
        id_index >= 0 and not together,
        node.get("in_format", "corner"),
        node.get("out_format", "corner"),
    )


@rule("_gluon_roi_BoxNMS")
def _box_nms(g: OnnxGraph, node: Node) -> list[Tensor]:
    """Kept rows by descending score, then rows of -1; and the indices of the kept rows.

    ::

        data -> scores -> valid? -> first_of_equal -> order --+
          |                                                   |
          +-> Gather in that order, the best `topk` <---------+
                |           |
                |        corners --------------------+
                |        rank, a row for each class -+-> NonMaxSuppression -> ScatterND: kept?
                |                                                                |
                +----------------------> Gather: kept first, the rest -1 <-------+
    """
    attrs = _suppression(node)
    data, width = node.inputs[0], node.inputs[0].size(node.rank - 1)
    data = data.cast(np.float32) if node.dtype == np.float16 else data
    number = data.shape(node.rank - 2, node.rank - 1)  # of boxes per image
    images = data.shape(0, node.rank - 2)
    batch = np.array([1]) if node.rank == 2 else g("ReduceProd", images)
    indices_shape = concat_sizes(*([] if node.rank == 2 else [images]), number, 1)
    if attrs.topk == 0:
        every = (number * batch).numbers().cast(np.int32)
        return [node.inputs[0], g("Reshape", every, indices_shape)]
    rows = data.reshape(batch, number, width)
    scores = _column(rows, attrs.score)
    valid = _is_valid(rows, scores, attrs)
    order_by = valid.where(scores, np.finfo(np.float32).min)
    count = number if attrs.topk < 0 else number.min([attrs.topk])
    order = first_of_equal(order_by, number, count)
    # Indices count over all images.
    first = (number * batch).numbers().reshape(batch, number).columns(0, 1, 1)
    indices = order + first
    rows = gathered_rows(rows, order, width)
    valid = g("GatherElements", valid.cast(np.float32), order, axis=1)
    place = count.numbers().cast(np.float32)
    # Ranks replace scores: they have no ties, and are positive only for valid boxes.
    rank = valid * (count.cast(np.float32) - place)
    kept = _kept_mask(rows, valid, rank, count, attrs)
    _, order = g("TopK", kept * rank, count, axis=1, outputs=2)
    is_kept = g("GatherElements", kept, order, axis=1).unsqueeze(2) > 0
    rows = is_kept.where(gathered_rows(rows, order, width), -1)
    indices = is_kept.where(g("GatherElements", indices, order, axis=1).unsqueeze(2), -1)
    if attrs.topk > 0:
        rest = concat_sizes(np.zeros(4, np.int64), number - count, 0)
        rows = g("Pad", rows, rest, np.float32(-1))
        indices = g("Pad", indices, rest, np.array(-1))
    if attrs.in_format != attrs.out_format:
        rows = _convert_format(rows, attrs)
    rows = g("Reshape", rows, data.shape())
    rows = rows.cast(np.float16) if node.dtype == np.float16 else rows
    return [rows, g("Reshape", indices.cast(np.int32), indices_shape)]


def _column(rows: Tensor, index: int) -> Tensor:
    """A column (B, n) of rows (B, n, width)."""
    return rows.column(index).squeeze(2)


def _is_valid(rows: Tensor, scores: Tensor, attrs: _Suppression) -> Tensor:
    valid = scores > attrs.max_invalid_score
    if attrs.id_index < 0:
        return valid
    return valid & ~_column(rows, attrs.id_index).equal(attrs.background)


def _kept_mask(
    rows: Tensor, valid: Tensor, rank: Tensor, count: Tensor, attrs: _Suppression
) -> Tensor:
    """1 for sorted rows that are kept, else 0: (B, n)."""
    x1, y1, x2, y2 = (
        _corners(rows, attrs)
        if attrs.in_format == "center"
        else (rows.column(attrs.corner + n) for n in range(4))
    )
    # NonMaxSuppression would swap the corners of inverted boxes, which must overlap nothing.
    boxes = concat(y1, x1, y1.max(y2), x1.max(x2), axis=2)
    scores = rank.unsqueeze(1)
    if attrs.per_class:
        class_ids = _column(rows, attrs.id_index)
        class_ids = valid.cast(np.bool_).where(class_ids, 0)
        scores = scores_of_classes(class_ids, scores)
    return kept_boxes(boxes, scores, rank, count, attrs.threshold)


def _corners(rows: Tensor, attrs: _Suppression) -> list[Tensor]:
    """Corners (B, n, 1) of boxes with the format 'center'."""
    x, y, *sizes = (rows.column(attrs.corner + n) for n in range(4))
    width, height = (size * 0.5 for size in sizes)
    return [x - width, y - height, x + width, y + height]


def _convert_format(rows: Tensor, attrs: _Suppression) -> Tensor:
    """Rows with their boxes in the other format.

    Like MXNet, it skips rows whose first coordinate is negative, such as rows of -1.
    """
    before, after = rows.columns(0, attrs.corner), rows.columns(attrs.corner + 4, END)
    old = [rows.column(attrs.corner + n) for n in range(4)]
    if attrs.out_format == "corner":
        new = _corners(rows, attrs)
    else:
        sums = [(old[n] + old[2 + n]) * 0.5 for n in range(2)]
        new = [*sums, *(old[2 + n] - old[n] for n in range(2))]
    boxes = (old[0] < 0).where(concat(*old, axis=2), concat(*new, axis=2))
    return concat(before, boxes, after, axis=2)


def kept_boxes(boxes: Tensor, scores: Tensor, rank: Tensor, limit: Any, threshold: float) -> Tensor:
    """1 for boxes (B, n, 4) that suppression keeps, else 0: (B, n).

    A box is kept unless a kept box with a higher score overlaps it by more than the threshold.
    Scores are (B, classes, n): ranks, from 1 on, and 0 for boxes to leave out; rank (B, n) is the
    largest score of each box. At most `limit` boxes per image and class are kept.

    OpenVINO suppresses a box whose overlap equals the threshold; onnxruntime and MXNet suppress
    only above it, so the threshold is the next larger number. No overlap exceeds 1.
    """
    if threshold == 1:
        return (rank > 0).cast(np.float32)
    # Not a subnormal number, which a runtime may take for 0.
    above = max(np.nextafter(np.float32(threshold), np.float32(1)), np.float32(1e-20))
    g, thresholds = boxes.graph, [np.array([value], np.float32) for value in (above, 0.5)]
    chosen = g("NonMaxSuppression", boxes, scores, limit, *thresholds)
    places = chosen.gather(np.array([0, 2]), axis=1)  # image and row, without the class
    ones = g("Expand", np.float32(1), chosen.size(0))
    return g("ScatterND", rank * 0, places, ones)


def scores_of_classes(class_ids: Tensor, scores: Tensor) -> Tensor:
    """Scores (B, 1, n) as (B, classes, n), with 0 where a row belongs to another class.

    Classes (B, n) are truncated to int32; NaN and values outside int32 become -2^31.
    """
    lowest_int = -(2.0**31)
    is_int = (class_ids >= lowest_int) & (class_ids < -lowest_int)
    class_ids = is_int.where(class_ids, lowest_int).cast(np.int64)
    classes = class_ids.graph("Unique", class_ids, outputs=1)
    same = class_ids.unsqueeze(1).equal(classes.unsqueeze(0, 2))
    return scores * same.cast(np.float32)


def first_of_equal(values: Tensor, number: Tensor, count: Tensor) -> Tensor:
    """Indices (B, count) of the largest of (B, number) values; equal values stay in order.

    ::

        values -> TopK, all -> value -> group: how many greater values there are --+
                          |                                                        |
                          +--> order ----------------------> key = group * number + order
                                 |                                                 | +-->
                                 GatherElements <------------- TopK, the least `count` keys

    OpenVINO's TopK returns equal values in any order, and any of them if not all are requested. So
    all values are sorted first, and then keys made of a group for each value and the index.
    OpenVINO also divides and compares integers in float32, which is exact only up to 2**24, so no
    index is computed from a key.
    """
    g = values.graph
    value, order = g("TopK", values, number, axis=1, outputs=2)
    lower = (~value.columns(0, -1, 1).equal(value.columns(1, END, 1))).cast(np.int64)
    group = g("CumSum", g("Pad", lower, np.array([0, 1, 0, 0]), np.array(0)), np.array(1))
    # Indices in groups from `count` on are not needed; merging these groups keeps keys small.
    key = group.min(count) * number + order
    _, rank = g("TopK", key, count, axis=1, largest=0, outputs=2)
    # OpenVINO computes int64 in int32. If keys may not fit, the order of the first TopK is used.
    groups = count.cast(np.float32) + 1
    fits = groups * number.cast(np.float32) < 2.147e9
    rank = fits.where(rank, count.numbers())
    return g("GatherElements", order, rank, axis=1)


def gathered_rows(rows: Tensor, order: Tensor, width: Any) -> Tensor:
    """rows (B, n, width) in the order (B, k)."""
    index = order.unsqueeze(2).expand(1, 1, width)
    return rows.graph("GatherElements", rows, index, axis=1)
