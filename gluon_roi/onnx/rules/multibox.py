# SPDX-License-Identifier: Apache-2.0
"""MXNet's operators for single-shot detectors: prior boxes and detections."""

from __future__ import annotations

import numpy as np

from ..graph import END, Node, OnnxGraph, Tensor, concat, concat_sizes
from ..registry import rule
from .suppression import decode_axis, first_of_equal, gathered_rows, kept_boxes, scores_of_classes

_F32 = np.float32


@rule("_contrib_MultiBoxPrior")
def _multi_box_prior(g: OnnxGraph, node: Node) -> Tensor:
    """Boxes of each size, and of each ratio with the first size, around every cell.

    ::

        height, width -> centres --+-> - reach, + reach -> Concat -> (1, cells * boxes, 4)
                      -> reach ----+
    """
    sizes, ratios = (np.array(node.sizes(name, (1.0,)), _F32) for name in ("sizes", "ratios"))
    steps, offsets = node.sizes("steps", (-1.0, -1.0)), node.sizes("offsets", (0.5, 0.5))
    roots = np.concatenate([np.sqrt(ratios[:1]).repeat(len(sizes)), np.sqrt(ratios[1:])])
    sizes = np.concatenate([sizes, sizes[:1].repeat(len(ratios) - 1)])
    lengths = [node.inputs[0].size(axis).cast(_F32) for axis in (2, 3)]
    across = sizes * lengths[0] / lengths[1] * roots * 0.5
    reaches = [(sizes / roots / _F32(2))[:, None], across.unsqueeze(1)]
    low, high = [], []
    for n, reach in enumerate(reaches):
        step = _F32(steps[n]) if steps[n] > 0 else 1 / lengths[n]
        number = node.inputs[0].size(2 + n).numbers().cast(_F32)
        centre = ((number + offsets[n]) * step).reshape(-1, *[1] * (3 - n))
        low.append(centre - reach)
        high.append(centre + reach)
    all_boxes = concat_sizes(node.inputs[0].shape(2, 4), len(sizes), 1)
    edges = [edge.expand(all_boxes) for edge in (*low[::-1], *high[::-1])]
    boxes = concat(*edges, axis=3).reshape(1, -1, 4)
    return boxes.clip(0, 1) if node.get("clip", False) else boxes


@rule("_contrib_MultiBoxDetection")
def _multi_box_detection(g: OnnxGraph, node: Node) -> Tensor:
    """Rows of class, score and box. Suppressed rows get the class -1; invalid rows, all -1, come
    last.

    ::

        cls_prob -> best class, its score -> valid? --+
        anchor, loc_pred -> boxes --------------------+-> rows -> valid first --------+
                                                            |                         |
                                          best `nms_topk` first -> NonMaxSuppression -+-> Concat
    """
    node.ignore("background_id")  # MXNet does not read it: class 0 is the background
    if node.dtype != _F32:
        raise node.refusal(f"{node.dtype} data have no translation")
    node.expect_equal_sizes(0, 1)
    threshold, topk = float(node.get("nms_threshold", 0.5)), node.get("nms_topk", -1)
    per_class = not node.get("force_suppress", False)
    class_ids, score = _best_class(node.inputs[0])
    valid = (score > -1) & ~(score < node.get("threshold", 0.01))
    rows = valid.where(concat(class_ids, score, _boxes(node), axis=2), -1)
    number = rows.size(1)
    valid = valid.squeeze(2)
    by_anchor = gathered_rows(rows, first_of_equal(valid.cast(_F32), number, number), 6)
    if not 0 < threshold <= 1:
        return by_anchor
    count = number.min([topk]) if topk > 0 else number
    scores = valid.where(score.squeeze(2), np.finfo(_F32).min)
    best = gathered_rows(rows, first_of_equal(scores, number, count), 6)
    best = _without_class(best, _kept_mask(best, count, threshold, per_class) > 0)
    if topk <= 0:
        return best
    # MXNet leaves the rows beyond nms_topk in the order of anchors.
    rest = g("Slice", by_anchor, count, np.array([END]), np.array([1]))
    return concat(best, _without_class(rest, np.array(False)), axis=1)


def _without_class(rows: Tensor, kept: Tensor | np.ndarray) -> Tensor:
    """The rows (N, n, 6) with a class of -1 unless they are kept, (N, n, 1)."""
    class_ids = rows.graph("Where", kept, rows.columns(0, 1), _F32(-1))
    return concat(class_ids, rows.columns(1, END), axis=2)


def _best_class(scores: Tensor) -> tuple[Tensor, Tensor]:
    """The class with the highest score, except the background, and the score: (N, anchors, 1) each.

    Of equal scores the first class is chosen; OpenVINO's ArgMax may return any. As in MXNet,
    classes whose score is NaN or <= -1 are ignored.
    """
    scores = scores.columns(1, END, axis=1).transpose(0, 2, 1)
    scores = (scores > -1).where(scores, -1)
    best = scores.graph("ReduceMax", scores, axes=[2])
    classes = scores.size(2).numbers().cast(_F32)
    number = scores.equal(best).where(classes, np.finfo(_F32).max)
    return scores.graph("ReduceMin", number, axes=[2]), best


def _boxes(node: Node) -> Tensor:
    """Corners (N, anchors, 4) of the boxes decoded from loc_pred."""
    _, offsets, anchors = node.inputs
    variances = node.sizes("variances", (0.1, 0.1, 0.2, 0.2))
    x1, y1, x2, y2 = anchors.split(4, 2)
    offsets = offsets.reshape(offsets.size(0), -1, 4)
    parts = [part * variance for part, variance in zip(offsets.split(4, 2), variances)]
    low, high = [], []
    for start, end, shift, growth in ((x1, x2, parts[0], parts[2]), (y1, y2, parts[1], parts[3])):
        size = end - start
        edges = decode_axis((start + end) * 0.5, size, shift, growth)
        low.append(edges[0])
        high.append(edges[1])
    boxes = concat(*low, *high, axis=2)
    return boxes.clip(0, 1) if node.get("clip", True) else boxes


def _kept_mask(rows: Tensor, count: Tensor, threshold: float, per_class: bool) -> Tensor:
    """1 for valid rows that are kept, else 0: (N, n, 1)."""
    class_ids = rows.columns(0, 1)
    valid = (class_ids >= 0).cast(_F32)
    # Ranks replace scores: they have no ties, and are positive only for valid rows.
    place = count.numbers().cast(_F32)
    rank = count.cast(_F32) - place
    rank = valid.squeeze(2) * rank
    x1, y1, x2, y2 = (rows.column(n) for n in range(2, 6))
    boxes = concat(y1, x1, y1.max(y2), x1.max(x2), axis=2)
    scores = rank.unsqueeze(1)
    if per_class:
        scores = scores_of_classes(class_ids.squeeze(2), scores)
    # Two numbers down, because kept_boxes goes one up, and MXNet's operator suppresses at the
    # threshold itself.
    below = np.nextafter(np.nextafter(_F32(threshold), _F32(0)), _F32(0))
    return kept_boxes(boxes, scores, rank, count, float(below)).unsqueeze(2)
