# SPDX-License-Identifier: Apache-2.0
"""Shared code of the reference operators: checked arguments, channels, the loop over RoIs."""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import TYPE_CHECKING, Any, Callable, Iterator, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    Arguments = ParamSpec("Arguments")

#: Map coordinates are clamped to [-MAX_COORDINATE, MAX_COORDINATE].
MAX_COORDINATE = 1e30


# ---- Arguments -----------------------------------------------------------------------------------


class Call(NamedTuple):
    """Checked arguments of one call."""

    name: str  # of the operator, for error messages
    data: np.ndarray  # (N, C, H, W), float64
    lowest: float  # the lowest finite number of the dtype of the data argument
    images: np.ndarray  # (K,), batch indices, -1 for a padding row
    boxes: np.ndarray  # (K, 4), x1 y1 x2 y2 in image coordinates, or (K, 5) rotated, float64
    rois_shape: tuple
    pooled: tuple[int, int]  # P, Q
    scale: float  # map cells per image pixel

    def maps(self, k: int) -> np.ndarray:
        """The maps of row k, (C, H, W)."""
        return self.data[self.images[k]]

    def axes(self, k: int, axis: Callable) -> list:
        """axis(lo, hi, scale, bins, size) for y and for x of the upright box of row k."""
        (x1, y1, x2, y2), sizes = self.boxes[k], self.data.shape[2:]
        sides = zip((y1, x1), (y2, x2), self.pooled, sizes)
        return [axis(lo, hi, self.scale, bins, size) for lo, hi, bins, size in sides]


def as_numpy(array: Any) -> np.ndarray:
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def pair(name: str, argument: str, value: Any) -> tuple[int, int]:
    pair = (value, value) if np.ndim(value) == 0 else tuple(value)
    if len(pair) != 2 or any(int(v) != v or v < 1 for v in pair):
        raise ValueError(
            f"{name}: {argument} is {value!r}, expected a positive integer or a pair of them"
        )
    return int(pair[0]), int(pair[1])


def split_rois(
    name: str, rois: np.ndarray, rois_num: Any, batch: int, coordinates: int
) -> tuple[np.ndarray, np.ndarray]:
    """Split rois, in any of its three layouts, into unchecked batch indices and boxes."""
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
    if not 0 < scale <= MAX_COORDINATE:
        expected = f"a number above 0, at most {MAX_COORDINATE:g}"
        raise ValueError(f"{name}: spatial_scale is {spatial_scale}, expected {expected}")
    given, boxes = split_rois(name, rois, rois_num, len(data), coordinates)
    indices = np.asarray(given, np.float64)
    is_valid = (indices < 0) | ((indices < len(data)) & (indices == np.floor(indices)))
    if not is_valid.all():
        k = np.argmin(is_valid)
        raise ValueError(
            f"{name}: rois row {k} has batch index {indices[k]:g}, expected an integer below "
            f"{len(data)} (the batch size of data), or negative for a padding row"
        )
    return Call(
        name,
        data.astype(np.float64),
        float(np.finfo(data.dtype if data.dtype.kind == "f" else np.float64).min),
        np.where(indices < 0, -1, indices).astype(int),
        boxes.astype(np.float64),
        rois.shape,
        pair(name, "pooled_size", pooled_size),
        scale,
    )


# ---- Channels ------------------------------------------------------------------------------------


class Channels(NamedTuple):
    """The channels of data that bins read."""

    out_channels: int
    of_bin: Callable[
        [int, int], np.ndarray
    ]  # of_bin(p, q): the channel of data for each channel of the output


def all_channels(call: Call) -> Channels:
    """Every bin reads all channels: out[c, p, q] is pooled from data[c]."""
    count = call.data.shape[1]
    return Channels(count, lambda p, q: np.arange(count))


