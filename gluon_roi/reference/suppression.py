# SPDX-License-Identifier: Apache-2.0
"""BoxNMS and Proposal: non-maximum suppression."""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Iterable, Sequence

import numpy as np

from .common import as_numpy
from .overlap import (
    intersection,
    rotated_area,
    rotated_intersection,
    rotated_overlap,
    upright,
    upright_overlap,
)

__all__ = ["box_nms", "box_nms_backward", "proposal"]


def box_nms(
    data: Any,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    background_id: int = -1,
    force_suppress: bool = False,
    in_format: str = "corner",
    out_format: str = "corner",
    method: str = "hard",
    sigma: float = 0.5,
    min_score: float = 0.001,
    geometry: Any = "float64",
) -> tuple[np.ndarray, np.ndarray]:
    """:class:`gluon_roi.BoxNMS` in NumPy.

    Parameters
    ----------
    data, overlap_thresh, valid_thresh, topk, coord_start, score_index, id_index, background_id, \
force_suppress, in_format, out_format, method, sigma, min_score
        As in :func:`gluon_roi.nd.BoxNMS`.
    geometry : type
        Type in which upright boxes are computed, unless the method is soft.

    Returns
    -------
    out : numpy.ndarray, float64
        With the shape of data: the kept rows of each batch by descending score, then rows of -1.
    record : numpy.ndarray, int32
        (..., n, 1): the indices of the kept rows, counted over all batches, then -1.

    Raises
    ------
    ValueError
        data has too few columns for a box.

    Examples
    --------
    >>> boxes = [[0.5, 0, 0, 4, 4], [0.75, 0, 0, 4, 5], [0.25, 9, 0, 9, 4]]
    >>> out, record = box_nms(boxes, coord_start=1, score_index=0)
    >>> record.ravel().tolist()
    [1, 2, -1]
    """
    rows = as_numpy(data).astype(geometry)
    shape, width = rows.shape, rows.shape[-1]
    box_columns = slice(coord_start, coord_start + (5 if in_format == "rotated" else 4))
    if rows.ndim < 2 or box_columns.stop > width:
        raise ValueError(f"BoxNMS: data has shape {shape}, expected (..., n, w) with a box in w")
    indices = np.arange(rows.size // width, dtype="int32").reshape(*shape[:-1], 1)
    if topk == 0:
        return rows.astype("float64"), indices
    threshold, lowest = np.float32(overlap_thresh), np.float32(valid_thresh)
    batches = rows.reshape(-1, shape[-2], width)
    out, record = np.full(batches.shape, -1.0), np.full(batches.shape[:2], -1, "int32")
    for n, batch in enumerate(batches):
        scores = batch[:, score_index]
        valid = scores > lowest
        classes = np.zeros(len(batch))
        if id_index >= 0:
            ids = batch[:, id_index]
            valid &= ids != background_id
            if not force_suppress:
                is_int32 = (ids > -(2.0**31)) & (ids < 2.0**31)
                classes = np.trunc(np.where(is_int32, ids, -(2.0**31)))
        order = [i for i in np.argsort(-scores, kind="stable") if valid[i]]
        order = order[:topk] if topk > 0 else order
        boxes = batch[:, box_columns]
        if method == "hard":
            intersect, areas = _overlaps(boxes, in_format)
            kept = _suppress(order, intersect, areas, classes, threshold)
            out[n, : len(kept)] = batch[kept]
        else:
            lowered = {i: float(scores[i]) for i in order}
            overlaps = pair_overlaps(boxes.astype("float64"), in_format)
            decay = {
                "linear": lambda overlap: 1 - overlap if overlap > threshold else 1,
                "gaussian": lambda overlap: np.exp(-(overlap**2) / sigma),
            }[method]
            kept = []
            while lowered:
                best = max(lowered, key=lambda i: (lowered[i], -i))
                if lowered[best] < min_score:
                    break
                kept.append(best)
                out[n, len(kept) - 1] = batch[best]
                out[n, len(kept) - 1, score_index] = lowered.pop(best)
                for i in list(lowered):
                    if classes[i] == classes[best]:
                        lowered[i] *= decay(overlaps(best, i))
                    if np.isnan(lowered[i]):
                        del lowered[i]
        record[n, : len(kept)] = n * shape[-2] + np.array(kept, int)
    if in_format != out_format:
        columns = out[..., coord_start : coord_start + 4]
        converted = ~(columns[..., 0] < 0)
        columns[converted] = _convert_boxes(columns[converted], out_format == "center", geometry)
    return out.reshape(shape), record.reshape(indices.shape)


def box_nms_backward(
    d_out: Any, record: Any, factors: Any = 1.0, score_index: int = 1
) -> np.ndarray:
    """Gradient of :func:`box_nms` with respect to data.

    Parameters
    ----------
    d_out : array, shape (..., n, w)
        Gradient with respect to the output.
    record : array of int, shape (..., n, 1)
        The second result of :func:`box_nms`.
    factors : float, or array of shape (..., n)
        Factor by which a soft method multiplied the score of each row of the output.
    score_index : int
        As in :func:`gluon_roi.nd.BoxNMS`.

    Returns
    -------
    numpy.ndarray, float64
        For each kept row of data its row of d_out, and 0 for all others.

    Raises
    ------
    IndexError
        record holds an index beyond the rows of data.

    Examples
    --------
    >>> box_nms_backward([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], [[1], [-1]])[:, 0].tolist()
    [0.0, 1.0]
    """
    d_out, record = as_numpy(d_out).astype("float64"), as_numpy(record).ravel()
    d_out[..., score_index] *= factors
    d_data = np.zeros_like(d_out)
    rows, gradients = d_data.reshape(len(record), -1), d_out.reshape(len(record), -1)
    rows[record[record >= 0]] = gradients[record >= 0]
    return d_data


def pair_overlaps(boxes: np.ndarray, format: str) -> Callable[[int, int], float]:
    """A function (i, k) that returns the overlap of boxes[i] and boxes[k], from 0 to 1."""
    if format == "rotated":
        return lambda i, k: rotated_overlap(boxes[i], boxes[k])
    corners = upright(boxes, format == "center")
    return lambda i, k: upright_overlap(corners[i], corners[k])


def _convert_boxes(boxes: np.ndarray, to_center: bool, geometry: Any) -> np.ndarray:
    """Boxes (n, 4) converted to the center format, or from it to corners."""
    first, last = boxes[:, :2].astype(geometry), boxes[:, 2:].astype(geometry)
    if to_center:
        return np.hstack([(first + last) / 2, last - first])
    return np.hstack([first - last / 2, first + last / 2])


def _overlaps(boxes: np.ndarray, format: str) -> tuple[Callable[[int, int], Any], list]:
    """A function (i, k) for the intersection area of two boxes (n, 4 or 5), and all areas."""
    if format == "rotated":
        areas = [rotated_area(box) for box in boxes]
        return lambda i, k: rotated_intersection(boxes[i], boxes[k]), areas
    corners = upright(boxes, format == "center")
    return lambda i, k: intersection(corners[i], corners[k]), [box[4] for box in corners]


def _suppress(
    order: Iterable,
    intersect: Callable[[int, int], Any],
    areas: Sequence,
    classes: np.ndarray,
    threshold: Any,
    max_kept: int = -1,
) -> list[int]:
    """Greedy suppression: indices of the kept boxes, up to `max_kept` unless it is negative."""

    def overlaps(i: int, k: int) -> bool:
        shared = intersect(i, k)
        with np.errstate(all="ignore"):
            return np.divide(shared, areas[i] + areas[k] - shared) > threshold

    kept: list[int] = []
    for i in order:
        same_class = [k for k in kept if classes[k] == classes[i]]
        if len(kept) == max_kept:
            break
        if not any(overlaps(i, k) for k in same_class):
            kept.append(i)
    return kept


def proposal(
    cls_prob: Any,
    bbox_pred: Any,
    im_info: Any,
    rpn_pre_nms_top_n: int = 6000,
    rpn_post_nms_top_n: int = 300,
    threshold: float = 0.7,
    rpn_min_size: int = 16,
    scales: Sequence[float] = (4.0, 8.0, 16.0, 32.0),
    ratios: Sequence[float] = (0.5, 1.0, 2.0),
    feature_stride: int = 16,
    iou_loss: bool = False,
    geometry: Any = "float64",
) -> tuple[np.ndarray, np.ndarray]:
    """:class:`gluon_roi.Proposal` in NumPy.

    Parameters
    ----------
    cls_prob, bbox_pred, im_info, rpn_pre_nms_top_n, rpn_post_nms_top_n, threshold, \
rpn_min_size, scales, ratios, feature_stride, iou_loss
        As in :func:`gluon_roi.nd.Proposal`.
    geometry : type
        Type in which boxes are computed.

    Returns
    -------
    out, score : numpy.ndarray, float64
        (N * rpn_post_nms_top_n, 5), rows [image, x1, y1, x2, y2] in pixels, and (..., 1).

    Raises
    ------
    ValueError
        The numbers of channels do not match the number of anchors.

    Examples
    --------
    >>> inputs = np.ones((1, 2, 1, 1)), np.zeros((1, 4, 1, 1)), [[16, 16, 1]]
    >>> out, score = proposal(*inputs, scales=(1,), ratios=(1,), rpn_post_nms_top_n=1)
    >>> out.tolist()
    [[0.0, 0.0, 0.0, 15.0, 15.0]]
    """
    cls_prob, bbox_pred, im_info = (
        as_numpy(a).astype(geometry) for a in (cls_prob, bbox_pred, im_info)
    )
    images, channels, rows, columns = cls_prob.shape
    anchors = _anchors(feature_stride, scales, ratios)
    if channels != 2 * len(anchors) or bbox_pred.shape[1] != 4 * len(anchors):
        raise ValueError(
            f"Proposal: cls_prob has {channels} and bbox_pred {bbox_pred.shape[1]} channels, "
            f"expected 2 and 4 for each of {len(anchors)} anchors"
        )
    out = np.zeros((images, rpn_post_nms_top_n, 5))
    out_scores = np.zeros((images, rpn_post_nms_top_n, 1))
    for n in range(images):
        height, width, scale = im_info[n]
        last, smallest = np.array([width, height] * 2) - 1, rpn_min_size * scale
        boxes, scores = [], []
        for y, x, a in itertools.product(range(rows), range(columns), range(len(anchors))):
            anchor = anchors[a] + np.array([x, y, x, y]) * feature_stride
            deltas = bbox_pred[n, 4 * a : 4 * a + 4, y, x]
            box = _apply_deltas(anchor.astype(geometry), deltas, iou_loss)
            box = np.where(np.isnan(box), box, np.clip(np.minimum(box, last), 0, None))
            score = cls_prob[n, len(anchors) + a, y, x]
            if not (box[2:] - box[:2] + 1 >= smallest).all():
                box = box + np.array([-1, -1, 1, 1]) * smallest / 2
                score = -1.0
            if y >= height // feature_stride or x >= width // feature_stride:
                score = -1.0
            box = box.astype(geometry)
            boxes.append((*box, np.prod(box[2:] - box[:2] + 1)))
            scores.append(score)
        ranked = np.where(np.isnan(scores), -np.inf, scores)
        order = np.argsort(-ranked, kind="stable")
        order = order[:rpn_pre_nms_top_n] if rpn_pre_nms_top_n > 0 else order
        classes, limit = np.zeros(len(boxes)), np.float32(threshold)
        intersect = functools.partial(_intersect_pixels, boxes)
        areas = [box[4] for box in boxes]
        kept = _suppress(order, intersect, areas, classes, limit, rpn_post_nms_top_n)
        for row in range(rpn_post_nms_top_n):
            i = kept[row % len(kept)]
            out[n, row] = [n, *boxes[i][:4]]
            out_scores[n, row] = scores[i]
    return out.reshape(-1, 5), out_scores.reshape(-1, 1)


def _intersect_pixels(boxes: Sequence, i: int, k: int) -> Any:
    """Intersection area of two boxes whose second corners are their last pixels."""
    return intersection(boxes[i], boxes[k], 1)


def _anchors(stride: int, scales: Sequence[float], ratios: Sequence[float]) -> np.ndarray:
    """Anchors (x1, y1, x2, y2) of the first cell: for each ratio, all scales."""
    anchors, middle = [], (stride - 1) / 2
    for ratio in ratios:
        width = np.floor(np.sqrt(np.floor(stride**2 / ratio)) + 0.5)
        height = np.floor(width * ratio + 0.5)
        for scale in scales:
            reach = (np.array([width, height]) * scale - 1) / 2
            anchors.append([*(middle - reach), *(middle + reach)])
    return np.array(anchors)


def _apply_deltas(box: np.ndarray, deltas: np.ndarray, corners: bool) -> np.ndarray:
    """Decode bbox_pred: offsets of the corners, or (dx, dy, dw, dh)."""
    if corners:
        return box + deltas
    size = box[2:] - box[:2] + 1
    center = box[:2] + (size - 1) / 2 + deltas[:2] * size
    with np.errstate(over="ignore"):
        reach = (np.exp(deltas[2:]) * size - 1) / 2
    return np.concatenate([center - reach, center + reach])
