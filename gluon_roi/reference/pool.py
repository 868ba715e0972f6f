# SPDX-License-Identifier: Apache-2.0
"""ROIPool and PSROIPool, which round boxes to cells, and PrROIPool, which integrates over bins."""

from __future__ import annotations

from functools import partial
from typing import Any, Iterator

import numpy as np

from . import common

__all__ = [
    "roi_pool",
    "roi_pool_backward",
    "ps_roi_pool",
    "ps_roi_pool_backward",
    "pr_roi_pool",
    "pr_roi_pool_backward",
]

CONVENTIONS = ("rfcn", "torchvision")


def _round(value: Any) -> float:
    """Round halves away from zero, as C's round(); exact, because the input is float32."""
    return float(np.copysign(np.floor(abs(np.float64(value)) + 0.5), value))


def _pool_edges(
    rule: str, lo: float, hi: float, scale: float, bins: int, size: int
) -> list[tuple[int, int]]:
    """First cell and end (exclusive) of each bin along one axis, clipped to the map.

    Edges are computed in float32 for every dtype of data, in the order of operations of MXNet and
    torchvision, so the bins of a box do not depend on the precision of the map.
    """
    f32 = np.float32
    with np.errstate(over="ignore"):
        x1, x2, s = f32(lo), f32(hi), f32(scale)
        if rule == "rfcn":
            # Rounded before scaling; the end is inclusive, hence the +1.
            start = common.saturate(f32(_round(x1)) * s)
            end = common.saturate((f32(_round(x2)) + f32(1)) * s)
            length = max(end - start, f32(0.1))
        else:
            # Rounded after scaling; start and end are integers.
            start, end = _round(common.saturate(x1 * s)), _round(common.saturate(x2 * s))
            length = f32(max(end - start + (rule == "roi_pool"), 1))
    bin_size = length / f32(bins)
    last = size - 1 if rule == "torchvision" else size

    def clip(edge: float) -> int:
        return int(min(max(edge, 0), last))

    edges = []
    for q in range(bins):
        begin, end = f32(q) * bin_size, f32(q + 1) * bin_size
        if rule == "rfcn":
            edges.append((clip(np.floor(begin + start)), clip(np.ceil(end + start))))
        else:
            edges.append((clip(float(np.floor(begin)) + start), clip(float(np.ceil(end)) + start)))
    return edges


def _maximum(bin_cells: np.ndarray, lowest: float) -> np.ndarray:
    """Largest value of each channel's bin, computed as a running maximum that starts at `lowest`.

    Comparisons with NaN are false, so NaN cells are ignored, and a bin of only NaN or -inf is
    `lowest`. MXNet's ROIPooling does the same, but starts at float32's lowest number for every
    dtype; float64 maps may hold lower values.
    """
    return np.fmax(np.fmax.reduce(bin_cells.reshape(len(bin_cells), -1), axis=1), lowest)


class _Pool(common.Operator):
    def __init__(self, call: common.Call, channels: common.Channels, rule: str) -> None:
        super().__init__(call, channels)
        self.rule = rule

    def bins(self, k: int) -> Iterator[tuple[int, int, slice, slice]]:
        """The bins of one box that are not empty: p, q, rows, columns."""
        rows, columns = self.call.axes(k, partial(_pool_edges, self.rule))
        for p, q in common.bins_of(self.call.pooled):
            if rows[p][0] < rows[p][1] and columns[q][0] < columns[q][1]:
                yield p, q, slice(*rows[p]), slice(*columns[q])


class _MaxPool(_Pool):
    def pool(self, k: int, out: np.ndarray) -> None:
        maps = self.call.maps(k)
        for p, q, rows, columns in self.bins(k):
            out[:, p, q] = _maximum(maps[:, rows, columns], self.call.lowest)

    def pool_backward(self, k: int, d_out: np.ndarray, d_maps: np.ndarray) -> int:
        maps, lowest = self.call.maps(k), self.call.lowest
        for p, q, rows, columns in self.bins(k):
            cells = maps[:, rows, columns]
            largest = cells == _maximum(cells, lowest)[:, None, None]
            largest &= cells > lowest
            for c in np.flatnonzero(largest.any(axis=(1, 2))):
                y, x = np.argwhere(largest[c])[0]
                d_maps[c, rows, columns][y, x] += d_out[c, p, q]
        return 0


class _MeanPool(_Pool):
    def pool(self, k: int, out: np.ndarray) -> None:
        maps = self.call.maps(k)
        for p, q, rows, columns in self.bins(k):
            out[:, p, q] = maps[self.channels.of_bin(p, q), rows, columns].mean(axis=(1, 2))

    def pool_backward(self, k: int, d_out: np.ndarray, d_maps: np.ndarray) -> int:
        for p, q, rows, columns in self.bins(k):
            area = (rows.stop - rows.start) * (columns.stop - columns.start)
            d_maps[self.channels.of_bin(p, q), rows, columns] += d_out[:, p, q, None, None] / area
        return 0


