# SPDX-License-Identifier: Apache-2.0
"""MXNet's operators on boxes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import END, Graph, Node
from ..registry import rule
from ..roi.boxes import count_to


@rule("_contrib_box_decode")
def _box_decode(g: Graph, node: Node) -> str:
    """Offsets from anchors to corners.

    ::

        anchors -> Split -> centres, sizes --+
                                             |  centre = shift * size + anchor's centre
        data * deviations -> Split ----------+  reach = exp(growth) * size / 2
                                                corners = centre - reach, centre + reach
    """
    data, anchors = node.inputs
    dtype = node.dtype

    def number(value: Any) -> np.ndarray:
        return np.array(value, dtype)

    def half(value: str) -> str:
        return g("Mul", value, number(0.5))

    deviations = [node.get(f"std{n}", 1.0) for n in range(4)]
    clip = float(node.get("clip", -1.0))
    four = np.ones(4, np.int64)
    ax, ay, aw, ah = g("Split", anchors, four, axis=2, outputs=4)
    node.expect("format", "center", "corner")
    if node.get("format", "center") == "corner":
        aw, ah = g("Sub", aw, ax), g("Sub", ah, ay)
        ax, ay = g("Add", ax, half(aw)), g("Add", ay, half(ah))
    offsets = g("Mul", data, number(deviations))
    dx, dy, dw, dh = g("Split", offsets, four, axis=2, outputs=4)
    low, high = [], []
    for centre, size, shift, growth in ((ax, aw, dx, dw), (ay, ah, dy, dh)):
        middle = g("Add", g("Mul", shift, size), centre)
        growth = g("Min", growth, number(clip)) if clip > 0 else growth
        reach = half(g("Mul", g("Exp", growth), size))
        low.append(g("Sub", middle, reach))
        high.append(g("Add", middle, reach))
    return g("Concat", *low, *high, axis=2)


class _Suppression(NamedTuple):
    """Attributes of BoxNMS."""

    threshold: float  # of the overlap
    lowest: float  # highest score that is invalid
    best: int  # number of boxes considered; all if below 0
    corner: int  # columns: of the first corner,
    score: int
    identity: int  # and of the class, if it is not below 0
    background: float
    apart: bool  # boxes suppress only boxes of their class
    given: str  # format of the boxes,
    wanted: str  # and of those of the output


def _suppression(node: Node) -> _Suppression:
    node.expect("in_format", "corner", "center")
    node.expect("out_format", "corner", "center")
    if node.dtype != np.float32:
        raise node.refusal(f"{node.dtype} boxes have no translation")
    threshold = float(node.get("overlap_thresh", 0.5))
    if not 0 <= threshold <= 1:
        raise node.refusal(f"overlap_thresh={threshold} has no translation")
    identity, together = node.get("id_index", -1), node.get("force_suppress", False)
    return _Suppression(
        threshold,
        float(node.get("valid_thresh", 0)),
        node.get("topk", -1),
        node.get("coord_start", 2),
        node.get("score_index", 1),
        identity,
        float(node.get("background_id", -1)),
        identity >= 0 and not together,
        node.get("in_format", "corner"),
        node.get("out_format", "corner"),
    )


@rule("_gluon_roi_BoxNMS")
def _box_nms(g: Graph, node: Node) -> str:
    """The best boxes first; suppressed and invalid ones are rows of -1 at the end.

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
    what = _suppression(node)
    if what.best == 0:
        return node.inputs[0]
    width = node.shapes[0][-1]
    data = node.inputs[0]
    number = g.shape(data, node.rank - 2, node.rank - 1)  # of boxes per image
    batch = np.array([1]) if node.rank == 2 else g("ReduceProd", g.shape(data, 0, node.rank - 2))
    rows = g.reshape(data, batch, number, width)
    scores = _column(g, rows, what.score)
    valid = _is_valid(g, rows, scores, what)
    order_by = g("Where", valid, scores, np.float32(np.finfo(np.float32).min))
    count = number if what.best < 0 else g("Min", number, np.array([what.best]))
    order = first_of_equal(g, order_by, number, count)
    rows = gathered_rows(g, rows, order, width)
    valid = g("GatherElements", g.cast(valid, np.float32), order, axis=1)
    place = g.cast(count_to(g, count), np.float32)
    # Ranks replace scores: they have no ties, and exactly those of valid boxes are positive.
    rank = g("Mul", valid, g("Sub", g.cast(count, np.float32), place))
    kept = _kept(g, rows, valid, rank, count, what)
    _, order = g("TopK", g("Mul", kept, rank), count, axis=1, outputs=2)
    kept = g.unsqueeze(g("GatherElements", kept, order, axis=1), 2)
    rows = g(
        "Where",
        g("Greater", kept, np.float32(0)),
        gathered_rows(g, rows, order, width),
        np.float32(-1),
    )
    if what.best > 0:
        rest = g.joined(np.zeros(4, np.int64), g("Sub", number, count), 0)
        rows = g("Pad", rows, rest, np.float32(-1))
    if what.given != what.wanted:
        rows = _converted(g, rows, what)
    return g("Reshape", rows, g.shape(data))


def _column(g: Graph, rows: str, index: int) -> str:
    """(B, n) of (B, n, width)."""
    return g.squeeze(g.column(rows, index), 2)


def _is_valid(g: Graph, rows: str, scores: str, what: _Suppression) -> str:
    valid = g("Greater", scores, np.float32(what.lowest))
    if what.identity < 0:
        return valid
    background = g("Equal", _column(g, rows, what.identity), np.float32(what.background))
    return g("And", valid, g("Not", background))


