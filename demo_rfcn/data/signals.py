# SPDX-License-Identifier: Apache-2.0
"""The `signals` data set: three of its six classes differ only in the position of a lit lamp.

Disk, square and triangle are ordinary shapes with a random surface and an outline. The three
signals are one housing with three lamps, of which the top, the middle or the bottom one is lit: the
same parts in another arrangement, which position-sensitive pooling can read. Images may be flipped.
"""

from __future__ import annotations

from typing import Tuple

import cv2
import numpy as np

Box = Tuple[int, int, int, int]  # x1, y1, x2, y2, edges in pixels
Object = Tuple[str, Box, bool]  # class name, box, difficult

CLASSES = ("disk", "square", "triangle", "signal_top", "signal_middle", "signal_bottom")
SIZE = 160  # pixels, height and width of an image
OBJECT_SIZE = (28, 97)  # pixels, longer side, half-open
MAX_OVERLAP = 0.45  # of the smaller of two boxes
DIFFICULT_BELOW = 0.5  # visible part of an object
_OUTLINE = 2  # pixels
_SMOOTH = 4  # sprites are drawn this many times larger, then averaged down


def paint(rng: np.random.Generator) -> tuple[np.ndarray, list[Object]]:
    """Paint one image with one to four objects; returns as `_compose`."""
    sprites = []
    for _ in range(rng.integers(1, 5)):
        name = CLASSES[rng.integers(len(CLASSES))]
        sprites.append((name, _sprite(rng, name, int(rng.integers(*OBJECT_SIZE)))))
    return _compose(rng, sprites)


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
    surface = _texture(rng, max(side // _SMOOTH, 8))
    canvas[..., :3] = cv2.resize(surface, (side, side), interpolation=cv2.INTER_NEAREST)
    edge = np.ones((3, 3), np.uint8)
    inner = cv2.erode(
        mask, edge, iterations=_OUTLINE * _SMOOTH, borderType=cv2.BORDER_CONSTANT, borderValue=(0,)
    )
    canvas[(mask == 1) & (inner == 0), :3] = _random_colour(rng, 0, 60)
    canvas[..., 3] = mask
    return canvas


def _signal(rng: np.random.Generator, name: str, height: int, width: int) -> np.ndarray:
    lit = CLASSES.index(name) - CLASSES.index("signal_top")
    canvas = np.zeros((height, width, 4), np.float32)
    canvas[..., :3] = _random_colour(rng, 20, 80)
    canvas[..., 3] = 1.0
    dark = _random_colour(rng, 0, 50) + 40
    bright = _random_colour(rng, 200, 256)
    radius = int(0.42 * min(width, height / 3))
    for lamp in range(3):
        centre = (width // 2, int((lamp + 0.5) * height / 3))
        colour = bright if lamp == lit else dark
        cv2.circle(canvas, centre, radius, (*colour.tolist(), 1.0), -1)
    return canvas


def _random_colour(rng: np.random.Generator, low: int = 0, high: int = 256) -> np.ndarray:
    """Return one RGB colour, float32 (3,), components in [low, high)."""
    return rng.integers(low, high, 3).astype(np.float32)


def _texture(rng: np.random.Generator, size: int) -> np.ndarray:
    """Paint noise, stripes, checkers or a gradient, (size, size, 3) float32, RGB in [0, 255]."""
    y, x = np.mgrid[:size, :size].astype(np.float32)
    angle = rng.uniform(0, np.pi)
    along = np.cos(angle) * x + np.sin(angle) * y
    across = np.cos(angle) * y - np.sin(angle) * x
    period = rng.uniform(8, 28)
    kind = rng.integers(4)
    if kind == 0:
        coarse = rng.random((size // 8 + 1, size // 8 + 1), dtype=np.float32)
        mix = cv2.resize(coarse, (size, size), interpolation=cv2.INTER_LINEAR)
    elif kind == 1:
        mix = (along % period < period / 2).astype(np.float32)
    elif kind == 2:
        mix = ((along % period < period / 2) ^ (across % period < period / 2)).astype(np.float32)
    else:
        mix = (along - along.min()) / (np.ptp(along) + 1e-6)
    patch = _random_colour(rng) * (1 - mix[..., None]) + _random_colour(rng) * mix[..., None]
    noise = rng.standard_normal((size, size, 1), dtype=np.float32)
    return np.clip(patch + rng.uniform(4, 14) * noise, 0, 255)


def _background(rng: np.random.Generator) -> np.ndarray:
    """Paint a textured image with thin clutter lines, (SIZE, SIZE, 3) float32, RGB in [0, 255]."""
    image = np.ascontiguousarray(_texture(rng, SIZE))
    for _ in range(rng.integers(2, 7)):
        start, end = rng.integers(0, SIZE, (2, 2)).tolist()
        colour, width = _random_colour(rng).tolist(), int(rng.integers(1, 4))
        cv2.line(image, start, end, colour, width, cv2.LINE_AA)
    return image


def _compose(
    rng: np.random.Generator, sprites: list[tuple[str, np.ndarray]]
) -> tuple[np.ndarray, list[Object]]:
    """Paste sprites at random places, later ones in front.

    A sprite is a class name and an (h, w, 4) float32 patch: RGB in [0, 255], opacity in [0, 1].
    Boxes overlap by at most `MAX_OVERLAP` of the smaller one; an object without such a place in 30
    tries is left out. Returns the image, (SIZE, SIZE, 3) uint8, RGB, and its objects: class name,
    box, and whether less than `DIFFICULT_BELOW` of it is visible.
    """
    image = _background(rng)
    owner = np.full((SIZE, SIZE), -1, np.int16)
    placed: list[tuple[str, Box, int]] = []
    for name, sprite in sprites:
        box = _find_place(rng, sprite.shape[:2], [entry[1] for entry in placed])
        if box is None:
            continue
        x1, y1, x2, y2 = box
        opacity = sprite[..., 3:]
        window = image[y1:y2, x1:x2]
        window += opacity * (sprite[..., :3] - window)
        solid = opacity[..., 0] > 0.5
        owner[y1:y2, x1:x2][solid] = len(placed)
        placed.append((name, box, int(solid.sum())))
    objects = [
        (name, box, bool((owner == index).sum() < DIFFICULT_BELOW * area))
        for index, (name, box, area) in enumerate(placed)
    ]
    return np.rint(image).astype(np.uint8), objects


def _find_place(rng: np.random.Generator, shape: tuple[int, ...], taken: list[Box]) -> Box | None:
    height, width = shape
    for _ in range(30):
        x1 = int(rng.integers(0, SIZE - width + 1))
        y1 = int(rng.integers(0, SIZE - height + 1))
        box = (x1, y1, x1 + width, y1 + height)
        if all(_overlap(box, other) <= MAX_OVERLAP for other in taken):
            return box
    return None


def _overlap(a: Box, b: Box) -> float:
    """Return the intersection as a part of the smaller of two boxes."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return max(width, 0) * max(height, 0) / min(areas)
