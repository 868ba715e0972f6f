"""Batches: reading, scaling, flipping, padding, RPN targets; all follow from (seed, step)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import NamedTuple

import cv2
import numpy as np

from ..errors import InputError

MEAN = np.array([0.485, 0.456, 0.406], np.float32) * 255
STD = np.array([0.229, 0.224, 0.225], np.float32) * 255


class Batch(NamedTuple):
    """One training batch of NumPy arrays.

    Attributes
    ----------
    data : (B, 3, H, W) float32
        Normalised RGB, padded with zeros on the right and bottom.
    labels : (B, M, 6) float32
        x1, y1, x2, y2 in pixels of `data`, class, difficult; rows of -1 are padding.
    rpn_cls : (B, A) float32
        1 object, 0 background, -1 ignored.
    rpn_box : (B, A, 4) float32
        Regression targets, zero where rpn_cls is not 1.
    """

    data: np.ndarray
    labels: np.ndarray
    rpn_cls: np.ndarray
    rpn_box: np.ndarray


def resize(image: np.ndarray, short: int, max_size: int) -> tuple:
    """Scale an image to a short side, or less when the long side would exceed max_size.

    Parameters
    ----------
    image : numpy.ndarray
        (H, W, 3) uint8.
    short, max_size : int
        Pixels.

    Returns
    -------
    image : numpy.ndarray
    scale : tuple of float
        (x, y) factors from old to new coordinates.
    """
    height, width = image.shape[:2]
    factor = min(short / min(height, width), max_size / max(height, width))
    new = (max(int(round(width * factor)), 1), max(int(round(height * factor)), 1))
    if new == (width, height):
        return image, (1.0, 1.0)
    return cv2.resize(image, new, interpolation=cv2.INTER_LINEAR), (new[0] / width, new[1] / height)


def normalise(image: np.ndarray) -> np.ndarray:
    """Normalise (H, W, 3) uint8 RGB to (3, H, W) float32 with ImageNet's mean and deviation."""
    return ((image - MEAN) / STD).transpose(2, 0, 1)


def flip(image: np.ndarray, labels: np.ndarray) -> tuple:
    """Mirror an image and its (M, 6) labels left to right; box ends are inclusive pixels."""
    labels = labels.copy()
    labels[:, [0, 2]] = image.shape[1] - 1 - labels[:, [2, 0]]
    return image[:, ::-1], labels


def load_image(dataset, index: int, short: int, max_size: int) -> tuple:
    """Read one image, scaled.

    Returns
    -------
    image : numpy.ndarray
        (H, W, 3) uint8, RGB.
    labels : numpy.ndarray
        (M, 6) float32 in pixels of the scaled image.
    scale : tuple of float
        (x, y) factors from file to scaled image.
    """
    image, labels = dataset[index]
    image, scale = resize(image.asnumpy(), short, max_size)
    labels = labels.copy()
    labels[:, [0, 2]] *= scale[0]
    labels[:, [1, 3]] *= scale[1]
    return image, labels, scale


class TrainLoader:
    """An endless, resumable stream of batches.

    The order of epoch e is a permutation drawn from (seed, e), the augmentation and RPN sampling of
    step s from (seed, s): `batches(first)` gives what an uninterrupted run would have seen.

    Parameters
    ----------
    dataset : VOCFolder
    batch_size : int
    short, max_size : int
        Image scale, pixels.
    size_divisor : int
        Padded height and width are multiples of this.
    rpn_targets : callable
        (boxes (M, 6), image (height, width), padded (height, width), rng) -> (cls, box), see
        `targets.RPNTargets`.
    seed : int
    """

    def __init__(
        self,
        dataset,
        batch_size: int,
        short: int,
        max_size: int,
        size_divisor: int,
        rpn_targets: Callable,
        seed: int,
    ) -> None:
        if len(dataset) < batch_size:
            raise InputError(f"train: batch-size {batch_size}, but only {len(dataset)} images")
        self._dataset = dataset
        self._batch_size = batch_size
        self._scale = (short, max_size)
        self._divisor = size_divisor
        self._rpn_targets = rpn_targets
        self._seed = seed
        self._max_objects = max(max(len(labels) for labels in dataset._label_cache), 1)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass over the data set."""
        return len(self._dataset) // self._batch_size

    def batches(self, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of steps first, first + 1, ...; a thread prepares the next two."""
        with ThreadPoolExecutor(max_workers=1) as worker:
            pending = deque(worker.submit(self._batch, first + ahead) for ahead in range(2))
            for step in count(first + 2):
                batch = pending.popleft().result()
                pending.append(worker.submit(self._batch, step))
                yield batch

    def _batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        order = np.random.default_rng([self._seed, 0, epoch]).permutation(len(self._dataset))
        rng = np.random.default_rng([self._seed, 1, step])
        chosen = order[place * self._batch_size : (place + 1) * self._batch_size]
        images, labels = zip(*(self._augmented(int(index), rng) for index in chosen))
        padded = tuple(
            -(-max(image.shape[axis] for image in images) // self._divisor) * self._divisor
            for axis in (0, 1)
        )
        data = np.zeros((len(images), 3, *padded), np.float32)
        boxes = np.full((len(images), self._max_objects, 6), -1, np.float32)
        rpn = []
        for row, (image, label) in enumerate(zip(images, labels)):
            height, width = image.shape[:2]
            data[row, :, :height, :width] = normalise(image)
            boxes[row, : len(label)] = label
            rpn.append(self._rpn_targets(label, (height, width), padded, rng))
        return Batch(data, boxes, *(np.stack(part) for part in zip(*rpn)))

    def _augmented(self, index: int, rng: np.random.Generator) -> tuple:
        image, labels, _ = load_image(self._dataset, index, *self._scale)
        if rng.random() < 0.5:
            image, labels = flip(image, labels)
        return image, labels