@common.operator
def roi_pool(
    data: Any, rois: Any, pooled_size: Any, spatial_scale: float, rois_num: Any = None
) -> _MaxPool:
    """Maximum over each bin of each box (Fast R-CNN, Girshick 2015).

    The box is scaled, rounded to integers with halves away from zero, both ends inclusive, and
    split into P x Q bins: ``x1 = round(rx1 * s)``, ``w = max(round(rx2 * s) - x1 + 1, 1)``, bin q
    from ``x1 + floor(q * w / Q)`` to ``x1 + ceil((q + 1) * w / Q)`` exclusive, clipped to the map.
    Bins overlap where edges are rounded. This is the convention of Caffe, MXNet's ``ROIPooling``,
    torchvision's ``roi_pool`` and Paddle's ``roi_pool``.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, rois_num
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    numpy.ndarray, shape (K, C, P, Q), float64
        Empty bins are 0. NaN cells are ignored; a bin of only NaN or -inf is the lowest finite
        number of the dtype of data.

    Raises
    ------
    ValueError
        A wrong shape, size, scale, convention, number of channels or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> roi_pool(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 5.,  7.],
             [13., 15.]]]])
    """
    call = common.check("ROIPool", data, rois, pooled_size, spatial_scale, rois_num)
    return _MaxPool(call, common.all_channels(call), "roi_pool")


@common.backward_of(roi_pool)
def roi_pool_backward(d_out: Any, pool: _MaxPool) -> np.ndarray:
    """Gradient of :func:`roi_pool` with respect to data.

    Each bin's gradient goes to its first maximum in row-major order. There is none if the bin is
    empty or holds no value above the lowest finite number of the dtype of data.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, rois_num
        As in :func:`roi_pool`.

    Returns
    -------
    numpy.ndarray, shape (N, C, H, W), float64

    Raises
    ------
    ValueError
        As in :func:`roi_pool`.

    Examples
    --------
    >>> ramp, d_out = np.arange(4.).reshape(1, 1, 2, 2), np.ones((1, 1, 1, 1))
    >>> roi_pool_backward(d_out, ramp, [[0, 0, 0, 1, 1]], 1, 1.).tolist()
    [[[[0.0, 0.0], [0.0, 1.0]]]]
    """
    return pool.backward(d_out)[0]


@common.operator
def ps_roi_pool(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: Any = None,
    convention: str = "rfcn",
    rois_num: Any = None,
) -> _MeanPool:
    """Mean over each bin of each box; every bin reads different channels (R-FCN, Dai 2016).

    ``convention="rfcn"`` (Caffe R-FCN, MXNet's ``contrib.PSROIPooling``, Paddle's ``psroi_pool``)
    rounds before scaling, end inclusive: ``x1 = round(rx1) * s``,
    ``w = max((round(rx2) + 1) * s - x1, 0.1)``, bin q from ``floor(q * w / Q + x1)`` to
    ``ceil((q + 1) * w / Q + x1)`` exclusive, clipped to the map.

    ``convention="torchvision"`` (``torchvision.ops.ps_roi_pool``) rounds after scaling, end
    exclusive: ``w = max(round(rx2 * s) - round(rx1 * s), 1)``, bins as in :func:`roi_pool` but
    clipped to (H - 1, W - 1), so the last row and column of the map are never read.

    Bin (p, q) of output c reads channel ``(c * G + floor(p * G / P)) * G + floor(q * G / Q)``.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, output_dim, group_size, convention, rois_num
        As in :func:`gluon_roi.nd.PSROIPool`.

    Returns
    -------
    numpy.ndarray, shape (K, output_dim, P, Q), float64
        The sum over the bin divided by the cells of the clipped bin; empty bins are 0.

    Raises
    ------
    ValueError
        A wrong shape, size, scale, convention, number of channels or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4).repeat(4, axis=1)
    >>> ps_roi_pool(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 2.5,  4.5],
             [10.5, 12.5]]]])
    """
    name = "PSROIPool"
    if convention not in CONVENTIONS:
        raise ValueError(f"{name}: convention is {convention!r}, expected one of {CONVENTIONS}")
    call = common.check(name, data, rois, pooled_size, spatial_scale, rois_num)
    group = call.pooled if group_size is None else common.pair(name, "group_size", group_size)
    return _MeanPool(call, common.position_sensitive(call, output_dim, group), convention)