def _kept(g: Graph, rows: str, valid: str, rank: str, count: str, what: _Suppression) -> str:
    """1 for sorted rows that no better row suppresses, else 0: (B, n)."""
    x1, y1, x2, y2 = (
        _corners(g, rows, what)
        if what.given == "center"
        else (g.column(rows, what.corner + n) for n in range(4))
    )
    # NonMaxSuppression would swap the corners of inverted boxes; here they overlap nothing.
    boxes = g("Concat", y1, x1, g("Max", y1, y2), g("Max", x1, x2), axis=2)
    scores = g.unsqueeze(rank, 1)
    if what.apart:
        kind = _column(g, rows, what.identity)
        kind = g("Where", g.cast(valid, np.bool_), kind, np.float32(0))
        scores = scores_of_classes(g, kind, scores)
    return kept_boxes(g, boxes, scores, rank, count, what.threshold)


def _corners(g: Graph, rows: str, what: _Suppression) -> list[str]:
    """Corners (B, n, 1) of boxes given as centres and sizes."""
    columns = [g.column(rows, what.corner + n) for n in range(4)]
    half = [g("Mul", size, np.float32(0.5)) for size in columns[2:]]
    return [g(sign, columns[n], half[n]) for sign in ("Sub", "Add") for n in range(2)]


def _converted(g: Graph, rows: str, what: _Suppression) -> str:
    """Rows with their boxes in the other format.

    Like MXNet, it skips rows whose first number is below 0, such as rows of -1.
    """
    before, after = g.columns(rows, 0, what.corner), g.columns(rows, what.corner + 4, END)
    old = [g.column(rows, what.corner + n) for n in range(4)]
    if what.wanted == "corner":
        new = _corners(g, rows, what)
    else:
        sums = [g("Mul", g("Add", old[n], old[2 + n]), np.float32(0.5)) for n in range(2)]
        new = [*sums, *(g("Sub", old[2 + n], old[n]) for n in range(2))]
    boxes = g(
        "Where",
        g("Less", old[0], np.float32(0)),
        g("Concat", *old, axis=2),
        g("Concat", *new, axis=2),
    )
    return g("Concat", before, boxes, after, axis=2)


def kept_boxes(g: Graph, boxes: str, scores: str, rank: str, limit: Any, threshold: float) -> str:
    """1 for boxes (B, n, 4) that no better box overlaps by more than the threshold, else 0: (B, n).

    Scores are (B, classes, n), above 0 for boxes to be considered; rank (B, n) is the largest score
    of each box. At most `limit` boxes per image and class are kept.

    OpenVINO suppresses a box whose overlap equals the threshold; onnxruntime and MXNet suppress
    only above it. So the next larger number is the threshold. No overlap exceeds 1.
    """
    if threshold == 1:
        return g.cast(g("Greater", rank, np.float32(0)), np.float32)
    above = max(np.nextafter(np.float32(threshold), np.float32(1)), np.float32(1e-20))
    chosen = g(
        "NonMaxSuppression",
        boxes,
        scores,
        limit,
        np.array([above], np.float32),
        np.array([0.5], np.float32),
    )
    places = g("Gather", chosen, np.array([0, 2]), axis=1)  # image and row, without the class
    ones = g("Expand", np.float32(1), g.size(chosen, 0))
    return g("ScatterND", g("Mul", rank, np.float32(0)), places, ones)


def scores_of_classes(g: Graph, kind: str, scores: str) -> str:
    """Scores (B, 1, n) as (B, classes, n), with 0 where a row belongs to another class."""
    kind = g.cast(kind, np.int64)
    first, last = g("ReduceMin", kind, keepdims=0), g("ReduceMax", kind, keepdims=0)
    kinds = g("Range", first, g("Add", last, np.array(1)), np.array(1))
    same = g("Equal", g.unsqueeze(kind, 1), g.unsqueeze(kinds, 0, 2))
    return g("Mul", scores, g.cast(same, np.float32))


def first_of_equal(g: Graph, values: str, number: str, count: str) -> str:
    """The places (B, count) of the largest of (B, number) values, equal values in order of place.

    ::

        values -> TopK, all -> value -> group: how many greater values there are --+
                          |                                                        |
                          +--> order ----------------------> key = group * number + order
                                 |                                                 |
                                 +--> GatherElements <------------- TopK, the least `count` keys

    OpenVINO's TopK returns equal values in any order, and any of them if only some are wanted. So
    all values are sorted first, then keys made of group and place, with a group for each value.
    OpenVINO also divides and compares integers in float32, which is exact only up to 2**24. So no
    place is computed from a key.
    """
    value, order = g("TopK", values, number, axis=1, outputs=2)
    before = g("Slice", value, np.array([0]), np.array([-1]), np.array([1]))
    after = g("Slice", value, np.array([1]), np.array([END]), np.array([1]))
    lower = g.cast(g("Not", g("Equal", before, after)), np.int64)
    group = g("CumSum", g("Pad", lower, np.array([0, 1, 0, 0]), np.array(0)), np.array(1))
    # Places in groups from `count` on are not wanted; merging these groups keeps keys small.
    group = g("Min", group, count)
    key = g("Add", g("Mul", group, number), order)
    _, rank = g("TopK", key, count, axis=1, largest=0, outputs=2)
    # OpenVINO computes int64 in int32. If keys may not fit, the first order is used.
    groups = g("Add", g.cast(count, np.float32), np.float32(1))
    fits = g("Less", g("Mul", groups, g.cast(number, np.float32)), np.float32(2.147e9))
    rank = g("Where", fits, rank, count_to(g, count))
    return g("GatherElements", order, rank, axis=1)


def gathered_rows(g: Graph, rows: str, order: str, width: int) -> str:
    """rows (B, n, width) in the order (B, k)."""
    index = g("Expand", g.unsqueeze(order, 2), np.array([1, 1, width]))
    return g("GatherElements", rows, index, axis=1)
