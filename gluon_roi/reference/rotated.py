# SPDX-License-Identifier: Apache-2.0
"""RotatedROIAlign: bilinear samples of a rotated box."""

from __future__ import annotations

import math
from typing import Any, Iterator, NamedTuple

import numpy as np

from . import common

__all__ = ["rotated_roi_align", "rotated_roi_align_backward"]

#: A box with more samples than this is computed bin by bin, to limit memory.
MAX_SAMPLES_AT_ONCE = 100_000


class _Side(NamedTuple):
    """One side of a box in the frame of the box, split into bins."""

    bins: int
    start: Any  # of bin 0, relative to the centre of the box
    bin_size: Any
    samples_per_bin: float
    enlarged: bool  # whether it was enlarged to the minimum size

    def samples(self, bins: range, low: float, high: float, reach: float) -> tuple[Any, Any, Any]:
        """Samples of some bins: positions, fractions of the side (-1/2 to 1/2), and bin indices.

        If there are many, only samples that may lie in [low, high] are returned; `reach` is an
        upper bound of all positions.
        """
        real = type(self.start)
        positions, fractions, bin_indices = [], [], []
        for q in bins:
            begin = self.start + real(q) * self.bin_size
            indices = common.visible_samples(
                begin, self.bin_size, self.samples_per_bin, low, high, reach
            )
            i = indices.astype(real)
            positions.append(begin + (i + real(0.5)) * self.bin_size / real(self.samples_per_bin))
            fractions.append((q + (indices + 0.5) / self.samples_per_bin) / self.bins - 0.5)
            bin_indices.append(np.full(len(indices), q))
        return np.concatenate(positions), np.concatenate(fractions), np.concatenate(bin_indices)


class _Taps(NamedTuple):
    """Pairs of a sample and a cell that it reads, with their weights."""

    bins: np.ndarray  # (n,): p * Q + q
    cells: np.ndarray  # (n,): row * W + column
    weights: np.ndarray  # (n,), weights in the mean over the bin
    slopes: np.ndarray  # (n, 5): derivatives of weights with respect to cx, cy, w, h, theta


class _Box:
    """A rotated box on a map, in the order of operations of MXNet and detectron2."""

    def __init__(
        self, call: common.Call, box: np.ndarray, aligned: bool, sampling_ratio: int, geometry: type
    ):
        real: Any = geometry
        self.call, self.real = call, real
        with np.errstate(over="ignore"):
            scale, offset = real(call.scale), real(0.5 if aligned else 0)
            w, h = (common.saturate(real(side) * scale) for side in box[2:4])
            self.x, self.y = (common.saturate(real(c) * scale - offset) for c in box[:2])
        sides = []
        for length, bins in ((w, call.pooled[1]), (h, call.pooled[0])):
            length, *side = common.split_side(length, bins, aligned, sampling_ratio)
            sides.append(_Side(bins, -length / real(2), *side))
        self.u, self.v = sides
        # Multiples of 360 degrees are removed before the angle is rounded.
        theta = float(real(math.fmod(float(real(box[4])), 360.0) * math.pi / 180))
        self.cos, self.sin = real(math.cos(theta)), real(math.sin(theta))

    def taps(self) -> Iterator[_Taps]:
        """The taps of all bins, a group of bins at a time."""
        rows, columns = (range(bins) for bins in self.call.pooled)
        if (
            self.u.samples_per_bin * len(columns) * self.v.samples_per_bin * len(rows)
            <= MAX_SAMPLES_AT_ONCE
        ):
            yield self._taps(rows, columns)
            return
        for p, q in common.bins_of(self.call.pooled):
            yield self._taps(range(p, p + 1), range(q, q + 1))

    def _taps(self, rows: range, columns: range) -> _Taps:
        real, (height, width) = self.real, self.call.data.shape[2:]
        # The corners of the map, in the frame of the box.
        across, down = np.meshgrid(
            np.array([-1.0, width]) - float(self.x), np.array([-1.0, height]) - float(self.y)
        )
        u_map = across * float(self.cos) - down * float(self.sin)
        v_map = across * float(self.sin) + down * float(self.cos)
        reach = np.abs([u_map, v_map]).max() + abs(float(self.x)) + abs(float(self.y))
        reach += abs(float(self.u.start)) + abs(float(self.v.start))
        along_u = self.u.samples(columns, u_map.min(), u_map.max(), reach)
        along_v = self.v.samples(rows, v_map.min(), v_map.max(), reach)
        grids = (np.meshgrid(a, b) for a, b in zip(along_u, along_v))
        (u, v), (u_fraction, v_fraction), (q, p) = grids
        x = u * self.cos + v * self.sin + self.x
        y = v * self.cos - u * self.sin + self.y
        # Samples outside the map are 0, and count in the divisor.
        inside = (x >= -1) & (x <= width) & (y >= -1) & (y <= height)
        x, y, u, v, u_fraction, v_fraction, q, p = (
            a[inside] for a in (x, y, u, v, u_fraction, v_fraction, q, p)
        )

        def axis(at: Any, size: int) -> tuple[Any, Any, Any]:
            """Lower and higher cell of each sample, their weights, and the weights' derivatives."""
            low, high, share, varies = common.bilinear(at, size)
            weights = np.stack([real(1) - share, share]).astype(float)
            return np.stack([low, high]), weights, np.stack([-1.0 * varies, 1.0 * varies])

        cell_y, wy, by_y = axis(y, height)
        cell_x, wx, by_x = axis(x, width)
        u, v, zeros = u.astype(float), v.astype(float), np.zeros(len(u))
        scale, c, s = self.call.scale, float(self.cos), float(self.sin)
        du = scale * u_fraction * (not self.u.enlarged)
        dv = scale * v_fraction * (not self.v.enlarged)
        radians_per_degree = math.pi / 180
        dx = np.stack(
            [zeros + scale, zeros, du * c, dv * s, (v * c - u * s) * radians_per_degree], -1
        )
        dy = np.stack(
            [zeros, zeros + scale, -du * s, dv * c, -(u * c + v * s) * radians_per_degree], -1
        )
        count, corners = (
            self.u.samples_per_bin * self.v.samples_per_bin,
            [(0, 0), (0, 1), (1, 0), (1, 1)],
        )
        slopes = [
            (wy[i] * by_x[j])[:, None] * dx + (by_y[i] * wx[j])[:, None] * dy for i, j in corners
        ]
        return _Taps(
            np.tile(p * self.call.pooled[1] + q, 4),
            np.concatenate([cell_y[i] * width + cell_x[j] for i, j in corners]),
            np.concatenate([wy[i] * wx[j] for i, j in corners]) / count,
            np.concatenate(slopes) / count,
        )


