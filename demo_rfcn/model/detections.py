"""Detections: what a detector finds in images, and in those of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import NamedTuple

import mxnet as mx
import numpy as np

from ..data import Dataset
from ..data.loader import load_image, normalise
from .detector import Detector


class Detection(NamedTuple):
    """Detections of one image, best first.

    Attributes
    ----------
    ids : (N,) int
    scores : (N,) float32
    boxes : (N, 4) float32
        Pixels of the image file.
    """

    ids: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray


def detect_images(
    detector: Detector,
    images: list[np.ndarray],
    scales: list[tuple[float, float]],
    ctx: mx.Context,
) -> list[Detection]:
    """Run the detector on images of one shape.

    Parameters
    ----------
    detector : detector.Detector
    images : list of numpy.ndarray
        (H, W, 3) uint8, RGB, scaled.
    scales : list of tuple of float
        (x, y) factors from file to scaled image; boxes are divided by them.
    ctx : mxnet.Context

    Returns
    -------
    list of Detection
    """
    data = mx.nd.array(np.stack([normalise(image) for image in images]), ctx=ctx)
    ids, scores, boxes = (output.asnumpy() for output in detector(data))
    results = []
    for row, (x, y) in enumerate(scales):
        kept = ids[row, :, 0] >= 0
        factors = np.array([x, y, x, y], np.float32)
        results.append(
            Detection(
                ids[row, kept, 0].astype(int), scores[row, kept, 0], boxes[row, kept] / factors
            )
        )
    return results


def detect_dataset(
    detector: Detector,
    dataset: Dataset,
    indices: Iterable[int],
    short: int,
    max_size: int,
    ctx: mx.Context,
    batch_size: int = 4,
) -> Iterator[tuple[int, Detection]]:
    """Yield (index, Detection); neighbours of one shape share a batch, so that none is padded."""
    loaded = ((index, *load_image(dataset, index, short, max_size)) for index in indices)
    for _, group in groupby(loaded, key=lambda item: item[1].shape):
        while chunk := list(islice(group, batch_size)):
            images = [image for _, image, _, _ in chunk]
            scales = [scale for _, _, _, scale in chunk]
            found = detect_images(detector, images, scales, ctx)
            for (index, *_), detection in zip(chunk, found):
                yield index, detection
