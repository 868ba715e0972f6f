# SPDX-License-Identifier: Apache-2.0
"""Batches: reading, scaling, augmenting, padding, RPN targets; all depend only on (seed, step)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import cv2
import numpy as np

from ..errors import InputError
from .dataset import BOTTOM_RIGHT, TOP_LEFT, DetectionSet, X, Y, plural, scale_factor

MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
STD = np.array([0.229, 0.224, 0.225], np.float32) * 255


class Batch(NamedTuple):
    """One training batch; boxes are x1, y1, x2, y2 in pixels of `data`."""

    data: np.ndarray  # (B, 3, H, W) float32, normalised RGB, padded with zeros right and below
    labels: np.ndarray  # (B, M, 6) float32: box, class, difficult; rows of -1 are padding
    rpn_cls: np.ndarray  # (B, N) float32, N anchors of the map: 1 object, 0 background, -1 ignored
    rpn_box: np.ndarray  # (B, N, 4) float32 offsets, zero unless rpn_cls is 1


def resize(image: np.ndarray, short: int, max_size: int) -> tuple[np.ndarray, tuple[float, float]]:
    """Scale an image to a short side, or less if the long side would exceed max_size, pixels.

    Returns the image, (H, W, 3) uint8, and the factors (x, y) from old to new coordinates.
    """
    height, width = image.shape[:2]
    factor = scale_factor((width, height), (short, max_size))
    new = (max(int(round(width * factor)), 1), max(int(round(height * factor)), 1))
    if new == (width, height):
        return image, (1.0, 1.0)
    return cv2.resize(image, new, interpolation=cv2.INTER_LINEAR), (new[0] / width, new[1] / height)


def normalise(image: np.ndarray) -> np.ndarray:
    """Normalise (H, W, 3) uint8 RGB to (3, H, W) float32 with ImageNet's mean and deviation."""
    result = np.empty((3, *image.shape[:2]), np.float32)
    # Plane by plane: NumPy is slow if the last axis, along which it loops, has three elements.
    for plane, colour, mean, std in zip(result, image.transpose(2, 0, 1), MEAN, STD):
        np.subtract(colour, mean, out=plane, dtype=np.float32)
        plane /= std
    return result


