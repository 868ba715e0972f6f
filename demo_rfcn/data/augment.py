# SPDX-License-Identifier: Apache-2.0
"""Augmentation of training images: flip, scale jitter, colour jitter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a training image, all drawn from the generator that is passed in."""

    flip_p: float = 0.5  # probability of a horizontal flip
    scale_jitter: tuple[float, float] = (1.0, 1.0)  # range of a factor on the short side
    color_jitter: float = 0.0  # largest relative change of brightness, contrast and saturation

    def short_side(self, short: int, rng: np.random.Generator) -> int:
        """Draw the short side of one image, pixels."""
        return max(int(round(short * rng.uniform(*self.scale_jitter))), 1)

    def __call__(
        self, image: np.ndarray, labels: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Change a scaled image (H, W, 3) uint8 and its labels (M, 6)."""
        if rng.random() < self.flip_p:
            image, labels = flip(image, labels)
        if self.color_jitter:
            image = jitter_colour(image, self.color_jitter, rng)
        return image, labels


def flip(image: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mirror an image and its (M, 6) labels left to right; box ends are inclusive pixels."""
    labels = labels.copy()
    labels[:, [0, 2]] = image.shape[1] - 1 - labels[:, [2, 0]]
    return image[:, ::-1], labels


def jitter_colour(image: np.ndarray, strength: float, rng: np.random.Generator) -> np.ndarray:
    """Scale the brightness, the contrast and the saturation of an (H, W, 3) uint8 image."""
    brightness, contrast, saturation = rng.uniform(1 - strength, 1 + strength, 3)
    pixels = image.astype(np.float32) * brightness
    pixels = (pixels - pixels.mean()) * contrast + pixels.mean()
    grey = pixels.mean(axis=2, keepdims=True)
    pixels = (pixels - grey) * saturation + grey
    return np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
