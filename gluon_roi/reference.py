"""Slow, readable NumPy versions of every operator, in double precision: the oracle of the tests.

Each operator is written straight from its formula, one region of interest (RoI) and one bin at a
time, and shares no code with the library. Arrays are NumPy arrays or ``mx.nd.NDArray``; results
are float64 NumPy arrays.

Notation: ``s`` is ``spatial_scale`` (map cells per image pixel), ``(P, Q)`` is ``pooled_size``,
``(H, W)`` the size of the feature map, K the number of RoIs. Boxes are ``x1, y1, x2, y2`` in
image coordinates (pixels); everything else is in map coordinates (cells). Only the x axis is
written down in comments; y is alike.

What every operator does with unusual rows of ``rois``, in this order:

- a negative batch index marks a padding row: zeros, and no gradient;
- a batch index that is NaN, fractional or not below the batch size raises ``ValueError``;
- a NaN or infinite coordinate gives a row of NaN, and no gradient;
- coordinates beyond ``1e30`` cells count as ``1e30`` cells;
- cells of weight 0 are never read, so a NaN outside the box stays outside the result.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np

__all__ = [
    "roi_pool",
    "roi_pool_backward",
    "roi_align",
    "roi_align_backward",
    "ps_roi_pool",
    "ps_roi_pool_backward",
    "ps_roi_align",
    "ps_roi_align_backward",
]

#: Farthest map coordinate told apart from infinity.
FARTHEST = 1e30
#: Up to this many samples a bin are all visited; above, only those that can fall on the map.
FEW_SAMPLES = 4096

CONVENTIONS = ("rfcn", "torchvision")


# ---- Arguments -----------------------------------------------------------------------------------


class _Call(NamedTuple):
    """Checked arguments of one call."""

    data: np.ndarray  # (N, C, H, W), float64
    lowest: float  # the lowest finite number of the type that data came in
    images: np.ndarray  # (K,), index into the batch, -1 for a padding row
    boxes: np.ndarray  # (K, 4), x1 y1 x2 y2 in image coordinates, float64
    pooled: tuple[int, int]  # P, Q
    scale: float  # map cells per image pixel


def _as_numpy(array: Any) -> np.ndarray:
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def _pair(name: str, argument: str, value: Any) -> tuple[int, int]:
    pair = (value, value) if np.ndim(value) == 0 else tuple(value)
    if len(pair) != 2 or any(int(v) != v or v < 1 for v in pair):
        raise ValueError(
            f"{name}: {argument} is {value!r}, expected a positive integer or a pair of them"
        )
    return int(pair[0]), int(pair[1])


def _batch_indices(
    name: str, rois: np.ndarray, rois_num: Any, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split any of the three layouts of rois into (batch index as given, box) per row."""
    if rois.ndim == 2 and rois.shape[1] == 5 and rois_num is None:
        return rois[:, 0], rois[:, 1:]
    if rois.ndim == 3 and rois.shape[2] == 4 and rois_num is None:
        if rois.shape[0] != batch:
            raise ValueError(
                f"{name}: rois has boxes for {rois.shape[0]} images, expected {batch} "
                "(the batch size of data)"
            )
        return np.repeat(np.arange(batch), rois.shape[1]), rois.reshape(-1, 4)
    if rois.ndim == 2 and rois.shape[1] == 4 and rois_num is not None:
        counts = _as_numpy(rois_num)
        if counts.shape != (batch,):
            raise ValueError(
                f"{name}: rois_num has shape {counts.shape}, expected ({batch},) "
                "(one count for each image of data)"
            )
        if (counts < 0).any() or counts.sum() != len(rois):
            raise ValueError(
                f"{name}: rois_num is {counts.tolist()}, expected counts that sum to "
                f"{len(rois)} (the rows of rois)"
            )
        return np.repeat(np.arange(batch), counts.astype(int)), rois
    raise ValueError(
        f"{name}: rois has shape {rois.shape}, expected (K, 5), (N, R, 4), "
        "or (K, 4) together with rois_num"
    )


