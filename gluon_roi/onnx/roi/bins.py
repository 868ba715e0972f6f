# SPDX-License-Identifier: Apache-2.0
"""Bins of bilinear samples as boxes that RoiAlign samples at the same positions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import Graph
from .arithmetic import bases, on_map, positions, product, quotient
from .boxes import align, axes_of, bin_boxes, bin_images, group_images, join_bins


class SampleAxis(NamedTuple):
    """One axis of the boxes split into bins, (K, 1) each: core/geometry/samples.h."""

    start: str
    length: str
    bin: str


def sample_axes(
    g: Graph, box: str, scale: float, aligned: bool, pooled: tuple, dtype: Any
) -> list[SampleAxis]:
    """The axes y and x."""
    found = []
    for (low, high), bins in zip(axes_of(g, box), pooled):
        start, end = (on_map(g, edge, scale, aligned, dtype) for edge in (low, high))
        length = g("Sub", end, start)
        if not aligned:
            length = g("Max", length, np.array(1, dtype))
        found.append(SampleAxis(start, length, quotient(g, length, np.array(bins, dtype), dtype)))
    return found


def align_bins(
    g: Graph,
    data: str,
    image: str,
    axes: list[SampleAxis],
    count: str,
    pooled: tuple[int, int],
    sampling_ratio: int,
    group: tuple[int, int],
    dim: int,
    dtype: Any,
) -> str:
    """Bilinear pooling with a RoI for each bin: (K, dim, P, Q).

    ::

        axes -> edges of bins, along y and x -> bin_boxes --+
        image ------------------------------> bin_images ---+-> RoiAlign -> join_bins
        data -> group_images -------------------------------+      x share of samples on the map
    """
    (y0, y1, fy), (x0, x1, fx) = (
        _edges(g, axis, bins, sampling_ratio, g.size(data, 2 + n), dtype)
        for n, (axis, bins) in enumerate(zip(axes, pooled))
    )
    boxes = bin_boxes(g, [y0, x0], [y1, x1], pooled, count)
    images = bin_images(g, image, pooled, group, count)
    maps = group_images(g, data, dim, group[0] * group[1])
    bins = align(g, maps, boxes, images, dtype, 1, True, (1, 1), sampling_ratio)
    out = join_bins(g, bins, count, pooled, dim)
    if fy is None or fx is None:
        return out
    share = g("Mul", g.unsqueeze(fy, 1, 3), g.unsqueeze(fx, 1, 2))
    return g("Mul", out, share)


def _edges(
    g: Graph, axis: SampleAxis, bins: int, sampling_ratio: int, size: str, dtype: Any
) -> tuple[str, str, str | None]:
    """Low and high edges of the bins along an axis, (K, bins) each, and a factor of the result.

    With an adaptive number of samples, the edges cover only samples that may lie on the map, which
    bounds the work for boxes of any size. The factor is the share of these samples.
    """
    base = bases(g, axis.start, axis.bin, bins, dtype)
    cells = g.cast(size, dtype)
    # Larger than the rounding error of a bin's edges.
    margin = g(
        "Mul",
        g("Add", cells, np.array(8, dtype)),
        np.array(4 * float(np.finfo(dtype).eps), dtype),
    )
    if sampling_ratio > 0:
        away = _away_from_limits(g, base, axis, sampling_ratio, cells, margin, dtype)
        low = g("Add", g("Add", base, away), np.array(0.5, dtype))
        return low, g("Add", low, axis.bin), None
    return _Adaptive(g, axis, base, cells, margin, dtype).edges()


def _away_from_limits(
    g: Graph, base: str, axis: SampleAxis, samples: int, cells: str, margin: str, dtype: Any
) -> str:
    """How far to move bins, (K, bins), to keep samples away from the limits of the map.

    The limits are -1 and the size of the map. Rounding would decide on which side of them a sample
    lies that is very near.
    """
    position = positions(g, base, axis.bin, samples, dtype)
    moves = []
    for limit, comparison in ((np.array(-1, dtype), "GreaterOrEqual"), (cells, "LessOrEqual")):
        near = g("Less", g("Abs", g("Sub", position, limit)), margin)
        inward = margin if comparison == "GreaterOrEqual" else g("Neg", margin)
        move = g("Where", g(comparison, position, limit), inward, g("Neg", inward))
        moves.append(g("Where", near, move, np.array(0, dtype)))
    total = g("ReduceSum", g("Add", *moves), np.array([2]), keepdims=0)
    return g("Max", g("Min", total, margin), g("Neg", margin))


class _Adaptive:
    """Bins along an axis with ceil(bin) samples each.

    ::

        bin -> samples -> step --+-> first and last sample on the map -> count -> share
        base --------------------+                 |
                                 centre <----------+
                                    |    extent, in which RoiAlign takes `count` samples
                                    +-> kept on the map -> low, high
    """

    def __init__(
        self, g: Graph, axis: SampleAxis, base: str, cells: str, margin: str, dtype: Any
    ) -> None:
        self.g, self.bin, self.base, self.cells, self.margin = g, axis.bin, base, cells, margin
        self.dtype = dtype
        self.half, self.one = self.number(0.5), self.number(1)

    def number(self, value: float) -> np.ndarray:
        return np.array(value, self.dtype)

    def edges(self) -> tuple[str, str, str]:
        g = self.g
        self.samples = g("Max", g("Ceil", self.bin), self.one)
        last = g("Sub", self.samples, self.one)
        self.step = g("Div", self.bin, self.samples)
        self.several = g("Greater", self.samples, self.one)
        begin, end = self.on_the_map(last)
        count, share = self.counted(begin, end)
        middle = g("Add", g("Mul", g("Add", begin, end), self.half), self.half)
        centre = g("Add", self.base, g("Mul", middle, self.step))
        reach = self.reach(count)
        centre = self.kept_on_the_map(centre, reach, count)
        return g("Sub", centre, reach), g("Add", centre, reach), share

    def position(self, index: str) -> str:
        """The position of a sample."""
        g = self.g
        offset = product(g, g("Add", index, self.half), self.bin, self.dtype)
        return g("Add", self.base, quotient(g, offset, self.samples, self.dtype))

    def on_the_map(self, last: str) -> tuple[str, str]:
        """The first and the last sample on the map; 0 and 0 if there is a single one."""
        g = self.g
        positive = g("Where", self.several, self.step, self.one)

        # A guess, or its neighbour if rounding made the guess wrong.
        def limit(edge: Any, rounding: str, inside: str, inward: float) -> str:
            place = g("Sub", g("Div", g("Sub", edge, self.base), positive), self.half)
            guess = g(rounding, place)
            beyond = g("Sub", guess, self.number(inward))
            guess = g("Where", g(inside, self.position(beyond), edge), beyond, guess)
            return g(
                "Where",
                g(inside, self.position(guess), edge),
                guess,
                g("Add", guess, self.number(inward)),
            )

        begin = g("Max", limit(self.number(-1), "Ceil", "GreaterOrEqual", 1), self.number(0))
        end = g("Min", limit(self.cells, "Floor", "LessOrEqual", -1), last)
        begin = g("Where", self.several, begin, self.number(0))
        return begin, g("Where", self.several, end, self.number(0))

    def counted(self, begin: str, end: str) -> tuple[str, str]:
        """How many samples are pooled, and their share of all samples.

        If no sample is on the map, one is pooled with a share of 0.
        """
        g = self.g
        count = g("Max", g("Add", g("Sub", end, begin), self.one), self.number(0))
        only = self.position(g("Mul", begin, self.number(0)))
        on = g(
            "And", g("GreaterOrEqual", only, self.number(-1)), g("LessOrEqual", only, self.cells)
        )
        share = g("Where", self.several, g("Div", count, self.samples), g.cast(on, self.dtype))
        return g("Max", count, self.one), share

    def reach(self, count: str) -> str:
        """Half the size of a box in which RoiAlign takes `count` samples.

        RoiAlign takes as many as the bin has cells, rounded up. The size keeps away from whole
        numbers, so that the rounding of the edges does not decide.
        """
        g = self.g
        extent = g("Mul", count, self.step)
        extent = g(
            "Min",
            g("Max", extent, g("Add", g("Sub", count, self.one), self.margin)),
            g("Sub", count, self.margin),
        )
        single = g("LessOrEqual", count, self.one)
        return g("Mul", g("Where", single, self.half, extent), self.half)

    def kept_on_the_map(self, centre: str, reach: str, count: str) -> str:
        """The centre in RoiAlign's coordinates, moved so that all samples are on the map."""
        g = self.g
        reach_of_samples = g("Sub", reach, g("Div", reach, count))
        inner = g("Add", reach_of_samples, self.margin)
        centre = g("Max", centre, g("Sub", inner, self.one))
        centre = g("Min", centre, g("Sub", self.cells, inner))
        return g("Add", centre, self.half)
