# SPDX-License-Identifier: Apache-2.0
"""Bins as boxes for RoiAlign, which then samples at the same positions as the kernels."""

from __future__ import annotations

import operator
from typing import Any, Callable, NamedTuple

import numpy as np

from ..graph import Tensor
from .arithmetic import bases, on_map, positions, product, quotient
from .boxes import align, axes_of, bin_boxes, bin_images, group_images, join_bins


class SampleAxis(NamedTuple):
    """One axis of the boxes split into bins, (K, 1) each: core/geometry/samples.h."""

    start: Tensor
    length: Tensor
    bin: Tensor


def sample_axes(box: Tensor, scale: float, aligned: bool, pooled: tuple) -> list[SampleAxis]:
    """The axes y and x."""
    found = []
    for edges, bins in zip(axes_of(box), pooled):
        start, end = (on_map(edge, scale, aligned) for edge in edges)
        length = end - start if aligned else (end - start).max(1)
        found.append(SampleAxis(start, length, quotient(length, bins)))
    return found


def align_bins(
    data: Tensor,
    image: Tensor,
    axes: list[SampleAxis],
    count: Tensor,
    pooled: tuple[int, int],
    sampling_ratio: int,
    group: tuple[int, int],
    dim: int,
) -> Tensor:
    """Bilinear pooling with a RoI for each bin: (K, dim, P, Q).

    ::

        axes -> edges of bins, along y and x -> bin_boxes --+
        image ------------------------------> bin_images ---+-> RoiAlign -> join_bins
        data -> group_images -------------------------------+      x share of samples on the map
    """
    (y0, y1, fy), (x0, x1, fx) = (
        _edges(axis, bins, sampling_ratio, data.size(2 + n))
        for n, (axis, bins) in enumerate(zip(axes, pooled))
    )
    boxes = bin_boxes([y0, x0], [y1, x1], pooled, count)
    images = bin_images(image, pooled, group, count)
    maps = group_images(data, dim, group[0] * group[1])
    bins = align(maps, boxes, images, 1, True, (1, 1), sampling_ratio)
    out = join_bins(bins, count, pooled, dim)
    if fy is None or fx is None:
        return out
    return out * (fy.unsqueeze(1, 3) * fx.unsqueeze(1, 2))


def _edges(
    axis: SampleAxis, bins: int, sampling_ratio: int, size: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Low and high edges of the bins along an axis, (K, bins) each, and a factor for the result.

    With an adaptive number of samples, the edges cover only samples that may lie on the map, which
    bounds the work for boxes of any size. The factor is the share of these samples.
    """
    base = bases(axis.start, axis.bin, bins)
    cells = size.cast(base.dtype)
    # Exceeds the rounding error of a bin's edges.
    margin = (cells + 8) * (4 * float(np.finfo(base.dtype).eps))
    if sampling_ratio > 0:
        low = base + _away_from_limits(base, axis, sampling_ratio, cells, margin) + 0.5
        return low, low + axis.bin, None
    return _Adaptive(axis, base, cells, margin).edges()


def _away_from_limits(
    base: Tensor, axis: SampleAxis, samples: int, cells: Tensor, margin: Tensor
) -> Tensor:
    """The shifts of the bins, (K, bins), that keep samples away from the limits of the map.

    The limits are -1 and the size of the map. For a sample close to a limit, rounding would decide
    on which side it lies.
    """
    position = positions(base, axis.bin, samples)
    shifts = []
    for limit, is_inside in ((-1, operator.ge), (cells, operator.le)):
        near = (position - limit).abs() < margin
        inward = margin if is_inside is operator.ge else -margin
        shifts.append(near.where(is_inside(position, limit).where(inward, -inward), 0))
    return (shifts[0] + shifts[1]).sum(2).min(margin).max(-margin)


class _Adaptive:
    """Bins along an axis with ceil(bin) samples each.

    ::

        bin -> samples -> step --+-> first and last sample on the map -> count -> share
        base --------------------+                 |
                                 centre <----------+
                                    |    extent, in which RoiAlign takes `count` samples
                                    +-> kept on the map -> low, high
    """

    def __init__(self, axis: SampleAxis, base: Tensor, cells: Tensor, margin: Tensor) -> None:
        self.bin, self.base, self.cells, self.margin = axis.bin, base, cells, margin

    def edges(self) -> tuple[Tensor, Tensor, Tensor]:
        self.samples = self.bin.ceil().max(1)
        last = self.samples - 1
        self.step = self.bin / self.samples
        self.has_multiple = self.samples > 1
        begin, end = self.samples_on_map(last)
        count, share = self.count_samples(begin, end)
        centre = self.base + ((begin + end) * 0.5 + 0.5) * self.step
        reach = self.reach(count)
        centre = self.clamp_to_map(centre, reach, count)
        return centre - reach, centre + reach, share

    def position(self, index: Tensor) -> Tensor:
        """The position of a sample."""
        return self.base + quotient(product(index + 0.5, self.bin), self.samples)

    def samples_on_map(self, last: Tensor) -> tuple[Tensor, Tensor]:
        """The first and the last sample on the map; both 0 if the bin has a single sample."""
        positive = self.has_multiple.where(self.step, 1)

        # Compute a guess, and correct it by one sample if rounding made it wrong.
        def limit(edge: Any, rounded: Callable, is_inside: Callable, inward: float) -> Tensor:
            guess = rounded((edge - self.base) / positive - 0.5)
            beyond = guess - inward
            guess = is_inside(self.position(beyond), edge).where(beyond, guess)
            return is_inside(self.position(guess), edge).where(guess, guess + inward)

        begin = limit(-1, Tensor.ceil, operator.ge, 1).max(0)
        end = limit(self.cells, Tensor.floor, operator.le, -1).min(last)
        begin = self.has_multiple.where(begin, 0)
        return begin, self.has_multiple.where(end, 0)

    def count_samples(self, begin: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """The number of samples that are pooled, and their share of all samples.

        If no sample is on the map, one is pooled with a share of 0.
        """
        count = (end - begin + 1).max(0)
        only = self.position(begin * 0)
        on = (only >= -1) & (only <= self.cells)
        share = self.has_multiple.where(count / self.samples, on.cast(count.dtype))
        return count.max(1), share

    def reach(self, count: Tensor) -> Tensor:
        """Half the size of a box in which RoiAlign takes `count` samples.

        RoiAlign takes as many samples as the bin has cells, rounded up. The size stays away from
        integers, so that the rounding of the edges has no effect.
        """
        extent = (count * self.step).max(count - 1 + self.margin).min(count - self.margin)
        return (count <= 1).where(0.5, extent) * 0.5

    def clamp_to_map(self, centre: Tensor, reach: Tensor, count: Tensor) -> Tensor:
        """The centre in RoiAlign's coordinates, shifted so that all samples are on the map."""
        inner = reach - reach / count + self.margin  # of the samples
        return centre.max(inner - 1).min(self.cells - inner) + 0.5
