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


def detect_images(
    detector: Detector,
    images: Sequence[np.ndarray],
    scales: Sequence[tuple[float, float]],
    ctx: Sequence[mx.Context],
) -> list[Detection]:
    """Run the detector on scaled images (H, W, 3) uint8 RGB of one shape, divided among devices.

    `scales` are the factors (x, y) from file to scaled image, by which boxes are divided.
    """
    data = np.stack([normalise(image) for image in images])
    parts = mx.gluon.utils.split_and_load(data, ctx[: len(data)], even_split=False)
    outputs = [detector(part) for part in parts]
    # All devices are at work before the first one is waited for.
    found = [[array.asnumpy() for array in output] for output in outputs]
    ids, scores, boxes = (np.concatenate(column) for column in zip(*found))
    results = []
    for cls, score, box, scale in zip(ids[..., 0].astype(int), scores[..., 0], boxes, scales):
        kept = cls >= 0
        results.append(
            Detection(cls[kept], score[kept], box[kept] / np.array(scale * 2, np.float32))
        )
    return results


def detect_each(
    detector: Detector,
    dataset: DetectionSet,
    indices: Iterable[int],
    scale: tuple[int, int],
    ctx: Sequence[mx.Context],
    batch_size: int,
) -> Iterator[tuple[int, np.ndarray, Detection]]:
    """Yield some images by index, with the pixels of the file and the detections.

    Consecutive images of equal scaled shape share a batch. `scale` is the short side and the limit
    of the long side, in pixels.
    """
    read = ((index, dataset.read(index)) for index in indices)
    scaled = ((index, image, *resize(image, *scale)) for index, image in read)
    for _, group in groupby(scaled, key=lambda each: each[2].shape):
        while chunk := list(islice(group, batch_size)):
            places, images, smaller, factors = zip(*chunk)
            yield from zip(places, images, detect_images(detector, smaller, factors, ctx))


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
