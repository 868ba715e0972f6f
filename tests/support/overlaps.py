# SPDX-License-Identifier: Apache-2.0
"""Pairs of rotated boxes, and their overlaps in exact arithmetic. Needs nothing but NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

# ---- Exact arithmetic ----------------------------------------------------------------------------

#: Numbers are integers, in units of 2**-BITS: 60 decimal places.
BITS = 200
ONE = 1 << BITS
PI = 314159265358979323846264338327950288419716939937510582097494459230781640628620899
PI = (PI << BITS) // 10**80


def fixed(value: float) -> int:
    """A float, which is exact if it is float32, and within 2**-BITS in any case."""
    numerator, denominator = float(value).as_integer_ratio()
    return (numerator << BITS) // denominator


def times(a: int, b: int) -> int:
    return a * b >> BITS


def cosine_sine(degrees: float) -> tuple[int, int]:
    """Cosine and sine of an angle, reduced exactly; the series ends below 2**-BITS."""
    turned = Fraction(float(degrees)) % 360
    quarter = round(turned / 90)
    rest = turned - 90 * quarter
    x = PI * rest.numerator // (180 * rest.denominator)
    term, sums, n = ONE, [0, 0], 0
    while term:
        sums[n % 2] += term if n % 4 < 2 else -term
        n += 1
        term = times(term, x) // n
    c, s = sums
    return [(c, s), (-s, c), (-c, -s), (s, -c)][quarter % 4]


def corners(box: Any, origin: tuple[int, int]) -> list[tuple[int, int]]:
    """Corners of [cx, cy, w, h, degrees], counter-clockwise in an image whose y points down."""
    cx, cy, width, height = (fixed(value) for value in box[:4])
    c, s = cosine_sine(box[4])
    u = times(width, c) // 2, -times(width, s) // 2
    v = times(height, s) // 2, times(height, c) // 2
    x, y = cx - origin[0], cy - origin[1]
    return [
        (x + i * u[0] + j * v[0], y + i * u[1] + j * v[1])
        for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]


def clipped(
    polygon: list[tuple[int, int]], begin: tuple[int, int], end: tuple[int, int]
) -> list[tuple[int, int]]:
    """The part of a convex polygon on the inner side of a line from begin to end."""
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    sides = [dx * (y - begin[1]) - dy * (x - begin[0]) for x, y in polygon]
    rest = []
    for i, (x, y) in enumerate(polygon):
        (next_x, next_y), side, other = polygon[i - 1], sides[i], sides[i - 1]
        if (side < 0) != (other < 0):
            rest.append(
                (
                    x + (next_x - x) * side // (side - other),
                    y + (next_y - y) * side // (side - other),
                )
            )
        if side >= 0:
            rest.append((x, y))
    return rest


def exact_overlap(one: Any, other: Any) -> float:
    """Intersection over union of two rotated boxes with positive sides."""
    origin = fixed(one[0]), fixed(one[1])
    polygon, edges = corners(one, origin), corners(other, origin)
    for i in range(4):
        polygon = clipped(polygon, edges[i - 1], edges[i])
        if not polygon:
            return 0.0
    twice = 0
    for i, (x, y) in enumerate(polygon):
        twice += polygon[i - 1][0] * y - x * polygon[i - 1][1]
    common = max(twice // 2, 0)
    total = sum(fixed(box[2]) * fixed(box[3]) for box in (one, other)) - common
    return (common << 100) // total / 2.0**100


# ---- Pairs ---------------------------------------------------------------------------------------


def random_pairs(seed: int, count: int, dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rotated boxes (count, 5): ordinary and hostile ones in turn."""
    rng = np.random.RandomState(seed)
    kinds = len(HOSTILE) + 1
    one = np.empty((count, 5))
    one[:, :2] = rng.uniform(-50, 50, (count, 2))
    one[:, 2:4] = 10 ** rng.uniform(0, 2, (count, 2))
    one[:, 4] = rng.uniform(-400, 400, count)
    one[::5, 4] = 90 * rng.randint(-4, 5, len(one[::5]))
    # Sides from 1e-3 to 1e5, with ratios up to 1e6, and centres at 1e6.
    long = np.arange(count) % 3 == 1
    one[long, 2] = 10 ** rng.uniform(-3, 5, long.sum())
    ratio = 10 ** rng.uniform(-6, 6, long.sum())
    one[long, 3] = np.clip(one[long, 2] * ratio, 1e-3, 1e5)
    far = np.arange(count) % 7 == 3
    one[far, :2] += rng.choice([-1e6, 1e6], (far.sum(), 2))
    one = one.astype(dtype).astype("float64")
    other = one.copy()
    other[:, :2] += rng.uniform(-1, 1, (count, 2)) * one[:, 2:4]
    other[:, 2:4] *= 10 ** rng.uniform(-1, 1, (count, 2))
    other[:, 4] = rng.uniform(-400, 400, count)
    for kind, change in enumerate(HOSTILE):
        rows = np.arange(kind, count, kinds)
        other[rows] = one[rows]
        other[rows] = change(rng, other[rows])
    return one.astype(dtype), other.astype(dtype)


