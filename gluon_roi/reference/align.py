# SPDX-License-Identifier: Apache-2.0
"""ROIAlign, PSROIAlign and PyramidROIAlign: bilinear samples, without rounding the box."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from . import common

__all__ = [
    "roi_align",
    "roi_align_backward",
    "ps_roi_align",
    "ps_roi_align_backward",
    "pyramid_roi_align",
    "pyramid_roi_align_backward",
]

PYRAMID = "PyramidROIAlign"


def _align_axis(
    make_side: Callable,
    lo: float,
    hi: float,
    scale: float,
    bins: int,
    size: int,
) -> common.Axis:
    """Weights along one axis of one box."""
    side = make_side(lo, hi, scale, bins)
    axis, real = common.Axis.zeros(bins, size), type(side.start)
    for q in range(bins):
        # Samples outside the map are 0, and count in the divisor.
        fractions, low, high, high_weight, varies = side.samples(q, size)
        np.add.at(axis.weights[q], low, (real(1) - high_weight) / side.samples_per_bin)
        np.add.at(axis.weights[q], high, high_weight / side.samples_per_bin)
        # x = x1 * (1 - t) + x2 * t.
        t = (q + fractions) / bins * (not side.enlarged)
        slope = varies * (scale / side.samples_per_bin)
        for table, share in ((axis.d_lo, 1 - t), (axis.d_hi, t)):
            np.add.at(table[q], low, -slope * share)
            np.add.at(table[q], high, slope * share)
    return axis


def align(
    call: common.Call,
    sampling_ratio: int,
    aligned: bool,
    geometry: type,
    channels: common.Channels | None = None,
) -> common.Separable:
    """:func:`roi_align`, with all channels of data unless others are given."""
    make_side = partial(common.AlignSide.make, aligned, sampling_ratio, geometry)
    axis = partial(_align_axis, make_side)
    return common.Separable(call, channels or common.all_channels(call), axis)


class _Samples(NamedTuple):
    """The samples of one bin along one axis that are on the map."""

    low: np.ndarray  # the cells on both sides
    high: np.ndarray
    high_weight: np.ndarray
    slope_lo: np.ndarray  # derivatives of the position, with respect to the box's lower coordinate
    slope_hi: np.ndarray  # ... and to the upper one
    has_outside: bool  # whether others are outside of it


def _samples_of_axis(
    make_side: Callable,
    lo: float,
    hi: float,
    scale: float,
    bins: int,
    size: int,
) -> list[_Samples]:
    """The samples of :func:`_align_axis`, one by one, for each bin."""
    side = make_side(lo, hi, scale, bins)
    found = []
    for q in range(bins):
        fractions, low, high, high_weight, varies = side.samples(q, size)
        t = (q + fractions) / bins * (not side.enlarged)
        slopes = varies * scale * (1 - t), varies * scale * t
        found.append(_Samples(low, high, high_weight, *slopes, len(low) < side.samples_per_bin))
    return found


def _mix(low: np.ndarray, high: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Interpolate; a cell of weight 0 has no effect, even if it is NaN."""
    with np.errstate(invalid="ignore"):
        return low * (1 - weight) + np.where(weight > 0, high * weight, 0)


