# SPDX-License-Identifier: Apache-2.0
"""Detections of a detector in the images of a data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import NamedTuple

import mxnet as mx
import numpy as np

from .data.dataset import DetectionSet
from .data.loader import normalise, resize
from .model import Detector
from .progress import Progress


class Detection(NamedTuple):
    """Detections of one image, best first; boxes are in pixels of the image file."""

    ids: np.ndarray  # (N,) int
    scores: np.ndarray  # (N,) float32
    boxes: np.ndarray  # (N, 4) float32


@dataclass
class Predictor:
    """A detector with the scale of its images and its devices."""

    detector: Detector
    scale: tuple[int, int]  # short side of scaled images and limit of the long one, pixels
    ctx: Sequence[mx.Context]  # devices that have the detector's parameters
    batch_size: int = 4

    def iterate(
        self, dataset: DetectionSet, indices: Iterable[int]
    ) -> Iterator[tuple[int, np.ndarray, Detection]]:
        """Yield the index, the pixels of the file and the detections of some images.

        Consecutive images of equal scaled shape share a batch, which is divided among devices.
        """
        read = ((index, dataset.read(index)) for index in indices)
        scaled = ((index, image, *resize(image, *self.scale)) for index, image in read)
        for _, group in groupby(scaled, key=lambda each: each[2].shape):
            while chunk := list(islice(group, self.batch_size)):
                numbers, images, resized, factors = zip(*chunk)
                data = np.stack([normalise(image) for image in resized])
                ctx = self.ctx[: len(data)]
                parts = mx.gluon.utils.split_and_load(data, ctx, even_split=False)
                outputs = [self.detector(part) for part in parts]
                # All devices have work before the first one is waited for.
                found = [[array.asnumpy() for array in output] for output in outputs]
                ids, scores, boxes = (np.concatenate(column) for column in zip(*found))
                for row, (index, image, (x, y)) in enumerate(zip(numbers, images, factors)):
                    kept = ids[row, :, 0] >= 0
                    sides = boxes[row, kept] / np.array([x, y, x, y], np.float32)
                    classes = ids[row, kept, 0].astype(int)
                    yield index, image, Detection(classes, scores[row, kept, 0], sides)

    def __call__(
        self, dataset: DetectionSet, indices: Sequence[int], hidden: bool = False
    ) -> dict[int, Detection]:
        """Return the detections of some images by index, with a progress bar unless `hidden`."""
        images = self.iterate(dataset, indices)
        bar = Progress("evaluating", "images", images, total=len(indices), disable=hidden)
        return {index: detection for index, _, detection in bar}
