# SPDX-License-Identifier: Apache-2.0
"""DeformablePSROIPool: bilinear samples in bins shifted by learned offsets."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, Iterator, NamedTuple

import numpy as np

from . import common

__all__ = ["deformable_ps_roi_pool", "deformable_ps_roi_pool_backward"]

NAME = "DeformablePSROIPool"


class _BinAxis(NamedTuple):
    """Weights of the cells of one bin along one axis."""

    cells: np.ndarray  # the cells read
    weights: np.ndarray  # sum of the bilinear weights of each cell
    slopes: np.ndarray  # derivatives of weights with respect to the position of the samples
    inside: int  # number of samples on the map
    length: float  # of the box


class _Axis:
    """One axis of one box, in map coordinates, split into bins."""

    def __init__(self, real: Any, lo: float, hi: float, scale: float, bins: int, size: int) -> None:
        def rounded(value: Any) -> Any:  # half away from zero, as C's round()
            return np.copysign(np.floor(abs(value) + real(0.5)), value)

        with np.errstate(over="ignore"):
            self.start = common.saturate(rounded(real(lo)) * real(scale) - real(0.5))
            end = common.saturate((rounded(real(hi)) + real(1)) * real(scale) - real(0.5))
        self.length = max(end - self.start, real(0.1))
        self.real, self.bins, self.size = real, bins, size

    def bin(self, samples: int, q: int, offset: Any) -> _BinAxis:
        """Bin q, shifted by `offset` lengths of the box, in MXNet's order of operations."""
        real, step = self.real, self.length / self.real(self.bins)
        with np.errstate(over="ignore"):
            first = real(q) * step + self.start + offset * self.length
            x = first + np.arange(samples).astype(real) * (step / real(samples))
        weights, slopes = np.zeros(self.size), np.zeros(self.size)
        x = x[(x >= -0.5) & (x <= real(self.size) - real(0.5))]
        clipped = np.clip(x, real(0), real(self.size - 1))
        low, high = np.floor(clipped).astype(int), np.ceil(clipped).astype(int)
        np.add.at(weights, low, real(1) - (clipped - low))
        np.add.at(weights, high, clipped - low)
        np.add.at(slopes, low, np.where(low == high, 0, -1))
        np.add.at(slopes, high, np.where(low == high, 0, 1))
        cells = np.flatnonzero(weights)
        return _BinAxis(cells, weights[cells], slopes[cells], len(x), float(self.length))


class _Bin(NamedTuple):
    """A bin of one class."""

    out: tuple  # index in a row of the output
    trans: tuple  # index of the x offset in trans
    channels: np.ndarray
    axes: tuple[_BinAxis, _BinAxis] | None  # y and x; None if the offset is NaN or infinite

    @property
    def samples(self) -> int:
        return self.axes[0].inside * self.axes[1].inside if self.axes else 0


class _Deformable(common.Operator):
    parts: tuple[int, int]
    samples: int
    trans: np.ndarray  # (K, 2 * classes, T, T), in the dtype of positions
    trans_std: Any
    d_trans: np.ndarray

    def bins(self, k: int) -> Iterator[_Bin]:
        call, classes = self.call, self.trans.shape[1] // 2
        channels_per_class = self.channels.out_channels // classes
        axes_of_box = call.axes(k, partial(_Axis, self.trans.dtype.type))
        # Cached because without trans all bins of a row or column have the same axis.
        bin_y, bin_x = (lru_cache(maxsize=None)(partial(a.bin, self.samples)) for a in axes_of_box)
        for p, q in common.bins_of(call.pooled):
            part = p * self.parts[0] // call.pooled[0], q * self.parts[1] // call.pooled[1]
            for c in range(classes):
                class_channels = slice(c * channels_per_class, (c + 1) * channels_per_class)
                axes = None
                x_offset, y_offset = self.trans[(k, slice(2 * c, 2 * c + 2), *part)]
                if np.isfinite([x_offset, y_offset]).all():
                    with np.errstate(over="ignore"):
                        axes = (
                            bin_y(p, y_offset * self.trans_std),
                            bin_x(q, x_offset * self.trans_std),
                        )
                yield _Bin(
                    (class_channels, p, q),
                    (k, 2 * c, *part),
                    self.channels.of_bin(p, q)[class_channels],
                    axes,
                )

    def pool(self, k: int, out: np.ndarray) -> None:
        for bin_ in self.bins(k):
            if bin_.axes is None:
                out[bin_.out] = np.nan
            elif bin_.samples:
                y, x = bin_.axes
                cells = self.call.maps(k)[np.ix_(bin_.channels, y.cells, x.cells)]
                out[bin_.out] = cells @ x.weights @ y.weights / bin_.samples

    def pool_backward(self, k: int, d_out: np.ndarray, d_maps: np.ndarray) -> int:
        for bin_ in self.bins(k):
            if bin_.axes is None or not bin_.samples:
                continue
            y, x = bin_.axes
            slope = d_out[bin_.out] / bin_.samples
            at_cells = np.ix_(bin_.channels, y.cells, x.cells)
            d_maps[at_cells] += slope[:, None, None] * np.outer(y.weights, x.weights)
            cells, (row, channel, *part) = self.call.maps(k)[at_cells], bin_.trans
            along_x = slope @ (cells @ x.slopes @ y.weights)
            along_y = slope @ (cells @ x.weights @ y.slopes)
            self.d_trans[bin_.trans] += along_x * float(self.trans_std) * x.length
            self.d_trans[(row, channel + 1, *part)] += along_y * float(self.trans_std) * y.length
        return 0