@common.backward_of(ps_roi_pool)
def ps_roi_pool_backward(d_out: Any, pool: _MeanPool) -> np.ndarray:
    """Gradient of :func:`ps_roi_pool` with respect to data: its exact transpose.

    Each bin's gradient is spread evenly over the cells that the forward pass read. (This differs
    from torchvision, whose backward pass clips bins to the whole map, unlike its forward pass.)

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, output_dim, group_size, convention, rois_num
        As in :func:`ps_roi_pool`.

    Returns
    -------
    numpy.ndarray, shape (N, C, H, W), float64

    Raises
    ------
    ValueError
        As in :func:`ps_roi_pool`.

    Examples
    --------
    >>> data, d_out = np.zeros((1, 1, 2, 2)), np.ones((1, 1, 1, 1))
    >>> ps_roi_pool_backward(d_out, data, [[0, 0, 0, 1, 1]], 1, 1.).tolist()
    [[[[0.25, 0.25], [0.25, 0.25]]]]
    """
    return pool.backward(d_out)[0]


def _hats(x: np.ndarray, size: int) -> np.ndarray:
    """Weights of the cells in the bilinear surface at the coordinates x, shape (..., size)."""
    return np.maximum(0.0, 1.0 - np.abs(np.asarray(x)[..., None] - np.arange(size)))


def _precise_axis(lo: float, hi: float, scale: float, bins: int, size: int) -> common.Axis:
    start = common.saturate(np.float64(lo) * scale)
    bin_size = (common.saturate(np.float64(hi) * scale) - start) / bins
    axis = common.Axis.zeros(bins, size)
    for q in range(bins if bin_size > 0 else 0):
        begin, end = start + q * bin_size, start + (q + 1) * bin_size
        if end <= -1 or begin >= size:
            continue
        # The surface is linear between integer coordinates and 0 outside of [-1, size], so the
        # trapezoidal rule is exact on these points.
        inside = np.clip((begin, end), -1.0, size)
        corners = np.arange(np.floor(inside[0]) + 1, np.ceil(inside[1]))
        points = np.concatenate([inside[:1], corners, inside[1:]])
        # A bin may be too small for two numbers; its mean is then that of one point.
        length = end - begin
        shares = np.diff(points) / length if length > 0 else np.ones(1)
        heights = _hats(points, size)
        axis.weights[q] = shares @ (heights[1:] + heights[:-1]) / 2
        # When an end moves, each part moves by its distance from the other end.
        part = np.floor(points[:-1])[:, None]
        slopes = shares[:, None] * (1.0 * (np.arange(size) == part + 1) - (np.arange(size) == part))
        distances = (points[1:] - begin) + (points[:-1] - begin)
        along = distances / (2 * length) if length > 0 else np.full(1, 0.5)
        d_begin, d_end = (1 - along) @ slopes, along @ slopes
        # Each end of the bin lies at a fraction t of the way from lo to hi.
        for d_edge, t in ((d_begin, q / bins), (d_end, (q + 1) / bins)):
            axis.d_lo[q] += scale * (1 - t) * d_edge
            axis.d_hi[q] += scale * t * d_edge
    return axis


@common.operator
def pr_roi_pool(
    data: Any, rois: Any, pooled_size: Any, spatial_scale: float, rois_num: Any = None
) -> common.Separable:
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
        A wrong shape, size, scale, convention, number of channels or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> pr_roi_pool(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 3.75,  5.25],
             [ 9.75, 11.25]]]])
    """
    call = common.check("PrROIPool", data, rois, pooled_size, spatial_scale, rois_num)
    return common.Separable(call, common.all_channels(call), _precise_axis)


@common.backward_of(pr_roi_pool)
def pr_roi_pool_backward(d_out: Any, pool: common.Separable) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`pr_roi_pool` with respect to data and to the coordinates of rois.

    The derivative of a bin's mean with respect to one of its ends is the difference between the
    surface there and the mean, divided by the bin's length. The gradient with respect to the box is
    therefore continuous.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, rois_num
        As in :func:`pr_roi_pool`.

    Returns
    -------
    d_data, d_rois : numpy.ndarray, float64
        As in :func:`roi_align_backward`.

    Raises
    ------
    ValueError
        As in :func:`pr_roi_pool`.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> d_data, d_rois = pr_roi_pool_backward(
    ...     np.ones((1, 1, 1, 1)), ramp, [[0, 1, 1, 2, 2]], 1, 1.)
    >>> d_data[0, 0, 1].tolist(), d_rois.tolist()
    ([0.0, 0.25, 0.25, 0.0], [[0.0, 0.5, 2.0, 0.5, 2.0]])
    """
    return pool.backward(d_out)
