# SPDX-License-Identifier: Apache-2.0
"""BoxIoU: the overlap of pairs of boxes."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from .common import as_numpy

__all__ = ["box_iou"]


def box_iou(
    lhs: Any,
    rhs: Any,
    format: str = "corner",
    mode: str = "iou",
    aligned: bool = False,
    geometry: Any = "float64",
) -> np.ndarray:
    """:class:`gluon_roi.BoxIoU` in NumPy.

    Parameters
    ----------
    lhs, rhs, format, mode, aligned
        As in :func:`gluon_roi.nd.BoxIoU`.
    geometry : type
        Type in which upright boxes are computed.

    Returns
    -------
    numpy.ndarray, float64
        Of shape lhs.shape[:-1] + rhs.shape[:-1], or lhs.shape[:-1] if aligned.

    Raises
    ------
    ValueError
        The last dimension of lhs or rhs is not 4, or 5 for rotated boxes.

    Examples
    --------
    >>> box_iou([[0, 0, 4, 4]], [[0, 0, 4, 5], [9, 9, 9, 9]]).tolist()
    [[0.8, 0.0]]
    """
    rotated = format == "rotated"
    width = 5 if rotated else 4
    lhs, rhs = (as_numpy(a).astype("float64" if rotated else geometry) for a in (lhs, rhs))
    for name, boxes in (("lhs", lhs), ("rhs", rhs)):
        if boxes.ndim < 2 or boxes.shape[-1] != width:
            raise ValueError(f"BoxIoU: {name} has shape {boxes.shape}, expected (..., {width})")
    shape = lhs.shape[:-1] if aligned else lhs.shape[:-1] + rhs.shape[:-1]
    one, other = lhs.reshape(-1, width), rhs.reshape(-1, width)
    if not rotated:
        one, other = (upright(boxes, format == "center") for boxes in (one, other))
    measure = rotated_overlap if rotated else upright_overlap
    if aligned:
        values = [measure(a, b, mode) for a, b in zip(one, other)]
    else:
        values = [measure(a, b, mode) for a in one for b in other]
    return np.array(values, "float64").reshape(shape)


def upright(values: np.ndarray, center: bool) -> list[tuple]:
    """(x1, y1, x2, y2, area) of each row of an array (n, 4)."""
    boxes = []
    for a, b, c, d in values:
        width, height = (c, d) if center else (c - a, d - b)
        area = values.dtype.type(0) if width < 0 or height < 0 else width * height
        if np.isnan([a, b, c, d]).any():
            area = values.dtype.type(np.nan)
        if center:
            a, b, c, d = a - width / 2, b - height / 2, a + width / 2, b + height / 2
        boxes.append((a, b, c, d, area))
    return boxes


def intersection(one: Sequence, other: Sequence, unit: int = 0) -> Any:
    """Intersection area of two upright boxes; a box from x1 to x2 is x2 - x1 + unit wide."""
    width = min(one[2], other[2]) - max(one[0], other[0]) + unit
    height = min(one[3], other[3]) - max(one[1], other[1]) + unit
    return max(width, 0) * max(height, 0)


def upright_overlap(one: Sequence, other: Sequence, mode: str = "iou") -> float:
    """Overlap of two boxes of :func:`upright`, from 0 to 1."""
    with np.errstate(all="ignore"):
        area = intersection(one, other)
        return divide_areas(area, one[4] if mode == "iof" else one[4] + other[4] - area)


def divide_areas(area: Any, divisor: Any) -> float:
    """Quotient of two areas, clamped to [0, 1]; 0 if it is NaN."""
    with np.errstate(all="ignore"):
        quotient = float(np.divide(area, divisor))
    if not area > 0 or np.isnan(quotient):
        return 0.0
    return min(quotient, 1.0) if quotient >= 0 else 1.0


def rotated_area(box: Any) -> float:
    """Area of a rotated box: NaN if a number is NaN or the angle infinite, 0 for negative sides."""
    if np.isnan(box).any() or np.isinf(box[4]):
        return float("nan")
    width, height = float(box[2]), float(box[3])
    return 0.0 if width < 0 or height < 0 else width * height


def rotated_intersection(one: Any, other: Any) -> float:
    """Intersection area of two rotated boxes.

    The first box is clipped by the four half-planes of the second, with the centre of the first as
    the origin.
    """
    areas = rotated_area(one), rotated_area(other)
    if not all(0 < area < np.inf for area in areas) or not np.isfinite([*one, *other]).all():
        return 0.0
    polygon, edges = _corners(one, one[:2]), _corners(other, one[:2])
    for i in range(4):
        polygon = _clip_polygon(polygon, edges[i - 1], edges[i])
    x, y = np.array(polygon).reshape(-1, 2).T
    if len(x) < 3:
        return 0.0
    x, y = x - x[0], y - y[0]
    area = float(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2
    return min(max(area, 0.0), *areas)


def rotated_overlap(one: Any, other: Any, mode: str = "iou") -> float:
    """Overlap of two rotated boxes, from 0 to 1."""
    area = rotated_intersection(one, other)
    first = rotated_area(one)
    return divide_areas(area, first if mode == "iof" else first + rotated_area(other) - area)


def _corners(box: Any, origin: Any) -> list[tuple]:
    """Corners of a rotated box, in clockwise order in an image whose y points down."""
    degrees = np.fmod(box[4], 360.0)
    quarters = np.round(degrees / 90)
    rest = np.radians(degrees - 90 * quarters)
    c, s = np.cos(rest), np.sin(rest)
    for _ in range(int(quarters) % 4):
        c, s = -s, c
    x, y = box[0] - origin[0], box[1] - origin[1]
    half = box[2] / 2, box[3] / 2
    signs = ((-1, -1), (1, -1), (1, 1), (-1, 1))
    corners = [(i * half[0], j * half[1]) for i, j in signs]
    return [(x + u * c + v * s, y + v * c - u * s) for u, v in corners]


def _clip_polygon(polygon: list[tuple], begin: tuple, end: tuple) -> list[tuple]:
    """The part of a polygon on the inner side of an edge (Sutherland-Hodgman)."""
    dx, dy = end[0] - begin[0], end[1] - begin[1]
    sides = [dx * (y - begin[1]) - dy * (x - begin[0]) for x, y in polygon]
    rest = []
    for i, (x, y) in enumerate(polygon):
        (before_x, before_y), side, before = polygon[i - 1], sides[i], sides[i - 1]
        if (side < 0) != (before < 0):
            share = before / (before - side)
            rest.append((before_x + (x - before_x) * share, before_y + (y - before_y) * share))
        if side >= 0:
            rest.append((x, y))
    return rest