@common.operator
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
) -> _Deformable:
    """Mean of bilinear samples in bins shifted by offsets (Deformable ConvNets, Dai 2017).

    The box is rounded in image pixels, with halves away from zero, and includes its last pixel:
    ``x1 = round(rx1) * s - 0.5``, ``w = max((round(rx2) + 1) * s - 0.5 - x1, 0.1)``, ``b = w / Q``.
    Sample i of bin q lies at ``x1 + q * b + t * trans_std * w + i * b / sample_per_part``, where t
    is the offset of the bin's part. Samples below -0.5 or above W - 0.5 are omitted from the sum
    and from the count; others are clamped to the map. Bin (p, q) of output c reads channel ``(c * G
    + gh) * G + gw``. This is the convention of MXNet's ``contrib.DeformablePSROIPooling``.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, output_dim, group_size, part_size, sample_per_part
        As in :func:`gluon_roi.nd.DeformablePSROIPool`.
    trans_std, trans, rois_num
        As in :func:`gluon_roi.nd.DeformablePSROIPool`.
    geometry : type, optional
        The type of positions; ``numpy.float32`` rounds them as the operators do for float16 and
        float32 data.

    Returns
    -------
    numpy.ndarray, shape (K, output_dim, P, Q), float64
        NaN for a bin whose offset is NaN or infinite, 0 for a bin without a sample on the map.

    Raises
    ------
    ValueError
        A wrong shape, size, scale, convention, number of channels or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4).repeat(4, axis=1)
    >>> deformable_ps_roi_pool(ramp, [[0, 0, 0, 3, 3]], 2, 1., sample_per_part=2)
    array([[[[ 1.25,  3.  ],
             [ 8.25, 10.  ]]]])
    """
    call = common.check(NAME, data, rois, pooled_size, spatial_scale, rois_num)
    group = call.pooled if group_size is None else common.pair(NAME, "group_size", group_size)
    parts = call.pooled if part_size is None else common.pair(NAME, "part_size", part_size)
    channels, rows = common.position_sensitive(call, output_dim, group), len(call.images)
    given = np.zeros((rows, 2, *parts)) if trans is None else common.as_numpy(trans)
    if (
        given.ndim != 4
        or (given.shape[0], *given.shape[2:]) != (rows, *parts)
        or given.shape[1] < 2
        or given.shape[1] % 2
        or channels.out_channels % (given.shape[1] // 2)
    ):
        raise ValueError(
            f"{NAME}: trans has shape {given.shape}, expected ({rows}, 2 * classes, "
            f"{parts[0]}, {parts[1]}), classes dividing output_dim = {channels.out_channels}"
        )
    pool = _Deformable(call, channels)
    pool.parts, pool.samples = parts, sample_per_part
    pool.trans, pool.trans_std = given.astype(geometry), geometry(trans_std)
    pool.d_trans = np.zeros(given.shape)
    return pool


@common.backward_of(deformable_ps_roi_pool)
def deformable_ps_roi_pool_backward(d_out: Any, pool: _Deformable) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`deformable_ps_roi_pool` with respect to data and trans.

    The number of samples on the map is treated as constant. A sample on a cell, or clamped at the
    border, has a derivative of 0.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, output_dim, group_size, part_size, sample_per_part
        As in :func:`deformable_ps_roi_pool`.
    trans_std, trans, rois_num, geometry
        As in :func:`deformable_ps_roi_pool`.

    Returns
    -------
    d_data, d_trans : numpy.ndarray, float64
        With the shapes of data and trans. Without trans, d_trans has the shape for one class.

    Raises
    ------
    ValueError
        As in :func:`deformable_ps_roi_pool`.

    Examples
    --------
    >>> d_data, d_trans = deformable_ps_roi_pool_backward(
    ...     np.ones((1, 1, 1, 1)), np.arange(4.).reshape(1, 1, 2, 2), [[0, 0, 0, 1, 1]], 1, 1.,
    ...     sample_per_part=2, trans_std=1., trans=np.full((1, 2, 1, 1), 0.1))
    >>> d_data.round(4).tolist(), d_trans.ravel().round(4).tolist()
    ([[[[0.4225, 0.2275], [0.2275, 0.1225]]]], [1.0, 2.0])
    """
    d_data, _ = pool.backward(d_out)
    return d_data, pool.d_trans