def _along(boxes: np.ndarray, u: Any, v: Any) -> np.ndarray:
    """Boxes shifted by u of their widths and v of their heights."""
    t = np.radians(boxes[:, 4])
    u, v = u * boxes[:, 2], v * boxes[:, 3]
    shifted = boxes.copy()
    shifted[:, 0] += u * np.cos(t) + v * np.sin(t)
    shifted[:, 1] += v * np.cos(t) - u * np.sin(t)
    return shifted


def _turned(boxes: np.ndarray, degrees: Any) -> np.ndarray:
    return boxes + np.multiply.outer(degrees * np.ones(len(boxes)), [0, 0, 0, 0, 1])


def _quarter(rng: Any, boxes: np.ndarray) -> np.ndarray:
    """The same boxes, with exchanged sides."""
    return _turned(boxes[:, [0, 1, 3, 2, 4]], 90)


def _parallel(rng: Any, boxes: np.ndarray) -> np.ndarray:
    """1e-7 to 1e-1 degrees away."""
    return _turned(boxes, 10 ** rng.uniform(-7, -1, len(boxes)) * rng.choice([-1, 1], len(boxes)))


def _nested(rng: Any, boxes: np.ndarray) -> np.ndarray:
    inside = boxes.copy()
    inside[:, 2:4] *= rng.uniform(0.01, 1, (len(boxes), 2))
    return inside


def _last_bits(rng: Any, boxes: np.ndarray) -> np.ndarray:
    """Every number next to the other box's, as float32."""
    away = rng.choice([-np.inf, np.inf], boxes.shape).astype("float32")
    return np.nextafter(boxes.astype("float32"), away).astype("float64")


#: How the second box of a pair follows from the first.
HOSTILE = (
    lambda rng, boxes: boxes,
    _quarter,
    lambda rng, boxes: _turned(boxes, 180),
    lambda rng, boxes: _turned(boxes, 360),
    lambda rng, boxes: _turned(boxes, 1e4),
    lambda rng, boxes: _along(boxes, 1, rng.uniform(-1, 1, len(boxes))),  # a shared edge
    lambda rng, boxes: _along(boxes, 1, 1),  # a shared corner
    lambda rng, boxes: _along(boxes, rng.uniform(-1, 1, len(boxes)), 0),  # edges on one line
    _nested,
    lambda rng, boxes: _along(_nested(rng, boxes), 0.1, 0.1),
    _parallel,
    lambda rng, boxes: _along(_parallel(rng, boxes), *rng.uniform(-1, 1, (2, len(boxes)))),
    lambda rng, boxes: _parallel(rng, _quarter(rng, boxes)),
    _last_bits,
)
