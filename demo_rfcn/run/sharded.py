# SPDX-License-Identifier: Apache-2.0
"""Evaluation that several workers of a run divide among themselves."""

from __future__ import annotations

from collections.abc import Sequence

import mxnet as mx
import numpy as np

from ..data.dataset import DetectionSet
from ..model.detections import Detection
from ..model.detector import RFCN, Detector
from . import evaluate
from .cluster import Alone


def evaluate_together(
    workers: Alone,
    detector: Detector,
    dataset: DetectionSet,
    scale: tuple[int, int],
    ctx: Sequence[mx.Context],
    limit: int,
) -> dict | None:
    """Evaluate a detector; see `evaluate.evaluate`. Only worker 0 gets the scores.

    Every worker detects in a share of the images.
    """
    if workers.num_workers == 1:
        return evaluate.evaluate(detector, dataset, scale, ctx, limit)
    first = workers.rank == 0
    count = min(limit, len(dataset))
    own = np.array_split(np.arange(count), workers.num_workers)[workers.rank].tolist()
    found = evaluate.detect_all(detector, dataset, own, scale, ctx, shown=first)
    table = workers.total(_table(found, count, detector.post_nms))
    return evaluate.scores(dataset, _detections(table)) if first else None


def statistics(net: RFCN) -> list[mx.gluon.Parameter]:
    """Return the parameters that hold the running statistics of batch normalisation."""
    return [*net.collect_params(".*running_(mean|var)$").values()]


def read_statistics(net: RFCN) -> np.ndarray:
    """Return these statistics as one vector."""
    values = [parameter.list_data()[0].asnumpy().ravel() for parameter in statistics(net)]
    return np.concatenate([np.zeros(0, np.float32), *values])


def write_statistics(net: RFCN, vector: np.ndarray) -> None:
    """Set these statistics to what `read_statistics` gave, here or in another worker."""
    place = 0
    for parameter in statistics(net):
        size = int(np.prod(parameter.shape))
        value = vector[place : place + size].reshape(parameter.shape)
        parameter.set_data(mx.nd.array(value))
        place += size


def _table(found: dict[int, Detection], count: int, most: int) -> np.ndarray:
    """Return rows of class + 1, score and box by image: zeros where there is no detection."""
    table = np.zeros((count, most, 6), np.float32)
    for index, (ids, scores, boxes) in found.items():
        table[index, : len(ids)] = np.column_stack([ids + 1, scores, boxes])
    return table


def _detections(table: np.ndarray) -> dict[int, Detection]:
    """Return the detections that the tables of all workers hold together."""
    found = {}
    for index, rows in enumerate(table):
        rows = rows[rows[:, 0] > 0]
        found[index] = Detection(rows[:, 0].astype(int) - 1, rows[:, 1], rows[:, 2:])
    return found