def _check(
    name: str, data: Any, rois: Any, pooled_size: Any, spatial_scale: float, rois_num: Any
) -> _Call:
    data, rois = _as_numpy(data), _as_numpy(rois)
    if data.ndim != 4:
        raise ValueError(f"{name}: data has {data.ndim} dimensions, expected 4 (N, C, H, W)")
    scale = float(spatial_scale)
    if not 0 < scale < float("inf"):
        raise ValueError(f"{name}: spatial_scale is {spatial_scale}, expected a number above 0")
    given, boxes = _batch_indices(name, rois, rois_num, len(data))
    images = np.full(len(given), -1)
    for k, index in enumerate(np.asarray(given, np.float64)):
        if index < 0:
            continue
        if not index < len(data) or index != np.floor(index):
            raise ValueError(
                f"{name}: rois row {k} has batch index {index:g}, expected an integer below "
                f"{len(data)} (the batch size of data), or negative for a padding row"
            )
        images[k] = int(index)
    return _Call(
        data.astype(np.float64),
        float(np.finfo(data.dtype if data.dtype.kind == "f" else np.float64).min),
        images,
        boxes.astype(np.float64),
        _pair(name, "pooled_size", pooled_size),
        scale,
    )


# ---- What the four operators share ---------------------------------------------------------------

Channels = Callable[[int, int], np.ndarray]


def _own_channels(count: int) -> Channels:
    """Every bin reads every channel: out[c, p, q] comes from data[c]."""
    return lambda p, q: np.arange(count)