def position_sensitive(call: Call, output_dim: int | None, group: tuple[int, int]) -> Channels:
    """Bin (p, q) of output c reads channel (c * GH + gh) * GW + gw, gh = floor(p * GH / P)."""
    channels, (gh, gw), (height, width) = call.data.shape[1], group, call.pooled
    if output_dim is None:
        if channels % (gh * gw):
            raise ValueError(
                f"{call.name}: data has {channels} channels, expected a multiple of {gh} * {gw}"
            )
        output_dim = channels // (gh * gw)
    if channels != output_dim * gh * gw:
        raise ValueError(
            f"{call.name}: data has {channels} channels, expected "
            f"output_dim * {gh} * {gw} = {output_dim * gh * gw}"
        )

    def of_bin(p: int, q: int) -> np.ndarray:
        c = np.arange(output_dim)
        return (c * gh + min(p * gh // height, gh - 1)) * gw + min(q * gw // width, gw - 1)

    return Channels(output_dim, of_bin)


# ---- Operators -----------------------------------------------------------------------------------


class Operator:
    """An operator with its arguments; a subclass pools one box."""

    def __init__(self, call: Call, channels: Channels) -> None:
        self.call, self.channels = call, channels

    def pool(self, k: int, out: np.ndarray) -> None:
        """Write row k of the output into `out`, which is filled with 0."""
        raise NotImplementedError

    def pool_backward(self, k: int, d_out: np.ndarray, d_maps: np.ndarray) -> Any:
        """Add the gradient of row k's maps to `d_maps`; return the gradient of its box, or 0."""
        raise NotImplementedError

    def valid_rows(self) -> np.ndarray:
        """Indices of the rows that are neither padding nor NaN."""
        finite = np.isfinite(self.call.boxes).all(axis=1)
        return np.flatnonzero((self.call.images >= 0) & finite)

    def forward(self) -> np.ndarray:
        call = self.call
        out = np.zeros((len(call.images), self.channels.out_channels, *call.pooled))
        out[(call.images >= 0) & ~np.isfinite(call.boxes).all(axis=1)] = np.nan
        for k in self.valid_rows():
            self.pool(k, out[k])
        return out

    def backward(self, d_out: Any) -> tuple[np.ndarray, np.ndarray]:
        """Gradients with respect to data and rois; those of batch indices are 0."""
        call, d_out = self.call, as_numpy(d_out).astype(np.float64)
        expected = (len(call.images), self.channels.out_channels, *call.pooled)
        if d_out.shape != expected:
            raise ValueError(f"{call.name}: d_out has shape {d_out.shape}, expected {expected}")
        d_data, d_boxes = np.zeros_like(call.data), np.zeros_like(call.boxes)
        for k in self.valid_rows():
            d_boxes[k] = self.pool_backward(k, d_out[k], d_data[call.images[k]])
        d_rois, coordinates = np.zeros(call.rois_shape), d_boxes.shape[1]
        d_rois[..., -coordinates:] = d_boxes.reshape(*call.rois_shape[:-1], coordinates)
        return d_data, d_rois


def operator(bind: Callable[Arguments, Any]) -> Callable[Arguments, np.ndarray]:
    """Decorator: turn a function that returns a bound operator into one that returns its output."""

    @functools.wraps(bind)
    def forward(*args: Any, **kwargs: Any) -> np.ndarray:
        return bind(*args, **kwargs).forward()

    signature = inspect.signature(bind).replace(return_annotation="np.ndarray")
    forward.__signature__ = signature  # type: ignore[attr-defined]
    return forward


def backward_of(forward: Callable[Arguments, np.ndarray]) -> Callable:
    """Decorator: turn a function (d_out, bound operator) into one (d_out, operator's arguments)."""
    bind, arguments = inspect.unwrap(forward), inspect.signature(forward).parameters

    def decorate(
        function: Callable[[Any, Any], Any],
    ) -> Callable[Concatenate[Any, Arguments], Any]:
        @functools.wraps(function)
        def backward(d_out: Any, *args: Any, **kwargs: Any) -> Any:
            return function(d_out, bind(*args, **kwargs))

        signature = inspect.signature(function)
        parameters = [signature.parameters["d_out"], *arguments.values()]
        backward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return backward

    return decorate


# ---- Bins ----------------------------------------------------------------------------------------


def bins_of(pooled: tuple[int, int]) -> Iterator[tuple[int, int]]:
    return itertools.product(range(pooled[0]), range(pooled[1]))


def weighted_sum(
    maps: np.ndarray, channels: np.ndarray, wy: np.ndarray, wx: np.ndarray
) -> np.ndarray:
    """wy . map . wx for each channel; cells with a weight of 0 are not read."""
    y, x = np.flatnonzero(wy), np.flatnonzero(wx)
    return np.einsum("cyx,y,x->c", maps[np.ix_(channels, y, x)], wy[y], wx[x])


class Axis(NamedTuple):
    """Weights of the cells in each bin along one axis: out = weights_y . map . weights_x^T."""

    weights: np.ndarray  # (bins, size)
    d_lo: np.ndarray  # derivative of weights with respect to the box's lower image coordinate
    d_hi: np.ndarray  # ... and to the upper one

    @classmethod
    def zeros(cls, bins: int, size: int) -> Axis:
        return cls(*(np.zeros((bins, size)) for _ in range(3)))


class Separable(Operator):
    """An operator whose weights are products of y and x, from axis(lo, hi, scale, bins, size)."""

    def __init__(self, call: Call, channels: Channels, axis: Callable[..., Axis]) -> None:
        super().__init__(call, channels)
        self.axis = axis

    def pool(self, k: int, out: np.ndarray) -> None:
        maps, (ay, ax) = self.call.maps(k), self.call.axes(k, self.axis)
        for p, q in bins_of(self.call.pooled):
            channels = self.channels.of_bin(p, q)
            out[:, p, q] = weighted_sum(maps, channels, ay.weights[p], ax.weights[q])

    def pool_backward(self, k: int, d_out: np.ndarray, d_maps: np.ndarray) -> np.ndarray:
        maps, (ay, ax), d_box = self.call.maps(k), self.call.axes(k, self.axis), np.zeros(4)
        for p, q in bins_of(self.call.pooled):
            c, d = self.channels.of_bin(p, q), d_out[:, p, q]
            wy, wx = ay.weights[p], ax.weights[q]
            y, x = np.flatnonzero(wy), np.flatnonzero(wx)
            d_maps[np.ix_(c, y, x)] += np.einsum("c,y,x->cyx", d, wy[y], wx[x])
            for i, (dy, dx) in enumerate(
                ((wy, ax.d_lo[q]), (ay.d_lo[p], wx), (wy, ax.d_hi[q]), (ay.d_hi[p], wx))
            ):
                d_box[i] += d @ weighted_sum(maps, c, dy, dx)
        return d_box


# ---- Samples -------------------------------------------------------------------------------------

#: With more samples per bin than this, only those that may lie on the map are visited.
MAX_VISITED_SAMPLES = 4096


def split_side(length: Any, bins: int, aligned: bool, sampling_ratio: int) -> tuple:
    """Length of a side, length of its bins, samples per bin, and whether the side was enlarged."""
    real = type(length)
    enlarged = not aligned and length < 1
    if enlarged:
        length = real(1)
    bin_size = length / real(bins)
    count = float(sampling_ratio) if sampling_ratio > 0 else max(float(np.ceil(bin_size)), 1.0)
    return length, bin_size, count, enlarged


def visible_samples(
    begin: Any, bin_size: Any, count: float, low: float, high: float, reach: float
) -> np.ndarray:
    """Indices of the samples, in the bin that starts at `begin`, that may lie in [low, high].

    `reach` is an upper bound of the coordinates that positions are computed from.
    """
    if count > 2.0**53:
        # The samples are so sparse that the mean rounds to 0.
        return np.arange(0)
    if count <= MAX_VISITED_SAMPLES or bin_size == 0:
        return np.arange(int(count))
    step = float(bin_size) / count
    first, last = np.sort((np.array([low, high]) - float(begin)) / step - 0.5)
    # Coordinates are rounded, so a margin keeps every sample that may still lie inside.
    margin = 2.0 + min(64.0, 8.0 * float(np.finfo(type(begin)).eps) * abs(reach / step))
    first, last = np.floor(first - margin), np.ceil(last + margin)
    return np.arange(max(first, 0.0), min(last, count - 1.0) + 1.0)


def bilinear(at: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Lower cell, higher cell, weight of the higher cell, and whether that weight varies.

    Samples lie in [-1, size]. Samples beyond the centre of the first or last cell are clamped, so
    their weights are constant.
    """
    real = at.dtype.type
    low = np.minimum(np.maximum(at, 0).astype(int), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = np.where(low == high, real(0), np.maximum(at, real(0)) - low.astype(real))
    return low, high, weight, ~((at < 0) | (low == high))


class Samples(NamedTuple):
    """The samples of one bin along one axis that are on the map."""

    fractions: np.ndarray  # position of each sample as a fraction of the bin
    low: np.ndarray  # the cells on both sides
    high: np.ndarray
    high_weight: np.ndarray
    varies: np.ndarray  # whether high_weight varies with the position


class AlignSide(NamedTuple):
    """One side of a box of ROIAlign, in map coordinates, split into bins of evenly spaced samples.

    Operations are in the order of MXNet and torchvision.
    """

    start: Any
    bin_size: Any
    samples_per_bin: float
    enlarged: bool  # whether the side was enlarged to the minimum size of 1

    @classmethod
    def make(
        cls,
        aligned: bool,
        sampling_ratio: int,
        geometry: type,
        lo: float,
        hi: float,
        scale: float,
        bins: int,
    ) -> AlignSide:
        """The side between two image coordinates, with positions of the type `geometry`."""
        real: Any = geometry
        with np.errstate(over="ignore"):
            s, offset = real(scale), real(0.5 if aligned else 0)
            start = saturate(real(lo) * s - offset)
            length = saturate(real(hi) * s - offset) - start
        return cls(start, *split_side(length, bins, aligned, sampling_ratio)[1:])

    def samples(self, q: int, size: int, shift: Any = 0) -> Samples:
        """The samples of bin q on a map of a size, if the box is shifted."""
        real: Any = type(self.start)
        with np.errstate(over="ignore"):
            begin = saturate(self.start + real(shift)) + real(q) * self.bin_size
        i = visible_samples(begin, self.bin_size, self.samples_per_bin, -1.0, size, float(begin))
        x = begin + (i.astype(real) + real(0.5)) * self.bin_size / real(self.samples_per_bin)
        inside = (x >= -1) & (x <= size)
        return Samples((i[inside] + 0.5) / self.samples_per_bin, *bilinear(x[inside], size))


def saturate(value: Any) -> Any:
    limit = type(value)(MAX_COORDINATE)
    return max(-limit, min(value, limit))
