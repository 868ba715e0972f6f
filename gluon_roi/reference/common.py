# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the reference operators: checked arguments, channels, the loop over RoIs."""

from __future__ import annotations

import itertools
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np

#: Map coordinates are limited to it.
FARTHEST = 1e30


# ---- Arguments -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """Checked arguments of one call."""

    data: np.ndarray  # (N, C, H, W), float64
    lowest: float  # the lowest finite number of the type that data came in
    images: np.ndarray  # (K,), index into the batch, -1 for a padding row
    boxes: np.ndarray  # (K, 4), x1 y1 x2 y2 in image coordinates, or (K, 5) rotated, float64
    pooled: tuple[int, int]  # P, Q
    scale: float  # map cells per image pixel


def as_numpy(array: Any) -> np.ndarray:
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def pair(name: str, argument: str, value: Any) -> tuple[int, int]:
    pair = (value, value) if np.ndim(value) == 0 else tuple(value)
    if len(pair) != 2 or any(int(v) != v or v < 1 for v in pair):
        raise ValueError(
            f"{name}: {argument} is {value!r}, expected a positive integer or a pair of them"
        )
    return int(pair[0]), int(pair[1])


def batch_indices(
    name: str, rois: np.ndarray, rois_num: Any, batch: int, coordinates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split any of the three layouts of rois into (batch index as given, box) per row."""
    if rois.ndim == 2 and rois.shape[1] == coordinates + 1 and rois_num is None:
        return rois[:, 0], rois[:, 1:]
    if rois.ndim == 3 and rois.shape[2] == coordinates and rois_num is None:
        if rois.shape[0] != batch:
            raise ValueError(
                f"{name}: rois has boxes for {rois.shape[0]} images, expected {batch} "
                "(the batch size of data)"
            )
        return np.repeat(np.arange(batch), rois.shape[1]), rois.reshape(-1, coordinates)
    if rois.ndim == 2 and rois.shape[1] == coordinates and rois_num is not None:
        counts = as_numpy(rois_num)
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
        f"{name}: rois has shape {rois.shape}, expected (K, {coordinates + 1}), "
        f"(N, R, {coordinates}), or (K, {coordinates}) together with rois_num"
    )


def check(
    name: str,
    data: Any,
    rois: Any,
    pooled_size: Any,
    spatial_scale: float,
    rois_num: Any,
    coordinates: int = 4,
) -> Call:
    data, rois = as_numpy(data), as_numpy(rois)
    if data.ndim != 4:
        raise ValueError(f"{name}: data has {data.ndim} dimensions, expected 4 (N, C, H, W)")
    scale = float(spatial_scale)
    if not 0 < scale < float("inf"):
        raise ValueError(f"{name}: spatial_scale is {spatial_scale}, expected a number above 0")
    given, boxes = batch_indices(name, rois, rois_num, len(data), coordinates)
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
    return Call(
        data.astype(np.float64),
        float(np.finfo(data.dtype if data.dtype.kind == "f" else np.float64).min),
        images,
        boxes.astype(np.float64),
        pair(name, "pooled_size", pooled_size),
        scale,
    )


# ---- What operators share ---------------------------------------------------------------

Channels = Callable[[int, int], np.ndarray]


def own_channels(count: int) -> Channels:
    """Every bin reads every channel: out[c, p, q] comes from data[c]."""
    return lambda p, q: np.arange(count)


def position_sensitive(
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


def bins_of(pooled: tuple[int, int]) -> Iterator[tuple[int, int]]:
    return itertools.product(range(pooled[0]), range(pooled[1]))


def forward(call: Call, channels: int, per_roi: Callable) -> np.ndarray:
    """Fill the rows of boxes with a result by per_roi(map, box, out)."""
    out = np.zeros((len(call.images), channels) + call.pooled)
    for image, box, row in zip(call.images, call.boxes, out):
        if image < 0:
            continue
        if np.isfinite(box).all():
            per_roi(call.data[image], box, row)
        else:
            row[:] = np.nan
    return out


def backward(
    name: str, call: Call, d_out: Any, channels: int, per_roi: Callable
) -> tuple[np.ndarray, np.ndarray]:
    """Add the gradients of each box with a result by per_roi(map, box, d_row, d_map, d_box)."""
    d_out = as_numpy(d_out).astype(np.float64)
    expected = (len(call.images), channels) + call.pooled
    if d_out.shape != expected:
        raise ValueError(f"{name}: d_out has shape {d_out.shape}, expected {expected}")
    d_data, d_boxes = np.zeros_like(call.data), np.zeros_like(call.boxes)
    for image, box, d_row, d_box in zip(call.images, call.boxes, d_out, d_boxes):
        if image >= 0 and np.isfinite(box).all():
            per_roi(call.data[image], box, d_row, d_data[image], d_box)
    return d_data, d_boxes


def as_rois(d_boxes: np.ndarray, rois: Any) -> np.ndarray:
    """Gradients of boxes in the layout of rois, with 0 in the column of batch indices."""
    d_rois = np.zeros(np.shape(rois))
    count = d_boxes.shape[1]
    d_rois[..., -count:] = d_boxes.reshape(d_rois.shape[:-1] + (count,))
    return d_rois


def weighted(maps: np.ndarray, channels: np.ndarray, wy: np.ndarray, wx: np.ndarray) -> np.ndarray:
    """wy . map . wx for each channel, reading only cells of non-zero weight."""
    y, x = np.flatnonzero(wy), np.flatnonzero(wx)
    return np.einsum("cyx,y,x->c", maps[np.ix_(channels, y, x)], wy[y], wx[x])


class Axis(NamedTuple):
    """The weight of each cell in each bin along one axis, of bins that are products of two axes.

    out = weights_y . map . weights_x^T.
    """

    weights: np.ndarray  # (bins, size)
    d_lo: np.ndarray  # derivative of weights with respect to the box's lower image coordinate
    d_hi: np.ndarray  # ... and to its upper one

    @classmethod
    def zeros(cls, bins: int, size: int) -> Axis:
        return cls(*(np.zeros((bins, size)) for _ in range(3)))


def axes_of(call: Call, box: np.ndarray, axis: Callable[..., Axis]) -> tuple[Axis, Axis]:
    """The axes y and x of a box by axis(lo, hi, scale, bins, size)."""
    (height, width), (x1, y1, x2, y2) = call.data.shape[2:], box
    return (
        axis(y1, y2, call.scale, call.pooled[0], height),
        axis(x1, x2, call.scale, call.pooled[1], width),
    )


def separable_forward(
    call: Call, count: int, channels: Channels, axis: Callable[..., Axis]
) -> np.ndarray:
    """The output of an operator whose bins are products of two axes."""

    def per_roi(maps: np.ndarray, box: np.ndarray, out: np.ndarray) -> None:
        ay, ax = axes_of(call, box, axis)
        for p, q in bins_of(call.pooled):
            out[:, p, q] = weighted(maps, channels(p, q), ay.weights[p], ax.weights[q])

    return forward(call, count, per_roi)


def separable_backward(
    name: str,
    call: Call,
    d_out: Any,
    rois: Any,
    count: int,
    channels: Channels,
    axis: Callable[..., Axis],
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of data and rois of such an operator."""

    def per_roi(
        maps: np.ndarray, box: np.ndarray, d_row: np.ndarray, d_maps: np.ndarray, d_box: np.ndarray
    ) -> None:
        ay, ax = axes_of(call, box, axis)
        for p, q in bins_of(call.pooled):
            c, d = channels(p, q), d_row[:, p, q]
            wy, wx = ay.weights[p], ax.weights[q]
            y, x = np.flatnonzero(wy), np.flatnonzero(wx)
            d_maps[np.ix_(c, y, x)] += np.einsum("c,y,x->cyx", d, wy[y], wx[x])
            for i, (dy, dx) in enumerate(
                ((wy, ax.d_lo[q]), (ay.d_lo[p], wx), (wy, ax.d_hi[q]), (ay.d_hi[p], wx))
            ):
                d_box[i] += d @ weighted(maps, c, dy, dx)

    d_data, d_boxes = backward(name, call, d_out, count, per_roi)
    return d_data, as_rois(d_boxes, rois)


def saturate(value: Any) -> Any:
    limit = type(value)(FARTHEST)
    return max(-limit, min(value, limit))