class _Rotated(common.Operator):
    def __init__(self, call: common.Call, *options: Any) -> None:
        super().__init__(call, common.all_channels(call))
        self.options = options  # aligned, sampling_ratio, geometry

    def taps(self, k: int) -> Iterator[_Taps]:
        if 0 not in self.call.data.shape[2:]:
            yield from _Box(self.call, self.call.boxes[k], *self.options).taps()

    def pool(self, k: int, out: np.ndarray) -> None:
        flat, sums = (a.reshape(len(a), -1) for a in (self.call.maps(k), out))
        for taps in self.taps(k):
            read = taps.weights != 0
            values = flat[:, taps.cells[read]] * taps.weights[read]
            for total, value in zip(sums, values):
                total += np.bincount(taps.bins[read], value, sums.shape[1])

    def pool_backward(self, k: int, d_out: np.ndarray, d_maps: np.ndarray) -> np.ndarray:
        flat, d_flat, d_bins = (a.reshape(len(a), -1) for a in (self.call.maps(k), d_maps, d_out))
        d_box = np.zeros(5)
        for taps in self.taps(k):
            shares = d_bins[:, taps.bins] * taps.weights
            for total, share in zip(d_flat, shares):
                total += np.bincount(taps.cells, share, len(total))
            read = taps.slopes.any(axis=1)
            d_weights = (d_bins[:, taps.bins[read]] * flat[:, taps.cells[read]]).sum(axis=0)
            d_box += d_weights @ taps.slopes[read]
        return d_box


@common.operator
def rotated_roi_align(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> _Rotated:
    """Mean of bilinear samples in each bin of each rotated box (Ma 2018).

    In the frame of the box the samples are those of :func:`roi_align` for a box centred at the
    origin. They are then rotated by theta, counter-clockwise in an image whose y points down, and
    translated to the centre.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, sampling_ratio, aligned, rois_num
        As in :func:`gluon_roi.nd.RotatedROIAlign`.
    geometry : type, optional
        The type of positions; ``numpy.float32`` rounds them as the operators do for float16 and
        float32 data.

    Returns
    -------
    numpy.ndarray, shape (K, C, P, Q), float64

    Raises
    ------
    ValueError
        A wrong shape, size, scale, convention, number of channels or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> rotated_roi_align(ramp, [[0, 1.5, 1.5, 2, 2, 90]], 2, 1.).round(6)
    array([[[[ 9.,  5.],
             [10.,  6.]]]])
    """
    name = "RotatedROIAlign"
    call = common.check(name, data, rois, pooled_size, spatial_scale, rois_num, coordinates=5)
    return _Rotated(call, aligned, sampling_ratio, geometry)


@common.backward_of(rotated_roi_align)
def rotated_roi_align_backward(d_out: Any, align: _Rotated) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`rotated_roi_align` with respect to data and to rois.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, sampling_ratio, aligned, rois_num, geometry
        As in :func:`rotated_roi_align`.

    Returns
    -------
    d_data, d_rois : numpy.ndarray, float64
        As in :func:`roi_align_backward`; the gradient of theta is per degree.

    Raises
    ------
    ValueError
        As in :func:`rotated_roi_align`.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> d_data, d_rois = rotated_roi_align_backward(
    ...     np.ones((1, 1, 1, 1)), ramp, [[0, 1.5, 1, 1, 1, 0]], 1, 1.)
    >>> d_data[0, 0, 1].tolist(), d_rois.tolist()
    ([0.0, 0.5, 0.5, 0.0], [[0.0, 1.0, 4.0, 0.0, 0.0, 0.0]])
    """
    return align.backward(d_out)
