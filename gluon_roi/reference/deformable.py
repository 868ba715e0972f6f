# SPDX-License-Identifier: Apache-2.0
"""DeformablePSROIPool: bilinear samples in bins moved by offsets."""

from __future__ import annotations

import functools
from typing import Any, Callable, NamedTuple

import numpy as np

from .common import Call, Channels, as_numpy, bins_of, check, pair, position_sensitive, saturate

__all__ = ["deformable_ps_roi_pool", "deformable_ps_roi_pool_backward"]

NAME = "DeformablePSROIPool"


class _BinAxis(NamedTuple):
    """The weight of each cell in one bin along one axis; a bin is a product of two."""

    cells: np.ndarray  # the cells read
    weights: np.ndarray  # of each, the sum of bilinear weights
    slopes: np.ndarray  # their derivatives by the position of the samples
    inside: int  # samples on the map


class _Axis(NamedTuple):
    """One axis of one box, in map coordinates."""

    start: Any
    length: Any
    bins: int
    samples: int
    size: int

    def bin(self, q: int, move: Any) -> _BinAxis:
        """Bin q, moved by `move` lengths of the box, in MXNet's order of operations."""
        real: Any = type(self.start)
        step = self.length / real(self.bins)
        with np.errstate(over="ignore"):
            first = real(q) * step + self.start + move * self.length
            x = first + np.arange(self.samples).astype(real) * (step / real(self.samples))
        weights, slopes = np.zeros(self.size), np.zeros(self.size)
        x = x[(x >= -0.5) & (x <= real(self.size) - real(0.5))]
        clipped = np.clip(x, real(0), real(self.size - 1))
        low, high = np.floor(clipped).astype(int), np.ceil(clipped).astype(int)
        np.add.at(weights, low, real(1) - (clipped - low))
        np.add.at(weights, high, clipped - low)
        np.add.at(slopes, low, np.where(low == high, 0, -1))
        np.add.at(slopes, high, np.where(low == high, 0, 1))
        cells = np.flatnonzero(weights)
        return _BinAxis(cells, weights[cells], slopes[cells], len(x))


def _axis(lo: float, hi: float, scale: float, bins: int, size: int, samples: int, real: Any) -> Any:
    def rounded(value: Any) -> Any:  # half away from zero, as C's round()
        return np.copysign(np.floor(abs(value) + real(0.5)), value)

    with np.errstate(over="ignore"):
        start = saturate(rounded(real(lo)) * real(scale) - real(0.5))
        end = saturate((rounded(real(hi)) + real(1)) * real(scale) - real(0.5))
    return _Axis(start, max(end - start, real(0.1)), bins, samples, size)


class _Deformable(NamedTuple):
    """A call with checked arguments."""

    call: Call
    output_dim: int
    channels: Channels
    parts: tuple[int, int]
    samples: int
    trans: np.ndarray  # (K, 2 * classes, T, T), of the type that positions are computed in
    trans_std: Any
    geometry: Any

    def for_each_bin(self, body: Callable) -> None:
        """body(k, (p, q), class, part, channels of its outputs, y, x) for bins with an image.

        y and x are None where the offset is not a number.
        """
        height, width = self.call.data.shape[2:]
        classes = self.trans.shape[1] // 2
        each = self.output_dim // classes
        for k, (image, box) in enumerate(zip(self.call.images, self.call.boxes)):
            if image < 0 or not np.isfinite(box).all():
                continue
            bins_y, bins_x = self.call.pooled
            common = self.samples, self.geometry
            y_axis = _axis(box[1], box[3], self.call.scale, bins_y, height, *common)
            x_axis = _axis(box[0], box[2], self.call.scale, bins_x, width, *common)
            # Without trans, the bins of a row or column share an axis.
            y_bin = functools.lru_cache(maxsize=None)(y_axis.bin)
            x_bin = functools.lru_cache(maxsize=None)(x_axis.bin)
            for p, q in bins_of(self.call.pooled):
                part = p * self.parts[0] // bins_y, q * self.parts[1] // bins_x
                for c in range(classes):
                    x_move, y_move = self.trans[(k, slice(2 * c, 2 * c + 2), *part)]
                    own = slice(c * each, (c + 1) * each)
                    if np.isfinite([x_move, y_move]).all():
                        with np.errstate(over="ignore"):
                            y = y_bin(p, y_move * self.trans_std)
                            x = x_bin(q, x_move * self.trans_std)
                        body(k, (p, q), c, part, own, (y, y_axis.length), (x, x_axis.length))
                    else:
                        body(k, (p, q), c, part, own, None, None)


