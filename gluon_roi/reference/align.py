# SPDX-License-Identifier: Apache-2.0
"""ROIAlign and PSROIAlign: bilinear samples, without rounding the box."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .common import (
    Axis,
    Call,
    Channels,
    Separable,
    backward_of,
    bilinear,
    check,
    operator,
    own_channels,
    position_sensitive,
    saturate,
    visible_samples,
)

__all__ = ["roi_align", "roi_align_backward", "ps_roi_align", "ps_roi_align_backward"]


def _align_axis(
    aligned: bool,
    sampling_ratio: int,
    geometry: type,
    lo: float,
    hi: float,
    scale: float,
    bins: int,
    size: int,
) -> Axis:
    """Tables of one axis of one box, in the order of operations of the peers."""
    real: Any = geometry
    with np.errstate(over="ignore"):
        s, offset = real(scale), real(0.5 if aligned else 0)
        start = saturate(real(lo) * s - offset)
        length = saturate(real(hi) * s - offset) - start
    enlarged = not aligned and length < 1
    if enlarged:
        length = real(1)
    bin_size = length / real(bins)
    count = float(sampling_ratio) if sampling_ratio > 0 else max(float(np.ceil(bin_size)), 1.0)

    axis = Axis.zeros(bins, size)
    for q in range(bins):
        begin = start + real(q) * bin_size
        i = visible_samples(begin, bin_size, count, -1.0, size, float(begin))
        x = begin + (i.astype(real) + real(0.5)) * bin_size / real(count)
        # Samples outside the map are 0, and count in the divisor.
        inside = (x >= -1) & (x <= size)
        i, x = i[inside], x[inside]
        low, high, high_weight, moves = bilinear(x, size)
        np.add.at(axis.weights[q], low, (real(1) - high_weight) / count)
        np.add.at(axis.weights[q], high, high_weight / count)
        # x = x1 * (1 - t) + x2 * t.
        t = (q + (i + 0.5) / count) / bins
        slope = moves * (scale / count)
        for table, share in ((axis.d_lo, 1 - t * (not enlarged)), (axis.d_hi, t * (not enlarged))):
            np.add.at(table[q], low, -slope * share)
            np.add.at(table[q], high, slope * share)
    return axis


def align(
    call: Call, sampling_ratio: int, aligned: bool, geometry: type, channels: Channels | None = None
) -> Separable:
    """:func:`roi_align`, of other channels if they are given."""
    axis = partial(_align_axis, aligned, sampling_ratio, geometry)
    return Separable(call, channels or own_channels(call), axis)


@operator
def roi_align(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> Separable:
    """Mean of bilinear samples in each bin of each box, without rounding (Mask R-CNN, He 2017).

    With ``o = 0.5 if aligned else 0``: ``x1 = rx1 * s - o``, ``w = rx2 * s - o - x1`` (at least 1
    unless aligned). A bin has g samples along the axis, at ``x1 + (q + (i + 0.5) / g) * w / Q``;
    ``g = ceil(w / Q)`` if `sampling_ratio` is not positive. Pixel k lies at coordinate k. Samples
    below -1 or above W are 0, and count. Samples in [-1, 0] and [W - 1, W] have the value of the
    border. This is the convention of MXNet's ``contrib.ROIAlign``, torchvision's ``roi_align``,
    Paddle's ``roi_align`` and detectron2. With ``aligned=True`` an inverted box stays inverted and
    is sampled backwards, by one sample per bin if `sampling_ratio` is not positive.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, sampling_ratio, aligned, rois_num
        As in :func:`gluon_roi.nd.ROIAlign`.
    geometry : type
        Sample positions are computed in this type, in the order of operations of the peers:
        ``numpy.float32`` follows the operators on float16 and float32 data.

    Returns
    -------
    numpy.ndarray, shape (K, C, P, Q), float64

    Raises
    ------
    ValueError
        A wrong shape, size, scale or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> roi_align(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 3.75,  5.25],
             [ 9.75, 11.25]]]])
    """
    call = check("ROIAlign", data, rois, pooled_size, spatial_scale, rois_num)
    return align(call, sampling_ratio, aligned, geometry)


@backward_of(roi_align)
def roi_align_backward(d_out: Any, align: Separable) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`roi_align` with respect to data and to the coordinates of rois.

    The number of samples is treated as constant. If the minimum size of 1 applies, only x1 moves
    the samples. At a kink of the bilinear surface, the derivative is the one to the right.

    Parameters
    ----------
    d_out : array, shape (K, C, P, Q)
        Gradient with respect to the output. The others are those of :func:`roi_align`.

    Returns
    -------
    d_data, d_rois : numpy.ndarray, float64
        Of the shapes of data and rois, per image pixel; 0 for batch indices and padding rows.

    Raises
    ------
    ValueError
        As :func:`roi_align` does.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> d_data, d_rois = roi_align_backward(
    ...     np.ones((1, 1, 1, 1)), ramp, [[0, 1, 1, 2, 2]], 1, 1., sampling_ratio=1)
    >>> d_data[0, 0, 1].tolist(), d_rois.tolist()
    ([0.0, 0.25, 0.25, 0.0], [[0.0, 0.5, 2.0, 0.5, 2.0]])
    """
    return align.backward(d_out)


@operator
def ps_roi_align(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    output_dim: int | None = None,
    sampling_ratio: int = -1,
    aligned: bool = True,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> Separable:
    """ROIAlign in which every bin reads its own channels (Light-Head R-CNN, Li 2017).

    The samples are those of :func:`roi_align`; bin (p, q) of output c reads channel
    ``(c * P + p) * Q + q``. Equal to torchvision's ``ps_roi_align``; with ``aligned=False`` to
    MXNet's ``contrib.ROIAlign(position_sensitive=True)``.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, output_dim, sampling_ratio, aligned, rois_num
        As in :func:`gluon_roi.nd.PSROIAlign`.
    geometry : type
        As in :func:`roi_align`.

    Returns
    -------
    numpy.ndarray, shape (K, output_dim, P, Q), float64

    Raises
    ------
    ValueError
        A wrong shape, size, scale, number of channels or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4).repeat(4, axis=1)
    >>> ps_roi_align(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[1.5625, 3.    ],
             [7.3125, 8.75  ]]]])
    """
    call = check("PSROIAlign", data, rois, pooled_size, spatial_scale, rois_num)
    channels = position_sensitive(call, output_dim, call.pooled)
    return align(call, sampling_ratio, aligned, geometry, channels)


@backward_of(ps_roi_align)
def ps_roi_align_backward(d_out: Any, align: Separable) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`ps_roi_align` with respect to data and to the coordinates of rois.

    Parameters
    ----------
    d_out : array, shape (K, output_dim, P, Q)
        Gradient with respect to the output. The others are those of :func:`ps_roi_align`.

    Returns
    -------
    d_data, d_rois : numpy.ndarray, float64
        As in :func:`roi_align_backward`.

    Raises
    ------
    ValueError
        As :func:`ps_roi_align` does.

    Examples
    --------
    >>> data, d_out = np.zeros((1, 1, 2, 2)), np.ones((1, 1, 1, 1))
    >>> d_data, d_rois = ps_roi_align_backward(d_out, data, [[0, 0, 0, 2, 2]], 1, 1.)
    >>> d_data
    array([[[[0.25, 0.25],
             [0.25, 0.25]]]])
    """
    return align.backward(d_out)