def _position_sensitive(
    name: str, channels: int, output_dim: int | None, group: tuple[int, int], pooled: tuple
) -> tuple[int, Channels]:
    """Bin (p, q) of output c reads channel (c * GH + gh) * GW + gw, gh = floor(p * GH / P)."""
    (gh, gw), (height, width) = group, pooled
    if output_dim is None:
        if channels % (gh * gw):
            raise ValueError(
                f"{name}: data has {channels} channels, expected a multiple of {gh} * {gw}"
            )
        output_dim = channels // (gh * gw)
    if channels != output_dim * gh * gw:
        raise ValueError(
            f"{name}: data has {channels} channels, expected "
            f"output_dim * {gh} * {gw} = {output_dim * gh * gw}"
        )

    def channels_of(p: int, q: int) -> np.ndarray:
        c = np.arange(output_dim)
        return (c * gh + min(p * gh // height, gh - 1)) * gw + min(q * gw // width, gw - 1)

    return output_dim, channels_of


def _bins(pooled: tuple[int, int]) -> Iterator[tuple[int, int]]:
    return itertools.product(range(pooled[0]), range(pooled[1]))


def _forward(call: _Call, channels: int, per_roi: Callable) -> np.ndarray:
    """Let per_roi(map, box, out) fill the rows of the output that a box decides."""
    out = np.zeros((len(call.images), channels) + call.pooled)
    for image, box, row in zip(call.images, call.boxes, out):
        if image < 0:
            continue
        if np.isfinite(box).all():
            per_roi(call.data[image], box, row)
        else:
            row[:] = np.nan
    return out


def _backward(
    name: str, call: _Call, d_out: Any, channels: int, per_roi: Callable
) -> tuple[np.ndarray, np.ndarray]:
    """Let per_roi(map, box, d_row, d_map, d_box) add the gradients of each box with a result."""
    d_out = _as_numpy(d_out).astype(np.float64)
    expected = (len(call.images), channels) + call.pooled
    if d_out.shape != expected:
        raise ValueError(f"{name}: d_out has shape {d_out.shape}, expected {expected}")
    d_data, d_boxes = np.zeros_like(call.data), np.zeros_like(call.boxes)
    for image, box, d_row, d_box in zip(call.images, call.boxes, d_out, d_boxes):
        if image >= 0 and np.isfinite(box).all():
            per_roi(call.data[image], box, d_row, d_data[image], d_box)
    return d_data, d_boxes


# ---- ROIPool and PSROIPool -----------------------------------------------------------------------


def _round(value: Any) -> float:
    """Half away from zero, as C's round(); exact, because the input is float32."""
    return float(np.copysign(np.floor(abs(np.float64(value)) + 0.5), value))


def _saturate(value: Any) -> Any:
    limit = type(value)(FARTHEST)
    return max(-limit, min(value, limit))


def _pool_edges(
    rule: str, lo: float, hi: float, scale: float, bins: int, size: int
) -> list[tuple[int, int]]:
    """First cell and end (exclusive) of each bin along one axis, clipped to the map.

    Edges are computed in float32, in the order of operations of the peers, whatever the type of
    the data: the bins of a box do not depend on the precision of the map.
    """
    f32 = np.float32
    with np.errstate(over="ignore"):
        x1, x2, s = f32(lo), f32(hi), f32(scale)
        if rule == "rfcn":
            # Rounded before scaling; the end is inclusive, hence the +1.
            start = _saturate(f32(_round(x1)) * s)
            end = _saturate((f32(_round(x2)) + f32(1)) * s)
            length = max(end - start, f32(0.1))
        else:
            # Rounded after scaling; start and end are whole cells.
            start, end = _round(_saturate(x1 * s)), _round(_saturate(x2 * s))
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


def _pool_bins(rule: str, call: _Call, box: np.ndarray) -> Iterator[tuple[int, int, slice, slice]]:
    """The bins of one box that hold a cell: p, q, rows, columns."""
    (height, width), (x1, y1, x2, y2) = call.data.shape[2:], box
    rows = _pool_edges(rule, y1, y2, call.scale, call.pooled[0], height)
    columns = _pool_edges(rule, x1, x2, call.scale, call.pooled[1], width)
    for p, q in _bins(call.pooled):
        if rows[p][0] < rows[p][1] and columns[q][0] < columns[q][1]:
            yield p, q, slice(*rows[p]), slice(*columns[q])


def _maximum(bin_cells: np.ndarray, lowest: float) -> np.ndarray:
    """Largest value of each channel's bin, as a running maximum that starts at `lowest` finds it.

    Comparisons with NaN are false, so NaN cells are passed over, and a bin of nothing but NaN or
    -inf gives `lowest`. MXNet's ROIPooling does the same; it starts at float32's lowest number in
    every type, which float64 maps may go below.
    """
    return np.fmax(np.fmax.reduce(bin_cells.reshape(len(bin_cells), -1), axis=1), lowest)


def roi_pool(
    data: Any, rois: Any, pooled_size: Any, spatial_scale: float, rois_num: Any = None
) -> np.ndarray:
    """Maximum over each bin of each box (Fast R-CNN, Girshick 2015).

    The box is scaled, rounded half away from zero to whole cells, both ends inclusive, and split
    into P x Q bins: ``x1 = round(rx1 * s)``, ``w = max(round(rx2 * s) - x1 + 1, 1)``, bin q from
    ``x1 + floor(q * w / Q)`` to ``x1 + ceil((q + 1) * w / Q)`` exclusive, clipped to the map.
    Bins overlap where edges are rounded. The convention of Caffe, of MXNet's ``ROIPooling``,
    torchvision's ``roi_pool`` and Paddle's ``roi_pool``.

    Parameters
    ----------
    data : array, shape (N, C, H, W)
        Feature maps.
    rois : array, shape (K, 5), (N, R, 4) or (K, 4)
        Rows ``[batch_index, x1, y1, x2, y2]`` in image coordinates; or R boxes for each image,
        K = N * R; or boxes in the order of the images, together with `rois_num`.
    pooled_size : int or (int, int)
        P, Q: bins of the output.
    spatial_scale : float
        Map cells per image pixel.
    rois_num : array of int, shape (N,), optional
        Boxes of each image, for `rois` of shape (K, 4).

    Returns
    -------
    numpy.ndarray, shape (K, C, P, Q), float64
        Empty bins are 0. NaN cells are passed over; a bin of nothing but NaN or -inf gives
        the lowest finite number of the type of `data`.

    Raises
    ------
    ValueError
        Wrong shape, size, scale, or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> roi_pool(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 5.,  7.],
             [13., 15.]]]])
    """
    call = _check("ROIPool", data, rois, pooled_size, spatial_scale, rois_num)

    def per_roi(maps: np.ndarray, box: np.ndarray, out: np.ndarray) -> None:
        for p, q, rows, columns in _pool_bins("roi_pool", call, box):
            out[:, p, q] = _maximum(maps[:, rows, columns], call.lowest)

    return _forward(call, call.data.shape[1], per_roi)


def roi_pool_backward(
    d_out: Any,
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    rois_num: Any = None,
) -> np.ndarray:
    """Gradient of :func:`roi_pool` with respect to data.

    Each bin's gradient goes to its first maximum in row-major order; nowhere if the bin is empty
    or holds nothing above the lowest finite number of the type of `data`.

    Parameters
    ----------
    d_out : array, shape (K, C, P, Q)
        Gradient with respect to the output. The others are those of :func:`roi_pool`.

    Returns
    -------
    numpy.ndarray, shape (N, C, H, W), float64

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> d_out = np.ones((1, 1, 2, 2))
    >>> roi_pool_backward(d_out, ramp, [[0, 0, 0, 3, 3]], 2, 1.)[0, 0]
    array([[0., 0., 0., 0.],
           [0., 1., 0., 1.],
           [0., 0., 0., 0.],
           [0., 1., 0., 1.]])
    """
    name = "ROIPool"
    call = _check(name, data, rois, pooled_size, spatial_scale, rois_num)

    def per_roi(maps: np.ndarray, box: Any, d_row: Any, d_maps: np.ndarray, d_box: Any) -> None:
        for p, q, rows, columns in _pool_bins("roi_pool", call, box):
            cells = maps[:, rows, columns]
            largest = cells == _maximum(cells, call.lowest)[:, None, None]
            largest &= cells > call.lowest
            for c in np.flatnonzero(largest.any(axis=(1, 2))):
                y, x = np.argwhere(largest[c])[0]
                d_maps[c, rows, columns][y, x] += d_row[c, p, q]

    return _backward(name, call, d_out, call.data.shape[1], per_roi)[0]


def _ps_roi_pool_call(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    output_dim: int | None,
    group_size: Any,
    convention: str,
    rois_num: Any,
) -> tuple[_Call, int, Channels]:
    name = "PSROIPool"
    if convention not in CONVENTIONS:
        raise ValueError(f"{name}: convention is {convention!r}, expected one of {CONVENTIONS}")
    call = _check(name, data, rois, pooled_size, spatial_scale, rois_num)
    group = call.pooled if group_size is None else _pair(name, "group_size", group_size)
    return (call, *_position_sensitive(name, call.data.shape[1], output_dim, group, call.pooled))


def ps_roi_pool(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: Any = None,
    convention: str = "rfcn",
    rois_num: Any = None,
) -> np.ndarray:
    """Mean over each bin of each box, every bin from channels of its own (R-FCN, Dai 2016).

    ``convention="rfcn"`` (Caffe R-FCN, MXNet's ``contrib.PSROIPooling``, Paddle's
    ``psroi_pool``): rounded before scaling, end inclusive, ``x1 = round(rx1) * s``,
    ``w = max((round(rx2) + 1) * s - x1, 0.1)``, bin q from ``floor(q * w / Q + x1)`` to
    ``ceil((q + 1) * w / Q + x1)`` exclusive, clipped to the map.

    ``convention="torchvision"`` (``torchvision.ops.ps_roi_pool``): rounded after scaling, end
    exclusive, ``w = max(round(rx2 * s) - round(rx1 * s), 1)``, bins as in :func:`roi_pool` but
    clipped one cell earlier: the last row and column of the map are never read.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, rois_num
        As in :func:`roi_pool`, with C = output_dim * G * G channels.
    output_dim : int, optional
        Channels of the output; C / (G * G) if not given.
    group_size : int or (int, int), optional
        G, the grid of channel groups; `pooled_size` if not given. Bin (p, q) of output c reads
        channel ``(c * G + floor(p * G / P)) * G + floor(q * G / Q)``.
    convention : {'rfcn', 'torchvision'}
        Where the bins are.

    Returns
    -------
    numpy.ndarray, shape (K, output_dim, P, Q), float64
        The sum over the bin divided by the cells of the clipped bin; empty bins are 0.

    Raises
    ------
    ValueError
        Wrong shape, size, scale, convention, number of channels, or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4).repeat(4, axis=1)
    >>> ps_roi_pool(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 2.5,  4.5],
             [10.5, 12.5]]]])
    """
    call, output_dim, channels = _ps_roi_pool_call(
        data, rois, pooled_size, spatial_scale, output_dim, group_size, convention, rois_num
    )

    def per_roi(maps: np.ndarray, box: np.ndarray, out: np.ndarray) -> None:
        for p, q, rows, columns in _pool_bins(convention, call, box):
            out[:, p, q] = maps[channels(p, q), rows, columns].mean(axis=(1, 2))

    return _forward(call, output_dim, per_roi)


def ps_roi_pool_backward(
    d_out: Any,
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: Any = None,
    convention: str = "rfcn",
    rois_num: Any = None,
) -> np.ndarray:
    """Gradient of :func:`ps_roi_pool` with respect to data: its exact transpose.

    Each bin's gradient is spread evenly over the cells that the forward pass read. (Under the
    torchvision convention this differs from torchvision, whose backward pass clips bins to the
    whole map although its forward pass does not.)

    Parameters
    ----------
    d_out : array, shape (K, output_dim, P, Q)
        Gradient with respect to the output. The others are those of :func:`ps_roi_pool`.

    Returns
    -------
    numpy.ndarray, shape (N, C, H, W), float64

    Examples
    --------
    >>> data, d_out = np.zeros((1, 1, 2, 2)), np.ones((1, 1, 1, 1))
    >>> ps_roi_pool_backward(d_out, data, [[0, 0, 0, 1, 1]], 1, 1.)
    array([[[[0.25, 0.25],
             [0.25, 0.25]]]])
    """
    call, output_dim, channels = _ps_roi_pool_call(
        data, rois, pooled_size, spatial_scale, output_dim, group_size, convention, rois_num
    )

    def per_roi(maps: Any, box: np.ndarray, d_row: Any, d_maps: np.ndarray, d_box: Any) -> None:
        for p, q, rows, columns in _pool_bins(convention, call, box):
            area = (rows.stop - rows.start) * (columns.stop - columns.start)
            d_maps[channels(p, q), rows, columns] += d_row[:, p, q, None, None] / area

    return _backward("PSROIPool", call, d_out, output_dim, per_roi)[0]


# ---- ROIAlign and PSROIAlign ---------------------------------------------------------------------


class _AlignAxis(NamedTuple):
    """Along one axis, what each cell contributes to each bin; the bins of a box are the product.

    Bilinear weights, validity and the divisor are products of a factor for y and one for x, so
    out = weights_y . map . weights_x^T.
    """

    weights: np.ndarray  # (bins, size)
    d_lo: np.ndarray  # derivative of weights with respect to the box's lower image coordinate
    d_hi: np.ndarray  # ... and to its upper one


def _visible_samples(start: Any, bin_size: Any, count: float, size: int) -> np.ndarray:
    """Numbers of the samples of the bin at `start` that can fall on the map."""
    if count <= FEW_SAMPLES or bin_size == 0:
        return np.arange(int(count))
    if count > 2.0**53:
        # So thinly spread that the mean is 0 to the last digit.
        return np.arange(0)
    step = float(bin_size) / count
    first, last = np.sort((np.array([-1.0, size]) - float(start)) / step - 0.5)
    # Coordinates are rounded; a margin keeps every sample that may still be inside.
    rounding = float(np.finfo(type(start)).eps) * abs(float(start) / step)
    margin = 2.0 + min(64.0, 8.0 * rounding)
    first, last = float(np.floor(first - margin)), float(np.ceil(last + margin))
    return np.arange(max(first, 0.0), min(last, count - 1.0) + 1.0)


def _align_axis(
    lo: float,
    hi: float,
    scale: float,
    aligned: bool,
    sampling_ratio: int,
    bins: int,
    size: int,
    geometry: type,
) -> _AlignAxis:
    """Tables of one axis of one box, in the order of operations of the peers."""
    real: Any = geometry
    with np.errstate(over="ignore"):
        s, offset = real(scale), real(0.5 if aligned else 0)
        start = _saturate(real(lo) * s - offset)
        length = _saturate(real(hi) * s - offset) - start
    enlarged = not aligned and length < 1
    if enlarged:
        length = real(1)
    bin_size = length / real(bins)
    count = float(sampling_ratio) if sampling_ratio > 0 else max(float(np.ceil(bin_size)), 1.0)

    axis = _AlignAxis(*(np.zeros((bins, size)) for _ in range(3)))
    for q in range(bins):
        begin = start + real(q) * bin_size
        i = _visible_samples(begin, bin_size, count, size)
        x = begin + (i.astype(real) + real(0.5)) * bin_size / real(count)
        # Samples outside the map count in the divisor, as 0.
        inside = (x >= -1) & (x <= size)
        i, x = i[inside], x[inside]
        low = np.minimum(np.maximum(x, 0).astype(int), size - 1)
        high = np.minimum(low + 1, size - 1)
        high_weight = np.where(low == high, real(0), np.maximum(x, real(0)) - low.astype(real))
        np.add.at(axis.weights[q], low, (real(1) - high_weight) / count)
        np.add.at(axis.weights[q], high, high_weight / count)
        # x = x1 * (1 - t) + x2 * t; a sample held at the border does not move the value.
        t = (q + (i + 0.5) / count) / bins
        slope = np.where((x < 0) | (low == high), 0.0, scale / count)
        for table, share in ((axis.d_lo, 1 - t * (not enlarged)), (axis.d_hi, t * (not enlarged))):
            np.add.at(table[q], low, -slope * share)
            np.add.at(table[q], high, slope * share)
    return axis


def _align_axes(
    call: _Call, box: np.ndarray, aligned: bool, sampling_ratio: int, geometry: type
) -> tuple[_AlignAxis, _AlignAxis]:
    (height, width), (x1, y1, x2, y2) = call.data.shape[2:], box
    common = call.scale, aligned, sampling_ratio
    return (
        _align_axis(y1, y2, *common, call.pooled[0], height, geometry),
        _align_axis(x1, x2, *common, call.pooled[1], width, geometry),
    )


def _weighted(maps: np.ndarray, channels: np.ndarray, wy: np.ndarray, wx: np.ndarray) -> np.ndarray:
    """wy . map . wx for each channel, reading only cells of non-zero weight."""
    y, x = np.flatnonzero(wy), np.flatnonzero(wx)
    return np.einsum("cyx,y,x->c", maps[np.ix_(channels, y, x)], wy[y], wx[x])


def _align_forward(
    call: _Call,
    count: int,
    channels: Channels,
    sampling_ratio: int,
    aligned: bool,
    geometry: type,
) -> np.ndarray:
    def per_roi(maps: np.ndarray, box: np.ndarray, out: np.ndarray) -> None:
        ay, ax = _align_axes(call, box, aligned, sampling_ratio, geometry)
        for p, q in _bins(call.pooled):
            out[:, p, q] = _weighted(maps, channels(p, q), ay.weights[p], ax.weights[q])

    return _forward(call, count, per_roi)


def _align_backward(
    name: str,
    call: _Call,
    d_out: Any,
    rois: Any,
    count: int,
    channels: Channels,
    sampling_ratio: int,
    aligned: bool,
    geometry: type,
) -> tuple[np.ndarray, np.ndarray]:
    def per_roi(
        maps: np.ndarray, box: np.ndarray, d_row: np.ndarray, d_maps: np.ndarray, d_box: np.ndarray
    ) -> None:
        ay, ax = _align_axes(call, box, aligned, sampling_ratio, geometry)
        for p, q in _bins(call.pooled):
            c, d = channels(p, q), d_row[:, p, q]
            wy, wx = ay.weights[p], ax.weights[q]
            y, x = np.flatnonzero(wy), np.flatnonzero(wx)
            d_maps[np.ix_(c, y, x)] += np.einsum("c,y,x->cyx", d, wy[y], wx[x])
            for i, (dy, dx) in enumerate(
                ((wy, ax.d_lo[q]), (ay.d_lo[p], wx), (wy, ax.d_hi[q]), (ay.d_hi[p], wx))
            ):
                d_box[i] += d @ _weighted(maps, c, dy, dx)

    d_data, d_boxes = _backward(name, call, d_out, count, per_roi)
    d_rois = np.zeros(np.shape(rois))
    d_rois[..., -4:] = d_boxes.reshape(d_rois.shape[:-1] + (4,))
    return d_data, d_rois


def roi_align(
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> np.ndarray:
    """Mean of bilinear samples in each bin of each box, without rounding (Mask R-CNN, He 2017).

    With ``o = 0.5 if aligned else 0``: ``x1 = rx1 * s - o``, ``w = rx2 * s - o - x1`` (at least 1
    unless aligned), g samples a bin along the axis, ``g = ceil(w / Q)`` if `sampling_ratio` is
    not positive, at ``x1 + (q + (i + 0.5) / g) * w / Q``. Pixel k lies at coordinate k. Samples
    below -1 or above W are 0, and count; samples in [-1, 0] and [W - 1, W] take the value of the
    border. The convention of MXNet's ``contrib.ROIAlign``, torchvision's ``roi_align``, Paddle's
    ``roi_align`` and detectron2. An inverted box, which only ``aligned=True`` leaves inverted,
    is sampled backwards, by one sample a bin if `sampling_ratio` is not positive.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, rois_num
        As in :func:`roi_pool`.
    sampling_ratio : int
        Samples in each bin along each axis; not positive: one for each cell begun, at least one.
    aligned : bool
        Shift the box by half a cell, so that pixel k covers [k, k + 1], and allow any size.
    geometry : type
        Sample positions are computed in this type, in the order of operations of the peers:
        ``numpy.float32`` follows the operators on float16 and float32 data.

    Returns
    -------
    numpy.ndarray, shape (K, C, P, Q), float64

    Raises
    ------
    ValueError
        Wrong shape, size, scale, or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> roi_align(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[ 3.75,  5.25],
             [ 9.75, 11.25]]]])
    """
    call = _check("ROIAlign", data, rois, pooled_size, spatial_scale, rois_num)
    count = call.data.shape[1]
    return _align_forward(call, count, _own_channels(count), sampling_ratio, aligned, geometry)


def roi_align_backward(
    d_out: Any,
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`roi_align` with respect to data and to the coordinates of rois.

    The number of samples is taken as a constant. Where the minimum size of 1 is in force, only
    x1 moves the samples. At a kink of the bilinear surface the derivative is the one to the right.

    Parameters
    ----------
    d_out : array, shape (K, C, P, Q)
        Gradient with respect to the output. The others are those of :func:`roi_align`.

    Returns
    -------
    d_data : numpy.ndarray, shape (N, C, H, W), float64
    d_rois : numpy.ndarray, the shape of `rois`, float64
        Per image pixel; 0 in the column of batch indices and for rows without a result.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4)
    >>> d_data, d_rois = roi_align_backward(
    ...     np.ones((1, 1, 1, 1)), ramp, [[0, 1, 1, 2, 2]], 1, 1., sampling_ratio=1)
    >>> d_data[0, 0]
    array([[0.  , 0.  , 0.  , 0.  ],
           [0.  , 0.25, 0.25, 0.  ],
           [0.  , 0.25, 0.25, 0.  ],
           [0.  , 0.  , 0.  , 0.  ]])
    >>> d_rois
    array([[0. , 0.5, 2. , 0.5, 2. ]])
    """
    name = "ROIAlign"
    call = _check(name, data, rois, pooled_size, spatial_scale, rois_num)
    count = call.data.shape[1]
    return _align_backward(
        name, call, d_out, rois, count, _own_channels(count), sampling_ratio, aligned, geometry
    )


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
) -> np.ndarray:
    """ROIAlign in which every bin reads channels of its own (Light-Head R-CNN, Li 2017).

    The samples are those of :func:`roi_align`; bin (p, q) of output c reads channel
    ``(c * P + p) * Q + q``. Equal to torchvision's ``ps_roi_align``; with ``aligned=False`` to
    MXNet's ``contrib.ROIAlign(position_sensitive=True)``.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, rois_num
        As in :func:`roi_pool`, with C = output_dim * P * Q channels.
    output_dim : int, optional
        Channels of the output; C / (P * Q) if not given.
    sampling_ratio, aligned, geometry
        As in :func:`roi_align`; `aligned` is true by default.

    Returns
    -------
    numpy.ndarray, shape (K, output_dim, P, Q), float64

    Raises
    ------
    ValueError
        Wrong shape, size, scale, number of channels, or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.).reshape(1, 1, 4, 4).repeat(4, axis=1)
    >>> ps_roi_align(ramp, [[0, 0, 0, 3, 3]], pooled_size=2, spatial_scale=1.)
    array([[[[1.5625, 3.    ],
             [7.3125, 8.75  ]]]])
    """
    name = "PSROIAlign"
    call = _check(name, data, rois, pooled_size, spatial_scale, rois_num)
    count, channels = _position_sensitive(
        name, call.data.shape[1], output_dim, call.pooled, call.pooled
    )
    return _align_forward(call, count, channels, sampling_ratio, aligned, geometry)


def ps_roi_align_backward(
    d_out: Any,
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    output_dim: int | None = None,
    sampling_ratio: int = -1,
    aligned: bool = True,
    rois_num: Any = None,
    geometry: type = np.float64,
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of :func:`ps_roi_align` with respect to data and to the coordinates of rois.

    Parameters
    ----------
    d_out : array, shape (K, output_dim, P, Q)
        Gradient with respect to the output. The others are those of :func:`ps_roi_align`.

    Returns
    -------
    d_data : numpy.ndarray, shape (N, C, H, W), float64
    d_rois : numpy.ndarray, the shape of `rois`, float64
        As in :func:`roi_align_backward`.

    Examples
    --------
    >>> data, d_out = np.zeros((1, 1, 2, 2)), np.ones((1, 1, 1, 1))
    >>> d_data, d_rois = ps_roi_align_backward(d_out, data, [[0, 0, 0, 2, 2]], 1, 1.)
    >>> d_data
    array([[[[0.25, 0.25],
             [0.25, 0.25]]]])
    """
    name = "PSROIAlign"
    call = _check(name, data, rois, pooled_size, spatial_scale, rois_num)
    count, channels = _position_sensitive(
        name, call.data.shape[1], output_dim, call.pooled, call.pooled
    )
    return _align_backward(
        name, call, d_out, rois, count, channels, sampling_ratio, aligned, geometry
    )
