# SPDX-License-Identifier: Apache-2.0
"""Detections of a detector in single images and in a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple

import mxnet as mx
import numpy as np

from ..data.dataset import DetectionSet
from ..data.loader import normalise, resize
from ..progress import Progress
from .detector import Detector


class Detection(NamedTuple):
    """Detections of one image, best first; boxes are in pixels of the image file."""

    ids: np.ndarray  # (N,) int
    scores: np.ndarray  # (N,) float32
    boxes: np.ndarray  # (N, 4) float32


def detect_each(
    detector: Detector,
    dataset: DetectionSet,
    indices: Iterable[int],
    scale: tuple[int, int],
    ctx: Sequence[mx.Context],
    batch_size: int,
) -> Iterator[tuple[int, np.ndarray, Detection]]:
    """Yield some images by index, with the pixels of the file and the detections.

    Consecutive images of equal scaled shape share a batch, which is divided among devices. `scale`
    is the short side and the limit of the long side, in pixels.
    """
    read = ((index, dataset.read(index)) for index in indices)
    scaled = ((index, image, *resize(image, *scale)) for index, image in read)
    for _, group in groupby(scaled, key=lambda each: each[2].shape):
        while chunk := list(islice(group, batch_size)):
            places, images, smaller, factors = zip(*chunk)
            data = np.stack([normalise(image) for image in smaller])
            parts = mx.gluon.utils.split_and_load(data, ctx[: len(data)], even_split=False)
            outputs = [detector(part) for part in parts]
            # All devices are at work before the first one is waited for.
            found = [[array.asnumpy() for array in output] for output in outputs]
            ids, scores, boxes = (np.concatenate(column) for column in zip(*found))
            for row, (index, image, (x, y)) in enumerate(zip(places, images, factors)):
                kept = ids[row, :, 0] >= 0
                sides = boxes[row, kept] / np.array([x, y, x, y], np.float32)
                classes = ids[row, kept, 0].astype(int)
                yield index, image, Detection(classes, scores[row, kept, 0], sides)


def detect_dataset(
    detector: Detector,
    dataset: DetectionSet,
    indices: Sequence[int],
    scale: tuple[int, int],
    ctx: Sequence[mx.Context],
    batch_size: int = 4,
    hidden: bool = False,
) -> dict[int, Detection]:
    """Return the detections of some images by index, with a progress bar unless `hidden`."""
    each = detect_each(detector, dataset, indices, scale, ctx, batch_size)
    shown = Progress("evaluating", "images", each, total=len(indices), disable=hidden)
    return {index: detection for index, _, detection in shown}