def _prepare(
    inputs: tuple,
    sizes: tuple,
    spatial_scale: float,
    output_dim: int | None,
    sample_per_part: int,
    trans_std: float,
    geometry: type,
) -> _Deformable:
    (data, rois, rois_num, trans), (pooled_size, group_size, part_size) = inputs, sizes
    call = check(NAME, data, rois, pooled_size, spatial_scale, rois_num)
    group = call.pooled if group_size is None else pair(NAME, "group_size", group_size)
    parts = call.pooled if part_size is None else pair(NAME, "part_size", part_size)
    output_dim, channels = position_sensitive(
        NAME, call.data.shape[1], output_dim, group, call.pooled
    )
    given = np.zeros((len(call.images), 2, *parts)) if trans is None else as_numpy(trans)
    if (
        given.ndim != 4
        or (given.shape[0], *given.shape[2:]) != (len(call.images), *parts)
        or given.shape[1] < 2
        or given.shape[1] % 2
        or output_dim % (given.shape[1] // 2)
    ):
        raise ValueError(
            f"{NAME}: trans has shape {given.shape}, expected ({len(call.images)}, 2 * classes, "
            f"{parts[0]}, {parts[1]}), classes dividing output_dim = {output_dim}"
        )
    real: Any = geometry
    moves = given.astype(real), real(trans_std)
    return _Deformable(call, output_dim, channels, parts, sample_per_part, *moves, real)


def deformable_ps_roi_pool(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: Any = None,
    part_size: Any = None,
    sample_per_part: int = 4,
    trans_std: float = 0.0,
    trans: Any = None,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> np.ndarray:
    """Mean of bilinear samples in bins moved by offsets (Deformable ConvNets, Dai 2017).

    The box is rounded in image pixels, with halves away from zero, and includes its last pixel:
    ``x1 = round(rx1) * s - 0.5``, ``w = max((round(rx2) + 1) * s - 0.5 - x1, 0.1)``, ``b = w / Q``.
    Sample i of bin q lies at ``x1 + q * b + t * trans_std * w + i * b / sample_per_part``, where t
    is the offset of the bin's part. Samples below -0.5 or above W - 0.5 are left out of the sum and
    of the count; others are clamped to the map. Bin (p, q) of output c reads channel
    ``(c * G + gh) * G + gw``. This is the convention of MXNet's
    ``contrib.DeformablePSROIPooling``.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, rois_num
        As in :func:`roi_pool`, with C = output_dim * G * G channels.
    output_dim, group_size
        As in :func:`ps_roi_pool`.
    part_size : int or (int, int), optional
        T: parts of the box, each with its own offset, ``floor(p * T / P)``; P, Q if not given.
    sample_per_part : int
        Samples in each bin along each axis.
    trans_std : float
        Factor of trans; the product is an offset in widths and heights of the box.
    trans : array, shape (K, 2 * classes, T, T), optional
        Offsets x, y of each class; output c belongs to class ``c // (output_dim / classes)``.
    geometry : type
        As in :func:`roi_align`.

    Returns
    -------
    numpy.ndarray, shape (K, output_dim, P, Q), float64
        NaN for a bin whose offset is NaN or infinite, 0 for one without a sample on the map.

    Raises
    ------
    ValueError
        Wrong shape, size, scale, number of channels, or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4).repeat(4, axis=1)
    >>> deformable_ps_roi_pool(ramp, [[0, 0, 0, 3, 3]], 2, 1., sample_per_part=2)
    array([[[[ 1.25,  3.  ],
             [ 8.25, 10.  ]]]])
    """
    inputs, sizes = (data, rois, rois_num, trans), (pooled_size, group_size, part_size)
    this = _prepare(inputs, sizes, spatial_scale, output_dim, sample_per_part, trans_std, geometry)
    call = this.call
    out = np.zeros((len(call.images), this.output_dim) + call.pooled)
    out[(call.images >= 0) & ~np.isfinite(call.boxes).all(axis=1)] = np.nan

    def fill(k: int, at: tuple, c: int, part: tuple, own: slice, y: Any, x: Any) -> None:
        if y is None:
            out[(k, own, *at)] = np.nan
        elif y[0].inside * x[0].inside:
            channels = this.channels(*at)[own]
            cells = call.data[call.images[k]][np.ix_(channels, y[0].cells, x[0].cells)]
            total = cells @ x[0].weights @ y[0].weights
            out[(k, own, *at)] = total / (y[0].inside * x[0].inside)

    this.for_each_bin(fill)
    return out


def deformable_ps_roi_pool_backward(
    d_out: Any,
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: Any = None,
    part_size: Any = None,
    sample_per_part: int = 4,
    trans_std: float = 0.0,
    trans: Any = None,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`deformable_ps_roi_pool` with respect to data and trans.

    The number of samples on the map is treated as constant. A sample on a cell, or clamped at the
    border, has a derivative of 0.

    Parameters
    ----------
    d_out : array, shape (K, output_dim, P, Q)
        Gradient with respect to the output. The others are those of the forward function.

    Returns
    -------
    d_data : numpy.ndarray, shape (N, C, H, W), float64
    d_trans : numpy.ndarray, shape (K, 2 * classes, T, T), float64
        With one class if trans is not given.

    Raises
    ------
    ValueError
        As :func:`deformable_ps_roi_pool` does.

    Examples
    --------
    >>> d_data, d_trans = deformable_ps_roi_pool_backward(
    ...     np.ones((1, 1, 1, 1)), np.arange(4.).reshape(1, 1, 2, 2), [[0, 0, 0, 1, 1]], 1, 1.,
    ...     sample_per_part=2, trans_std=1., trans=np.full((1, 2, 1, 1), 0.1))
    >>> d_data
    array([[[[0.4225, 0.2275],
             [0.2275, 0.1225]]]])
    >>> d_trans
    array([[[[1.]],
    <BLANKLINE>
            [[2.]]]])
    """
    inputs, sizes = (data, rois, rois_num, trans), (pooled_size, group_size, part_size)
    this = _prepare(inputs, sizes, spatial_scale, output_dim, sample_per_part, trans_std, geometry)
    call = this.call
    d_out = as_numpy(d_out).astype(np.float64)
    expected = (len(call.images), this.output_dim) + call.pooled
    if d_out.shape != expected:
        raise ValueError(f"{NAME}: d_out has shape {d_out.shape}, expected {expected}")
    d_data, d_trans = np.zeros_like(call.data), np.zeros(this.trans.shape)

    def spread(k: int, at: tuple, c: int, part: tuple, own: slice, y: Any, x: Any) -> None:
        if y is None or not y[0].inside * x[0].inside:
            return
        (y_bin, height), (x_bin, width) = y, x
        slope = d_out[(k, own, *at)] / (y_bin.inside * x_bin.inside)
        image = call.images[k]
        at_cells = np.ix_(this.channels(*at)[own], y_bin.cells, x_bin.cells)
        d_data[image][at_cells] += slope[:, None, None] * np.outer(y_bin.weights, x_bin.weights)
        cells = call.data[image][at_cells]
        along_x = slope @ (cells @ x_bin.slopes @ y_bin.weights)
        along_y = slope @ (cells @ x_bin.weights @ y_bin.slopes)
        d_trans[(k, 2 * c, *part)] += along_x * float(this.trans_std) * float(width)
        d_trans[(k, 2 * c + 1, *part)] += along_y * float(this.trans_std) * float(height)

    this.for_each_bin(spread)
    return d_data, d_trans
