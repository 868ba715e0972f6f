# SPDX-License-Identifier: Apache-2.0
"""The `signals` data set: three of its six classes differ only in the position of a lit lamp.

Disk, square and triangle are ordinary shapes with a random surface and an outline. The three
signals are one housing with three lamps, of which the top, the middle or the bottom one is lit: the
same parts in another arrangement, which position-sensitive pooling can read. Images may be flipped.
"""

from __future__ import annotations

import cv2
import numpy as np

from . import painting

CLASSES = ("disk", "square", "triangle", "signal_top", "signal_middle", "signal_bottom")
OBJECT_SIZE = (28, 97)  # pixels, longer side, half-open
_OUTLINE = 2  # pixels
_SMOOTH = 4  # sprites are drawn this many times larger, then averaged down


def paint(rng: np.random.Generator) -> tuple[np.ndarray, list[painting.Object]]:
    """Paint one image with one to four objects; returns as `painting.compose`."""
    sprites = []
    for _ in range(rng.integers(1, 5)):
        name = CLASSES[rng.integers(len(CLASSES))]
        sprites.append((name, _sprite(rng, name, int(rng.integers(*OBJECT_SIZE)))))
    return painting.compose(rng, sprites)


def _sprite(rng: np.random.Generator, name: str, side: int) -> np.ndarray:
    """Draw one object, (h, w, 4) float32 with max(h, w) = side and no transparent border."""
    height, width = side, side
    if name.startswith("signal"):
        width = int(round(side * rng.uniform(0.42, 0.55)))
        canvas = _signal(rng, name, height * _SMOOTH, width * _SMOOTH)
    else:
        canvas = _shape(rng, name, side * _SMOOTH)
    return cv2.resize(canvas, (width, height), interpolation=cv2.INTER_AREA)


def _shape(rng: np.random.Generator, name: str, side: int) -> np.ndarray:
    canvas = np.zeros((side, side, 4), np.float32)
    mask = np.zeros((side, side), np.uint8)
    last = side - 1
    if name == "disk":
        cv2.circle(mask, (side // 2, side // 2), side // 2, (1,), -1)
    elif name == "square":
        mask[:] = 1
    else:
        corners = np.array([[0, last], [last, last], [int(rng.uniform(0.3, 0.7) * last), 0]])
        cv2.fillPoly(mask, [corners.astype(np.int32)], (1,))
    surface = painting.texture(rng, max(side // _SMOOTH, 8))
    canvas[..., :3] = cv2.resize(surface, (side, side), interpolation=cv2.INTER_NEAREST)
    edge = np.ones((3, 3), np.uint8)
    inner = cv2.erode(
        mask, edge, iterations=_OUTLINE * _SMOOTH, borderType=cv2.BORDER_CONSTANT, borderValue=(0,)
    )
    canvas[(mask == 1) & (inner == 0), :3] = painting.random_colour(rng, 0, 60)
    canvas[..., 3] = mask
    return canvas


def _signal(rng: np.random.Generator, name: str, height: int, width: int) -> np.ndarray:
    lit = CLASSES.index(name) - CLASSES.index("signal_top")
    canvas = np.zeros((height, width, 4), np.float32)
    canvas[..., :3] = painting.random_colour(rng, 20, 80)
    canvas[..., 3] = 1.0
    dark = painting.random_colour(rng, 0, 50) + 40
    bright = painting.random_colour(rng, 200, 256)
    radius = int(0.42 * min(width, height / 3))
    for lamp in range(3):
        centre = (width // 2, int((lamp + 0.5) * height / 3))
        colour = bright if lamp == lit else dark
        cv2.circle(canvas, centre, radius, (*colour.tolist(), 1.0), -1)
    return canvas
