# SPDX-License-Identifier: Apache-2.0
"""MXNet's operators of single-shot detectors: prior boxes, and detections from them."""

from __future__ import annotations

import numpy as np

from ..graph import END, Graph, Node
from ..registry import rule
from ..roi.boxes import count_to
from .boxes import first_of_equal, gathered_rows, kept_boxes, scores_of_classes

_F32 = np.float32


@rule("_contrib_MultiBoxPrior")
def _multi_box_prior(g: Graph, node: Node) -> str:
    """Boxes of each size, and of each ratio with the first size, around every cell.

    ::

        height, width -> centres --+-> - reach, + reach -> Concat -> (1, cells * boxes, 4)
                      -> reach ----+
    """
    sizes, ratios = (np.array(node.sizes(name, (1.0,)), _F32) for name in ("sizes", "ratios"))
    steps, offsets = node.sizes("steps", (-1.0, -1.0)), node.sizes("offsets", (0.5, 0.5))
    roots = np.concatenate([np.sqrt(ratios[:1]).repeat(len(sizes)), np.sqrt(ratios[1:])])
    sizes = np.concatenate([sizes, sizes[:1].repeat(len(ratios) - 1)])
    lengths = [g.cast(g.size(node.inputs[0], axis), _F32) for axis in (2, 3)]
    across = g("Mul", g("Div", g("Mul", sizes, lengths[0]), lengths[1]), roots)
    reaches = [(sizes / roots / _F32(2))[:, None], g("Mul", across, _F32(0.5))]
    reaches[1] = g.unsqueeze(reaches[1], 1)
    low, high = [], []
    for n, reach in enumerate(reaches):
        step = _F32(steps[n]) if steps[n] > 0 else g("Div", _F32(1), lengths[n])
        number = g.cast(count_to(g, g.size(node.inputs[0], 2 + n)), _F32)
        centre = g("Mul", g("Add", number, _F32(offsets[n])), step)
        centre = g.reshape(centre, *((-1, 1, 1, 1) if n == 0 else (-1, 1, 1)))
        low.append(g("Sub", centre, reach))
        high.append(g("Add", centre, reach))
    all_boxes = g.joined(g.shape(node.inputs[0], 2, 4), len(sizes), 1)
    edges = [g("Expand", edge, all_boxes) for edge in (*low[::-1], *high[::-1])]
    boxes = g.reshape(g("Concat", *edges, axis=3), 1, -1, 4)
    if node.get("clip", False):
        boxes = g("Clip", boxes, _F32(0), _F32(1))
    return boxes


@rule("_contrib_MultiBoxDetection")
def _multi_box_detection(g: Graph, node: Node) -> str:
    """Rows of class, score and box; invalid rows of -1 at the end, suppressed rows of class -1.

    ::

        cls_prob -> best class, its score -> valid? --+
        anchor, loc_pred -> boxes --------------------+-> rows -> valid first --------+
                                                            |                         |
                                          best `nms_topk` first -> NonMaxSuppression -+-> Concat
    """
    node.accept("background_id")  # MXNet does not read it: class 0 is the background
    if node.dtype != _F32:
        raise node.refusal(f"{node.dtype} data have no translation")
    threshold, most = float(node.get("nms_threshold", 0.5)), node.get("nms_topk", -1)
    apart = not node.get("force_suppress", False)
    kind, score = _best_class(g, node.inputs[0])
    least = _F32(node.get("threshold", 0.01))
    valid = g("And", g("Greater", score, _F32(-1)), g("Not", g("Less", score, least)))
    rows = g("Concat", kind, score, _boxes(g, node), axis=2)
    rows = g("Where", valid, rows, _F32(-1))
    number = g.size(rows, 1)
    valid = g.squeeze(valid, 2)
    order = first_of_equal(g, g.cast(valid, _F32), number, number)
    by_anchor = gathered_rows(g, rows, order, 6)
    if not 0 < threshold <= 1:
        return by_anchor
    count = g("Min", number, np.array([most])) if most > 0 else number
    scores = g("Where", valid, g.squeeze(score, 2), _F32(np.finfo(_F32).min))
    order = first_of_equal(g, scores, number, count)
    best = gathered_rows(g, rows, order, 6)
    kept = _kept(g, best, count, threshold, apart)
    best = _without_class(g, best, g("Greater", kept, _F32(0)))
    if most <= 0:
        return best
    # MXNet leaves the rows beyond nms_topk in the order of anchors.
    rest = g("Slice", by_anchor, count, np.array([END]), np.array([1]))
    return g("Concat", best, _without_class(g, rest, np.array(False)), axis=1)


