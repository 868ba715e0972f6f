# SPDX-License-Identifier: Apache-2.0
"""PrROIPool: the integral of the bilinear surface, without samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from .common import Axis, Separable, backward_of, check, operator, own_channels, saturate

__all__ = ["pr_roi_pool", "pr_roi_pool_backward"]


def _hats(x: np.ndarray, size: int) -> np.ndarray:
    """The weight of each cell in the surface at the coordinates x, shape (..., size)."""
    return np.maximum(0.0, 1.0 - np.abs(np.asarray(x)[..., None] - np.arange(size)))


def _precise_axis(lo: float, hi: float, scale: float, bins: int, size: int) -> Axis:
    start = saturate(np.float64(lo) * scale)
    bin_size = (saturate(np.float64(hi) * scale) - start) / bins
    axis = Axis.zeros(bins, size)
    for q in range(bins):
        begin, end = start + q * bin_size, start + (q + 1) * bin_size
        if not end > begin:
            continue
        # The surface is linear between whole coordinates and 0 outside of [-1, size], so the
        # trapezoids between these points are exact.
        inside = np.clip((begin, end), -1.0, size)
        corners = np.arange(np.floor(inside[0]) + 1, np.ceil(inside[1]))
        points = np.concatenate([inside[:1], corners, inside[1:]])
        length = end - begin
        heights = _hats(points, size)
        areas = (heights[1:] + heights[:-1]) / 2 * np.diff(points)[:, None]
        mean = areas.sum(axis=0) / length
        axis.weights[q] = mean
        # Each end of the bin lies at a fraction t of the way from lo to hi.
        d_begin, d_end = (mean - _hats(begin, size)) / length, (_hats(end, size) - mean) / length
        for d_edge, t in ((d_begin, q / bins), (d_end, (q + 1) / bins)):
            axis.d_lo[q] += scale * (1 - t) * d_edge
            axis.d_hi[q] += scale * t * d_edge
    return axis


@operator
def pr_roi_pool(
    data: Any, rois: Any, pooled_size: Any, spatial_scale: float, rois_num: Any = None
) -> Separable:
    """Mean of the bilinear surface over each bin of each box (IoU-Net, Jiang 2018).

    The box is neither rounded nor shifted: ``x1 = rx1 * s``, ``w = rx2 * s - x1``, bin q is
    ``[x1 + q * w / Q, x1 + (q + 1) * w / Q]``. The surface has the value of cell i at coordinate i,
    is bilinear in between, and falls to 0 at -1 and at W. Its integral over a bin is divided by the
    bin's area; a bin without area, as in an inverted box, is 0.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, rois_num
        As in :func:`gluon_roi.nd.PrROIPool`.

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
    >>> pr_roi_pool(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 3.75,  5.25],
             [ 9.75, 11.25]]]])
    """
    call = check("PrROIPool", data, rois, pooled_size, spatial_scale, rois_num)
    return Separable(call, own_channels(call), _precise_axis)


@backward_of(pr_roi_pool)
def pr_roi_pool_backward(d_out: Any, pool: Separable) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`pr_roi_pool` with respect to data and to the coordinates of rois.

    The derivative of a bin's mean by one of its ends is the difference between the surface there
    and the mean, divided by the bin's length. The gradient of the box is therefore continuous.

    Parameters
    ----------
    d_out : array, shape (K, C, P, Q)
        Gradient with respect to the output. The others are those of :func:`pr_roi_pool`.

    Returns
    -------
    d_data, d_rois : numpy.ndarray, float64
        As in :func:`roi_align_backward`.

    Raises
    ------
    ValueError
        As :func:`pr_roi_pool` does.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> d_data, d_rois = pr_roi_pool_backward(
    ...     np.ones((1, 1, 1, 1)), ramp, [[0, 1, 1, 2, 2]], 1, 1.)
    >>> d_data[0, 0, 1].tolist(), d_rois.tolist()
    ([0.0, 0.25, 0.25, 0.0], [[0.0, 0.5, 2.0, 0.5, 2.0]])
    """
    return pool.backward(d_out)