def load_image(
    dataset: DetectionSet, index: int, short: int, max_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Read one image, scaled: (H, W, 3) uint8 RGB, and its labels (M, 6)."""
    image, (x, y) = resize(dataset.read(index), short, max_size)
    labels = dataset.samples[index].labels.copy()
    labels[:, X] *= x
    labels[:, Y] *= y
    return image, labels


def flip(image: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mirror an image and its (M, 6) labels left to right."""
    labels = labels.copy()
    labels[:, X] = image.shape[1] - labels[:, X[::-1]]
    return image[:, ::-1], labels


def jitter_colour(image: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Scale the brightness, the contrast and the saturation of an (H, W, 3) uint8 image."""
    brightness, contrast, saturation = rng.uniform(1 - strength, 1 + strength, 3)
    planes = image.transpose(2, 0, 1).astype(np.float32, order="C") * brightness
    planes = (planes - planes.mean()) * contrast + planes.mean()
    grey = planes.mean(axis=0)
    planes = (planes - grey) * saturation + grey
    return np.clip(np.rint(planes), 0, 255).astype(np.uint8).transpose(1, 2, 0)


@dataclass
class TrainLoader:
    """An endless, resumable stream of batches.

    The order of epoch e is drawn from (seed, e), and all that is random in image i of step s from
    (seed, s, i): after an interruption, and of several workers together, batches are the same.
    """

    dataset: DetectionSet
    batch_size: int  # images of all workers together
    scale: tuple[int, int]  # short side of scaled images and limit of the long one, pixels
    size_divisor: int  # padded sides are multiples of it
    rpn_targets: Callable  # a `losses.RPNTargets`
    seed: int
    flip_p: float = 0.5  # probability of a horizontal flip
    scale_jitter: tuple[float, float] = (1.0, 1.0)  # range of a factor on the short side
    color_jitter: float = 0.0  # largest relative change of brightness, contrast and saturation
    rank: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        if self.batch_size > len(self.dataset):
            raise InputError(self._describe_small_set())
        share = self.batch_size // self.num_workers
        self._rows = range(self.rank * share, (self.rank + 1) * share)
        self._max_objects = max(max(len(labels) for labels in self.dataset.labels), 1)
        sizes = np.array([entry.header.upright for entry in self.dataset.samples])
        self._wide = sizes[:, 0] >= sizes[:, 1]
        self._epoch_order = lru_cache(maxsize=2)(self._draw_order)

    def _describe_small_set(self) -> str:
        """Return the error of a batch that has more images than the data set."""
        images = plural(len(self.dataset), "training image")
        if len(self.dataset) < self.num_workers:
            return f"train: {images}, expected at least {self.num_workers}, one per worker"
        workers = f" on {self.num_workers} workers" if self.num_workers > 1 else ""
        asked, fitting = (n // self.num_workers for n in (self.batch_size, len(self.dataset)))
        return f"train: --batch-size {asked}{workers} exceeds the {images}: --batch-size {fitting}"

    @property
    def steps_per_epoch(self) -> int:
        """Complete batches in one pass over the data set."""
        return len(self.dataset) // self.batch_size

    def batches(self, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of steps first, first + 1, ...; a thread prepares the next two."""
        with ThreadPoolExecutor(max_workers=1) as worker:
            pending = deque(worker.submit(self.make, first + ahead) for ahead in range(2))
            for step in count(first + 2):
                batch = pending.popleft().result()
                pending.append(worker.submit(self.make, step))
                yield batch

    def _draw_order(self, epoch: int) -> np.ndarray:
        """Return the images of an epoch's batches, (steps, batch_size).

        A batch has wide images or tall ones, so that they are padded little; the rest of both is
        mixed. Fewer images than a batch are left out of an epoch. They are drawn from all images:
        left out after this order was made, they would always be of the rarer kind.
        """
        rng = np.random.default_rng([self.seed, 0, epoch])
        order = rng.permutation(len(self.dataset))[: self.steps_per_epoch * self.batch_size]
        batches, rest = [], []
        for wide in (True, False):
            bucket = order[self._wide[order] == wide]
            complete = len(bucket) // self.batch_size * self.batch_size
            batches.append(bucket[:complete])
            rest.append(bucket[complete:])
        images = np.concatenate(batches + rest)
        return rng.permutation(images.reshape(-1, self.batch_size))

    def make(self, step: int) -> Batch:
        """Make this worker's part of the batch of a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        chosen = self._epoch_order(epoch)[place]
        samples = [self._sample(int(chosen[row]), step, row) for row in self._rows]
        largest = np.max([image.shape[:2] for image, _, _ in samples], axis=0)
        divisor = self.size_divisor
        padded = tuple(-(-int(side) // divisor) * divisor for side in largest)
        data = np.zeros((len(samples), 3, *padded), np.float32)
        boxes = np.full((len(samples), self._max_objects, 6), -1, np.float32)
        rpn = []
        for row, (image, labels, rng) in enumerate(samples):
            height, width = image.shape[:2]
            data[row, :, :height, :width] = normalise(image)
            boxes[row, : len(labels)] = labels
            rpn.append(self.rpn_targets(labels, (height, width), padded, rng))
        return Batch(data, boxes, *(np.stack(part) for part in zip(*rpn)))

    def _sample(
        self, index: int, step: int, row: int
    ) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
        rng = np.random.default_rng([self.seed, 1, step, row])
        short, max_size = self.scale
        short = max(round(short * rng.uniform(*self.scale_jitter)), 1)
        image, labels = load_image(self.dataset, index, short, max_size)
        if rng.random() < self.flip_p:
            image, labels = flip(image, labels)
        if self.color_jitter:
            image = jitter_colour(image, self.color_jitter, rng)
        # Offsets are logarithms of sides, which are far below 0 for what clipping left of a box.
        labels[:, BOTTOM_RIGHT] = np.maximum(labels[:, BOTTOM_RIGHT], labels[:, TOP_LEFT] + 1)
        return image, labels, rng