def _without_class(g: Graph, rows: str, kept: str | np.ndarray) -> str:
    """The rows (N, n, 6) with a class of -1 unless they are kept, (N, n, 1)."""
    kind = g("Where", kept, g.columns(rows, 0, 1), _F32(-1))
    return g("Concat", kind, g.columns(rows, 1, END), axis=2)


def _best_class(g: Graph, scores: str) -> tuple[str, str]:
    """The first of the best classes after the background, and its score, (N, anchors, 1) each.

    OpenVINO's ArgMax may return any of equal classes.
    """
    scores = g("Transpose", g.columns(scores, 1, END, axis=1), perm=[0, 2, 1])
    best = g("ReduceMax", scores, axes=[2])
    classes = g.cast(count_to(g, g.size(scores, 2)), _F32)
    number = g("Where", g("Equal", scores, best), classes, _F32(np.finfo(_F32).max))
    return g("ReduceMin", number, axes=[2]), best


def _boxes(g: Graph, node: Node) -> str:
    """Corners (N, anchors, 4) of the anchors that are moved by loc_pred."""
    _, moves, anchors = node.inputs
    variances = [_F32(value) for value in node.sizes("variances", (0.1, 0.1, 0.2, 0.2))]
    four = np.ones(4, np.int64)
    x1, y1, x2, y2 = g("Split", anchors, four, axis=2, outputs=4)
    moves = g.reshape(moves, g.size(moves, 0), -1, 4)
    parts = g("Split", moves, four, axis=2, outputs=4)
    parts = [g("Mul", part, variance) for part, variance in zip(parts, variances)]
    low, high = [], []
    for start, end, move, growth in ((x1, x2, parts[0], parts[2]), (y1, y2, parts[1], parts[3])):
        size = g("Sub", end, start)
        centre = g("Mul", g("Add", start, end), _F32(0.5))
        centre = g("Add", g("Mul", move, size), centre)
        reach = g("Mul", g("Mul", g("Exp", growth), size), _F32(0.5))
        low.append(g("Sub", centre, reach))
        high.append(g("Add", centre, reach))
    boxes = g("Concat", *low, *high, axis=2)
    return g("Clip", boxes, _F32(0), _F32(1)) if node.get("clip", True) else boxes


def _kept(g: Graph, rows: str, count: str, threshold: float, apart: bool) -> str:
    """1 for valid rows that no better row suppresses, else 0: (N, n, 1)."""
    kind = g.columns(rows, 0, 1)
    valid = g.cast(g("GreaterOrEqual", kind, _F32(0)), _F32)
    # Ranks replace scores: they have no ties, and exactly those of valid rows are positive.
    place = g.cast(count_to(g, count), _F32)
    rank = g("Sub", g.cast(count, _F32), place)
    rank = g("Mul", g.squeeze(valid, 2), rank)
    x1, y1, x2, y2 = (g.column(rows, n) for n in range(2, 6))
    boxes = g("Concat", y1, x1, g("Max", y1, y2), g("Max", x1, x2), axis=2)
    scores = g.unsqueeze(rank, 1)
    if apart:
        scores = scores_of_classes(g, g.squeeze(kind, 2), scores)
    # kept_boxes suppresses above its threshold, MXNet's operator also at its own.
    below = np.nextafter(np.nextafter(_F32(threshold), _F32(0)), _F32(0))
    kept = kept_boxes(g, boxes, scores, rank, count, float(below))
    return g.unsqueeze(kept, 2)