class _LargestSample(common.Operator):
    """ROIAlign with mode='max'."""

    axis: Any

    def _values(self, maps: np.ndarray, y: _Samples, x: _Samples) -> np.ndarray:
        """The samples of a bin, (C, samples along y, samples along x)."""
        low, high = (
            _mix(maps[:, row][:, :, x.low], maps[:, row][:, :, x.high], x.high_weight)
            for row in (y.low, y.high)
        )
        return _mix(low, high, y.high_weight[:, None])

    def _largest(self, values: np.ndarray, outside: bool) -> tuple[float, int]:
        """The value of a bin, and the index of its first largest sample, or -1."""
        known = np.where(np.isnan(values), -np.inf, values).ravel()
        index = int(known.argmax()) if known.size and known.max() > self.call.lowest else -1
        value = known[index] if index >= 0 else self.call.lowest
        return (0.0, -1) if outside and value < 0 else (value, index)

    def pool(self, k: int, out: np.ndarray) -> None:
        ys, xs = self.call.axes(k, self.axis)
        for p, q in common.bins_of(self.call.pooled):
            values = self._values(self.call.maps(k), ys[p], xs[q])
            outside = ys[p].has_outside or xs[q].has_outside
            out[:, p, q] = [self._largest(of_map, outside)[0] for of_map in values]

    def pool_backward(self, k: int, d_out: np.ndarray, d_maps: np.ndarray) -> np.ndarray:
        maps, (ys, xs), d_box = self.call.maps(k), self.call.axes(k, self.axis), np.zeros(4)
        for p, q in common.bins_of(self.call.pooled):
            y, x = ys[p], xs[q]
            for c, values in enumerate(self._values(maps, y, x)):
                _, index = self._largest(values, y.has_outside or x.has_outside)
                if index < 0:
                    continue
                j, i = divmod(index, len(x.low))
                d, wy, wx = d_out[c, p, q], float(y.high_weight[j]), float(x.high_weight[i])
                rows, columns = (y.low[j], y.high[j]), (x.low[i], x.high[i])
                shares = np.outer((1 - wy, wy), (1 - wx, wx))
                np.add.at(d_maps[c], np.ix_(rows, columns), d * shares)
                cells = maps[c][np.ix_(rows, columns)]
                by_x = _mix(cells[0, 1] - cells[0, 0], cells[1, 1] - cells[1, 0], np.array(wy))
                by_y = _mix(cells[1, 0] - cells[0, 0], cells[1, 1] - cells[0, 1], np.array(wx))
                slopes = x.slope_lo[i], y.slope_lo[j], x.slope_hi[i], y.slope_hi[j]
                for n, slope in enumerate(slopes):
                    d_box[n] += d * slope * (by_x, by_y)[n % 2] if slope else 0.0
        return d_box


@common.operator
def roi_align(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_num: Any = None,
    geometry: type = np.float64,
    mode: str = "avg",
) -> common.Operator:
    """Mean of bilinear samples in each bin of each box, without rounding (Mask R-CNN, He 2017).

    With ``o = 0.5 if aligned else 0``: ``x1 = rx1 * s - o``, ``w = rx2 * s - o - x1`` (at least 1
    unless aligned). A bin has g samples along the axis, at ``x1 + (q + (i + 0.5) / g) * w / Q``;
    ``g = ceil(w / Q)`` if `sampling_ratio` is not positive. Pixel k lies at coordinate k. Samples
    below -1 or above W are 0, and count in the divisor. Samples in [-1, 0] and [W - 1, W] have the
    value of the border. This is the convention of MXNet's ``contrib.ROIAlign``, torchvision's
    ``roi_align``, Paddle's ``roi_align`` and detectron2. With ``aligned=True`` an inverted box
    stays inverted and is sampled backwards, by one sample per bin if `sampling_ratio` is not
    positive.

    With ``mode='max'`` a bin is its largest sample. Samples outside the map are 0, and NaN samples
    are ignored; if all are NaN, the bin is the lowest finite number of the dtype of `data`.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, sampling_ratio, aligned, rois_num, mode
        As in :func:`gluon_roi.nd.ROIAlign`.
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
    >>> roi_align(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 3.75,  5.25],
             [ 9.75, 11.25]]]])
    """
    call = common.check("ROIAlign", data, rois, pooled_size, spatial_scale, rois_num)
    if mode not in ("avg", "max"):
        raise ValueError(f"ROIAlign: mode is {mode!r}, expected 'avg' or 'max'")
    if mode == "avg":
        return align(call, sampling_ratio, aligned, geometry)
    largest = _LargestSample(call, common.all_channels(call))
    make_side = partial(common.AlignSide.make, aligned, sampling_ratio, geometry)
    largest.axis = partial(_samples_of_axis, make_side)
    return largest


