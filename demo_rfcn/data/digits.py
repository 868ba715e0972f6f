# SPDX-License-Identifier: Apache-2.0
"""The `digits` data set: real handwriting on the backgrounds of `signals`.

The digits are scikit-learn's copy of the UCI handwritten digits, 8 x 8 pixels, enlarged. A six and
a nine differ only in arrangement. Images must not be flipped.
"""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from ..errors import InputError
from . import painting

CLASSES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OBJECT_SIZE = (32, 81)  # pixels, height, half-open


@lru_cache(maxsize=1)
def handwriting() -> tuple[np.ndarray, np.ndarray]:
    """Return images (1797, 8, 8) in [0, 16] and their digits (1797,)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        needed = "'digits' needs scikit-learn; run 'pip install scikit-learn'"
        raise InputError(f"data: {needed}") from error
    bunch = load_digits()
    return bunch.images.astype(np.float32), bunch.target


def paint(rng: np.random.Generator) -> tuple[np.ndarray, list[painting.Object]]:
    """Paint one image with one to four digits; returns as `painting.compose`."""
    images, digits = handwriting()
    sprites = []
    for index in rng.integers(len(images), size=rng.integers(1, 5)):
        sprite = _sprite(rng, images[index], int(rng.integers(*OBJECT_SIZE)))
        sprites.append((CLASSES[digits[index]], sprite))
    return painting.compose(rng, sprites)


def _sprite(rng: np.random.Generator, image: np.ndarray, height: int) -> np.ndarray:
    """Enlarge one digit to a height, cut to its ink; returns (h, w, 4) float32."""
    large = cv2.resize(image / 16, (2 * height, 2 * height), interpolation=cv2.INTER_CUBIC)
    ink = np.clip(3 * large - 1, 0, 1)
    rows, columns = np.flatnonzero(ink.max(1) > 0.5), np.flatnonzero(ink.max(0) > 0.5)
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    width = max(round(height * ink.shape[1] / ink.shape[0]), 8)
    ink = cv2.resize(ink, (width, height), interpolation=cv2.INTER_AREA)
    colour = np.full((height, width, 3), painting.random_colour(rng, 200, 256))
    shadow = cv2.dilate(ink, np.ones((3, 3), np.uint8))
    opacity = np.maximum(ink, shadow)[..., None]
    return np.concatenate([colour * ink[..., None] / np.maximum(opacity, 1e-6), opacity], axis=2)
