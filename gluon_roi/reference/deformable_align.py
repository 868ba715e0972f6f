# SPDX-License-Identifier: Apache-2.0
"""DeformableROIAlign: bilinear samples in bins that have an offset and a factor each."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, NamedTuple

import numpy as np

from . import common

__all__ = ["deformable_roi_align", "deformable_roi_align_backward"]

NAME = "DeformableROIAlign"


class _BinAxis(NamedTuple):
    """Weights of the cells of one bin along one axis, and their derivatives."""

    weights: np.ndarray
    by_offset: np.ndarray
    by_low: np.ndarray  # with respect to the box's lower image coordinate
    by_high: np.ndarray  # ... and to the upper one


class _Axis:
    """One axis of one box, in map coordinates, split into bins."""

    def __init__(
        self,
        make_side: Callable,
        gamma: float,
        lo: float,
        hi: float,
        scale: float,
        bins: int,
        size: int,
    ) -> None:
        self.gamma, self.scale, self.bins, self.size = gamma, scale, bins, size
        self.side = make_side(lo, hi, scale, bins)
        self.real: Any = type(self.side.start)

    def bin(self, q: int, offset: Any) -> _BinAxis:
        """Bin q, shifted by gamma * offset lengths of the box."""
        real, count = self.real, self.side.samples_per_bin
        length = self.side.bin_size * real(self.bins)
        largest = np.finfo(real).max
        with np.errstate(over="ignore"):
            # Not infinite, so that an offset of 0 is no shift.
            reach = real(np.clip(self.gamma, -largest, largest)) * length
            shift = np.clip(reach, -largest, largest) * offset
        fractions, low, high, high_weight, varies = self.side.samples(q, self.size, shift)
        weights, by_offset, by_low, by_high = np.zeros((4, self.size))
        np.add.at(weights, low, (real(1) - high_weight) / count)
        np.add.at(weights, high, high_weight / count)
        # x = start + (t + gamma * offset) * length.
        t = (q + fractions) / self.bins + self.gamma * float(offset)
        slope = varies / count
        t = t * (not self.side.enlarged)
        for table, share in (
            (by_offset, self.gamma * float(length)),
            (by_low, self.scale * (1 - t)),
            (by_high, self.scale * t),
        ):
            np.add.at(table, low, -slope * share)
            np.add.at(table, high, slope * share)
        return _BinAxis(weights, by_offset, by_low, by_high)


class _DeformableAlign(common.Operator):
    axis: Any
    offset: np.ndarray  # (K, 2, P, Q), in the dtype of positions
    mask: np.ndarray  # (K, 1, P, Q)
    d_offset: np.ndarray
    d_mask: np.ndarray

    def pool(self, k: int, out: np.ndarray) -> None:
        maps, (y_axis, x_axis) = self.call.maps(k), self.call.axes(k, self.axis)
        for p, q in common.bins_of(self.call.pooled):
            x_offset, y_offset = self.offset[k, :, p, q]
            if not np.isfinite([x_offset, y_offset]).all():
                out[:, p, q] = np.nan
                continue
            y, x = y_axis.bin(p, y_offset), x_axis.bin(q, x_offset)
            channels = self.channels.of_bin(p, q)
            with np.errstate(invalid="ignore"):
                value = common.weighted_sum(maps, channels, y.weights, x.weights)
                out[:, p, q] = self.mask[k, 0, p, q] * value

    def pool_backward(self, k: int, d_out: np.ndarray, d_maps: np.ndarray) -> np.ndarray:
        maps, (y_axis, x_axis) = self.call.maps(k), self.call.axes(k, self.axis)
        d_box = np.zeros(4)
        for p, q in common.bins_of(self.call.pooled):
            x_offset, y_offset = self.offset[k, :, p, q]
            if not np.isfinite([x_offset, y_offset]).all():
                continue
            y, x = y_axis.bin(p, y_offset), x_axis.bin(q, x_offset)
            channels, mask = self.channels.of_bin(p, q), self.mask[k, 0, p, q]
            slope = mask * d_out[:, p, q]
            rows, columns = np.flatnonzero(y.weights), np.flatnonzero(x.weights)
            d_maps[np.ix_(channels, rows, columns)] += np.einsum(
                "c,y,x->cyx", slope, y.weights[rows], x.weights[columns]
            )

            def along(wy: np.ndarray, wx: np.ndarray, d: np.ndarray) -> Any:
                return d @ common.weighted_sum(maps, channels, wy, wx)  # noqa: B023

            self.d_mask[k, 0, p, q] += along(y.weights, x.weights, d_out[:, p, q])
            self.d_offset[k, 0, p, q] += along(y.weights, x.by_offset, slope)
            self.d_offset[k, 1, p, q] += along(y.by_offset, x.weights, slope)
            d_box += (
                along(y.weights, x.by_low, slope),
                along(y.by_low, x.weights, slope),
                along(y.weights, x.by_high, slope),
                along(y.by_high, x.weights, slope),
            )
        return d_box


@common.operator
def deformable_roi_align(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    sampling_ratio: int = 0,
    gamma: float = 0.1,
    aligned: bool = True,
    offset: Any = None,
    mask: Any = None,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> _DeformableAlign:
    """ROIAlign with an offset and a factor for each bin (Dai 2017, Zhu 2019).

    The samples of bin (p, q) are those of :func:`roi_align`, shifted along x by ``gamma * offset[k,
    0, p, q]`` times the width of the box on the map, and along y by ``gamma * offset[k, 1, p, q]``
    times its height. Their mean is multiplied by ``mask[k, 0, p, q]``. The number of samples is
    that of the box without offsets. This is the convention of mmcv's ``DeformRoIPool``.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, sampling_ratio, gamma, aligned, offset, mask, rois_num
        As in :func:`gluon_roi.nd.DeformableROIAlign`.
    geometry : type, optional
        The type of positions; ``numpy.float32`` rounds them as the operators do for float16 and
        float32 data.

    Returns
    -------
    numpy.ndarray, shape (K, C, P, Q), float64
        NaN for a bin whose offset is NaN or infinite.

    Raises
    ------
    ValueError
        A wrong shape, size, scale or batch index.

    Examples
    --------
    >>> data, rois = np.array([[[[1., 2.], [3., 4.]]]]), [[0, 0, 0, 1, 1]]
    >>> deformable_roi_align(data, rois, 2, 1., sampling_ratio=2)
    array([[[[1.  , 1.25],
             [1.5 , 1.75]]]])
    """
    call = common.check(NAME, data, rois, pooled_size, spatial_scale, rois_num)
    arrays = []
    for name, array, channels, absent in (("offset", offset, 2, 0.0), ("mask", mask, 1, 1.0)):
        expected = (len(call.images), channels, *call.pooled)
        given = np.full(expected, absent) if array is None else common.as_numpy(array)
        if given.shape != expected:
            raise ValueError(f"{NAME}: {name} has shape {given.shape}, expected {expected}")
        arrays.append(given)
    pool = _DeformableAlign(call, common.all_channels(call))
    make_side = partial(common.AlignSide.make, aligned, sampling_ratio, geometry)
    pool.axis = partial(_Axis, make_side, gamma)
    pool.offset, pool.mask = arrays[0].astype(geometry), arrays[1].astype(np.float64)
    pool.d_offset, pool.d_mask = (np.zeros(array.shape) for array in arrays)
    return pool


@common.backward_of(deformable_roi_align)
def deformable_roi_align_backward(
    d_out: Any, pool: _DeformableAlign
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of :func:`deformable_roi_align` with respect to data, rois, offset and mask.

    The number of samples is treated as constant. If the box is enlarged to the minimum size of 1,
    the samples depend on x1 only.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, sampling_ratio, gamma, aligned, offset, mask, rois_num
        As in :func:`deformable_roi_align`.
    geometry : type, optional
        As in :func:`deformable_roi_align`.

    Returns
    -------
    d_data, d_rois, d_offset, d_mask : numpy.ndarray, float64
        With the shapes of data, rois, offset and mask.

    Raises
    ------
    ValueError
        As in :func:`deformable_roi_align`.

    Examples
    --------
    >>> data, rois = np.array([[[[1., 2.], [3., 4.]]]]), [[0, 0, 0, 1, 1]]
    >>> d_data, *_ = deformable_roi_align_backward(
    ...     np.ones((1, 1, 2, 2)), data, rois, 2, 1., sampling_ratio=2)
    >>> d_data.ravel().tolist()
    [3.0625, 0.4375, 0.4375, 0.0625]
    """
    d_data, d_rois = pool.backward(d_out)
    return d_data, d_rois, pool.d_offset, pool.d_mask