@common.backward_of(roi_align)
def roi_align_backward(d_out: Any, align: common.Operator) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`roi_align` with respect to data and to the coordinates of rois.

    The number of samples is treated as constant. If the box is enlarged to the minimum size of 1,
    the samples depend on x1 only. At a kink of the bilinear surface, the derivative is the
    right-hand one.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, sampling_ratio, aligned, rois_num, geometry, mode
        As in :func:`roi_align`.

    Returns
    -------
    d_data, d_rois : numpy.ndarray, float64
        Of the shapes of data and rois, per image pixel; 0 for batch indices and padding rows.

    Raises
    ------
    ValueError
        As in :func:`roi_align`.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> d_data, d_rois = roi_align_backward(
    ...     np.ones((1, 1, 1, 1)), ramp, [[0, 1, 1, 2, 2]], 1, 1., sampling_ratio=1)
    >>> d_data[0, 0, 1].tolist(), d_rois.tolist()
    ([0.0, 0.25, 0.25, 0.0], [[0.0, 0.5, 2.0, 0.5, 2.0]])
    """
    return align.backward(d_out)


@common.operator
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
) -> common.Separable:
    """ROIAlign in which every bin reads different channels (Light-Head R-CNN, Li 2017).

    The samples are those of :func:`roi_align`; bin (p, q) of output c reads channel
    ``(c * P + p) * Q + q``. Equal to torchvision's ``ps_roi_align``; with ``aligned=False`` to
    MXNet's ``contrib.ROIAlign(position_sensitive=True)``.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, output_dim, sampling_ratio, aligned, rois_num
        As in :func:`gluon_roi.nd.PSROIAlign`.
    geometry : type, optional
        The type of positions; ``numpy.float32`` rounds them as the operators do for float16 and
        float32 data.

    Returns
    -------
    numpy.ndarray, shape (K, output_dim, P, Q), float64

    Raises
    ------
    ValueError
        A wrong shape, size, scale, convention, number of channels or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4).repeat(4, axis=1)
    >>> ps_roi_align(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[1.5625, 3.    ],
             [7.3125, 8.75  ]]]])
    """
    call = common.check("PSROIAlign", data, rois, pooled_size, spatial_scale, rois_num)
    channels = common.position_sensitive(call, output_dim, call.pooled)
    return align(call, sampling_ratio, aligned, geometry, channels)


@common.backward_of(ps_roi_align)
def ps_roi_align_backward(d_out: Any, align: common.Separable) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`ps_roi_align` with respect to data and to the coordinates of rois.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, output_dim, sampling_ratio, aligned, rois_num, geometry
        As in :func:`ps_roi_align`.

    Returns
    -------
    d_data, d_rois : numpy.ndarray, float64
        As in :func:`roi_align_backward`.

    Raises
    ------
    ValueError
        As in :func:`ps_roi_align`.

    Examples
    --------
    >>> data, d_out = np.zeros((1, 1, 2, 2)), np.ones((1, 1, 1, 1))
    >>> d_data, d_rois = ps_roi_align_backward(d_out, data, [[0, 0, 0, 2, 2]], 1, 1.)
    >>> d_data
    array([[[[0.25, 0.25],
             [0.25, 0.25]]]])
    """
    return align.backward(d_out)


def _assign_maps(
    rois: np.ndarray, rois_num: Any, batch: int, scales: Sequence[float], size: float, level: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [batch_index, x1, y1, x2, y2], and the index of the map of each row."""
    indices, boxes = common.split_rois(PYRAMID, rois, rois_num, batch, 4)
    boxes = boxes.astype(np.float64)
    with np.errstate(all="ignore"):
        sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
        relative = np.sqrt(sides[:, 0] * sides[:, 1]) / size
        target_levels = np.floor(level + np.log2(relative + 1e-6))
        levels = np.ceil(-np.log2(scales))
    # The last map whose level is at most the target level; comparisons with NaN are False.
    map_indices = (target_levels[:, None] >= levels[None, 1:]).sum(axis=1)
    return np.hstack([np.asarray(indices, np.float64)[:, None], boxes]), map_indices


class _Pyramid(NamedTuple):
    """A ROIAlign on each map: of all boxes or, without map_indices, of the map's list of boxes."""

    aligns: list[common.Separable]
    map_indices: np.ndarray | None  # (K,), the map of each row
    rois_shape: tuple

    def forward(self) -> np.ndarray:
        outputs = [operator.forward() for operator in self.aligns]
        if self.map_indices is None:
            return np.sum(outputs, axis=0)
        return np.stack(outputs)[self.map_indices, np.arange(len(self.map_indices))]

    def backward(self, d_out: Any) -> tuple[list[np.ndarray], np.ndarray]:
        d_out, d_rois = common.as_numpy(d_out).astype(np.float64), np.zeros(self.rois_shape)
        if self.map_indices is None:
            d_maps, d_lists = zip(*(operator.backward(d_out) for operator in self.aligns))
            return list(d_maps), np.concatenate(d_lists).reshape(self.rois_shape)
        d_maps, d_boxes = [], np.zeros((len(self.map_indices), 4))
        for index, operator in enumerate(self.aligns):
            is_assigned = self.map_indices == index
            d_map, d_rows = operator.backward(np.where(is_assigned[:, None, None, None], d_out, 0))
            d_maps.append(d_map)
            d_boxes += np.where(is_assigned[:, None], d_rows[:, 1:], 0)
        d_rois[..., -4:] = d_boxes.reshape(*self.rois_shape[:-1], 4)
        return d_maps, d_rois


@common.operator
def pyramid_roi_align(
    data: Sequence[Any],
    rois: Any,
    pooled_size: Any,
    spatial_scale: Sequence[float],
    sampling_ratio: int = -1,
    aligned: bool = False,
    canonical_size: float = 224.0,
    canonical_level: int = 4,
    rois_num: Any = None,
    geometry: type = np.float64,
    assignment: str = "size",
) -> _Pyramid:
    """:func:`roi_align` of each box on the map of its level (Feature Pyramid Networks, Lin 2017).

    A box is pooled from the map of level ``floor(canonical_level + log2(sqrt(area) / canonical_size
    + 1e-6))``, with the area in image pixels; if there is no such map, from the finest or the
    coarsest. A map of stride 2^k has level k.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, sampling_ratio, aligned, canonical_size, canonical_level
        As in :func:`gluon_roi.nd.PyramidROIAlign`.
    rois_num, assignment
        As in :func:`gluon_roi.nd.PyramidROIAlign`.
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
    >>> fine, coarse = np.zeros((1, 1, 8, 8)), np.ones((1, 1, 4, 4))
    >>> boxes = [[0, 0, 0, 100, 100], [0, 0, 0, 250, 250]]
    >>> pyramid_roi_align([fine, coarse], boxes, 1, (1 / 32, 1 / 64), canonical_level=6).ravel()
    array([0., 1.])
    """
    maps = [common.as_numpy(feature_map) for feature_map in data]
    rows, map_indices = common.as_numpy(rois), None
    if assignment == "given":
        if rois_num is not None or len(rows) % len(maps) != 0:
            raise ValueError(f"{PYRAMID}: expected a list of boxes for each of {len(maps)} maps")
        lists = np.split(rows, len(maps))
    else:
        rows, map_indices = _assign_maps(
            rows, rois_num, len(maps[0]), spatial_scale, canonical_size, canonical_level
        )
        lists = [rows] * len(maps)
    calls = (
        common.check(PYRAMID, feature_map, boxes, pooled_size, scale, None)
        for feature_map, boxes, scale in zip(maps, lists, spatial_scale)
    )
    aligns = [align(call, sampling_ratio, aligned, geometry) for call in calls]
    return _Pyramid(aligns, map_indices, np.shape(rois))


@common.backward_of(pyramid_roi_align)
def pyramid_roi_align_backward(
    d_out: Any, pyramid: _Pyramid
) -> tuple[list[np.ndarray], np.ndarray]:
    """Gradients of :func:`pyramid_roi_align` with respect to the maps and to rois.

    The choice of the map is treated as constant.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, rois, pooled_size, spatial_scale, sampling_ratio, aligned, canonical_size, canonical_level
        As in :func:`pyramid_roi_align`.
    rois_num, geometry, assignment
        As in :func:`pyramid_roi_align`.

    Returns
    -------
    d_data : list of numpy.ndarray, each (N, C, H_i, W_i), float64
    d_rois : numpy.ndarray, of the shape of rois, float64

    Raises
    ------
    ValueError
        As in :func:`pyramid_roi_align`.

    Examples
    --------
    >>> maps = [np.zeros((1, 1, 8, 8)), np.ones((1, 1, 4, 4))]
    >>> d_maps, _ = pyramid_roi_align_backward(
    ...     np.ones((1, 1, 1, 1)), maps, [[0, 0, 0, 250, 250]], 1, (1 / 32, 1 / 64),
    ...     canonical_level=6)
    >>> [float(one.sum()) for one in d_maps]
    [0.0, 1.0]
    """
    return pyramid.backward(d_out)
