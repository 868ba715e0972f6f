# SPDX-License-Identifier: Apache-2.0
"""DeformableSampling: what a deformable convolution multiplies by its weights."""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple

import numpy as np

from .common import as_numpy, pair

__all__ = ["deformable_sampling", "deformable_sampling_backward"]


class _Call(NamedTuple):
    data: np.ndarray  # (N, C, H, W), float64
    offset: np.ndarray  # (N, groups, kernel cells, 2, Ho, Wo), of the type of positions
    mask: np.ndarray  # (N, groups, kernel cells, Ho, Wo), float64
    kernel: tuple[int, int]
    corner: tuple[np.ndarray, np.ndarray]  # y (Ho, 1) and x (1, Wo) of kernel cell (0, 0)
    dilate: tuple[int, int]
    groups: int
    fades: bool
    columns: bool


class _Axis(NamedTuple):
    counts: np.ndarray
    low: np.ndarray  # cells; those beyond the map are not there
    high: np.ndarray
    part: np.ndarray  # weight of the high one


class _Sample(NamedTuple):
    """Those of one kernel cell in one group, (N, Ho, Wo)."""

    channels: slice  # of data
    rows: tuple  # index of the output as (N, C, Ho, kh, Wo, kw): channels are second
    moves: tuple  # index of mask
    cells: list[tuple]  # four (y, x, whether it is there), (N, Ho, Wo)
    y: _Axis
    x: _Axis

    def weights(self) -> list[np.ndarray]:
        y, x = self.y.part, self.x.part
        return [(1 - y) * (1 - x), (1 - y) * x, y * (1 - x), y * x]


def deformable_sampling(
    data: Any,
    offset: Any,
    mask: Any = None,
    kernel: Any = 1,
    stride: Any = 1,
    dilate: Any = 1,
    pad: Any = 0,
    num_deformable_group: int = 1,
    convention: str = "mxnet",
    layout: str = "map",
    geometry: Any = "float64",
) -> np.ndarray:
    """The samples of a deformable convolution (Dai et al. 2017, section 2.1; Zhu et al. 2018).

    Parameters
    ----------
    data, offset, mask, kernel, stride, dilate, pad, num_deformable_group, convention, layout
        As in :class:`gluon_roi.DeformableSampling`.
    geometry : type
        Type of sample positions: ``'float32'`` follows the operator on float16 and float32 data.

    Returns
    -------
    numpy.ndarray, shape (N, C, Ho * kh, Wo * kw) or (N, C * kh * kw, Ho, Wo), float64

    Raises
    ------
    ValueError
        Wrong shape, or another convention or layout.

    Examples
    --------
    >>> import numpy as np, gluon_roi
    >>> ramp = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> offset = np.tile([[[[0.5]], [[0.25]]]], (1, 1, 4, 4))
    >>> gluon_roi.reference.deformable_sampling(ramp, offset)[0, 0, 0].tolist()
    [2.25, 3.25, 4.25, 5.0]
    """
    sizes = kernel, stride, dilate, pad
    call = _check(data, offset, mask, sizes, num_deformable_group, convention, layout, geometry)
    out = np.zeros(_output_shape(call))
    apart = _apart(call, out)
    for sample in _samples(call):
        total: Any = 0.0
        for values, weight in zip(_values(call, sample), sample.weights()):
            total = total + np.where(weight != 0, weight * values, 0)
        counts = sample.y.counts & sample.x.counts
        apart[sample.rows] = np.where(counts, call.mask[sample.moves] * total, 0).swapaxes(0, 1)
    return out


def deformable_sampling_backward(
    d_out: Any,
    data: Any,
    offset: Any,
    mask: Any = None,
    kernel: Any = 1,
    stride: Any = 1,
    dilate: Any = 1,
    pad: Any = 0,
    num_deformable_group: int = 1,
    convention: str = "mxnet",
    layout: str = "map",
    geometry: Any = "float64",
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of :func:`deformable_sampling` with respect to data, offset and mask.

    Parameters
    ----------
    d_out : array, shape (N, C, Ho * kh, Wo * kw) or (N, C * kh * kw, Ho, Wo)
        Gradient with respect to the output. The others are those of :func:`deformable_sampling`.

    Returns
    -------
    tuple of numpy.ndarray, float64
        Of the shapes of data, offset and mask. Without a mask, the last is that of a mask of 1.

    Raises
    ------
    ValueError
        As :func:`deformable_sampling` does.

    Examples
    --------
    >>> ramp = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> offset, d_out = np.full((1, 2, 4, 4), 0.5), np.ones((1, 1, 4, 4))
    >>> d_data, d_offset, d_mask = deformable_sampling_backward(d_out, ramp, offset)
    >>> d_offset[0, :, 0, 0].tolist()                           # downwards, to the right
    [4.0, 1.0]
    """
    sizes = kernel, stride, dilate, pad
    call = _check(data, offset, mask, sizes, num_deformable_group, convention, layout, geometry)
    d_out = _apart(call, as_numpy(d_out).astype("float64"))
    d_data, d_offset, d_mask = (np.zeros(a.shape) for a in (call.data, call.offset, call.mask))
    images = np.arange(len(call.data))[:, None, None]
    for sample in _samples(call):
        slope = d_out[sample.rows].swapaxes(0, 1)  # (channels, N, Ho, Wo)
        factor = call.mask[sample.moves]
        sums = [(slope * values).sum(0) for values in _values(call, sample)]
        for (y, x, there), weight, share in zip(sample.cells, sample.weights(), sums):
            used = there & (weight != 0)
            place = (images, y, x)
            for c, of_channel in zip(range(*sample.channels.indices(call.data.shape[1])), slope):
                np.add.at(d_data[:, c], place, np.where(used, of_channel * weight * factor, 0))
            d_mask[sample.moves] += np.where(used, weight * share, 0)
        y, x = sample.y.part, sample.x.part
        by_y = (1 - x) * (sums[2] - sums[0]) + x * (sums[3] - sums[1])
        by_x = (1 - y) * (sums[1] - sums[0]) + y * (sums[3] - sums[2])
        n, group, cell = sample.moves
        d_offset[n, group, cell, 0] = by_y * factor
        d_offset[n, group, cell, 1] = by_x * factor
    size = d_mask.shape[3:]
    batch = len(d_data)
    return d_data, d_offset.reshape(batch, -1, *size), d_mask.reshape(batch, -1, *size)


def _check(
    data: Any,
    offset: Any,
    mask: Any,
    sizes: tuple,
    groups: int,
    convention: str,
    layout: str,
    geometry: Any,
) -> _Call:
    name, (kernel, stride, dilate, pad) = "deformable_sampling", sizes
    data, offset = as_numpy(data).astype("float64"), as_numpy(offset).astype(geometry)
    kernel, stride, dilate = (
        pair(name, argument, value)
        for argument, value in (("kernel", kernel), ("stride", stride), ("dilate", dilate))
    )
    pad = (pad, pad) if np.ndim(pad) == 0 else tuple(pad)
    if convention not in ("mxnet", "torchvision"):
        raise ValueError(f"{name}: convention is {convention!r}, expected 'mxnet' or 'torchvision'")
    if layout not in ("map", "columns"):
        raise ValueError(f"{name}: layout is {layout!r}, expected 'map' or 'columns'")
    if data.ndim != 4 or data.shape[1] % groups:
        raise ValueError(
            f"{name}: data has shape {data.shape}, expected (N, C, H, W) with C a multiple of "
            f"{groups}"
        )
    cells = kernel[0] * kernel[1]
    size = tuple(
        (data.shape[2 + n] + 2 * pad[n] - dilate[n] * (kernel[n] - 1) - 1) // stride[n] + 1
        for n in (0, 1)
    )
    mask = np.ones((len(data), groups * cells, *size)) if mask is None else as_numpy(mask)
    for what, array, channels in (("offset", offset, 2 * cells), ("mask", mask, cells)):
        expected = (len(data), groups * channels, *size)
        if array.shape != expected:
            raise ValueError(f"{name}: {what} has shape {array.shape}, expected {expected}")
    y, x = (np.arange(size[n]) * stride[n] - pad[n] for n in (0, 1))
    return _Call(
        data,
        offset.reshape(len(data), groups, cells, 2, *size),
        mask.astype("float64").reshape(len(data), groups, cells, *size),
        kernel,
        (y[:, None], x[None]),
        dilate,
        groups,
        convention == "torchvision",
        layout == "columns",
    )


def _output_shape(call: _Call) -> tuple:
    (height, width), kernel = call.offset.shape[4:], call.kernel
    batch, channels = call.data.shape[:2]
    if call.columns:
        return batch, channels * kernel[0] * kernel[1], height, width
    return batch, channels, height * kernel[0], width * kernel[1]


def _apart(call: _Call, out: np.ndarray) -> np.ndarray:
    """A view of an array of the output's shape as (N, C, Ho, kh, Wo, kw)."""
    (height, width), kernel = call.offset.shape[4:], call.kernel
    batch, channels = call.data.shape[:2]
    if call.columns:
        apart = out.reshape(batch, channels, *kernel, height, width)
        return apart.transpose(0, 1, 4, 2, 5, 3)
    return out.reshape(batch, channels, height, kernel[0], width, kernel[1])


def _samples(call: _Call) -> Iterator[_Sample]:
    each = call.data.shape[1] // call.groups
    for group in range(call.groups):
        channels = slice(group * each, (group + 1) * each)
        for i in range(call.kernel[0]):
            for j in range(call.kernel[1]):
                cell = i * call.kernel[1] + j
                y, x = (
                    _axis(
                        (call.corner[n] + (i, j)[n] * call.dilate[n]).astype(call.offset.dtype)
                        + call.offset[:, group, cell, n],
                        call.data.shape[2 + n],
                        call.fades,
                    )
                    for n in (0, 1)
                )
                cells = [
                    _cell(call, y, x, at_y, at_x)
                    for at_y in (y.low, y.high)
                    for at_x in (x.low, x.high)
                ]
                rows = np.s_[:, channels, :, i, :, j]
                yield _Sample(channels, rows, (slice(None), group, cell), cells, y, x)


def _axis(position: np.ndarray, size: int, fades: bool) -> _Axis:
    with np.errstate(invalid="ignore"):
        counts = (position > -1 if fades else position >= 0) & (position < size)
    position = np.where(counts, position, 0)
    low = np.floor(position)
    part = (position - low).astype("float64")
    low = low.astype("int64")
    high = low + 1
    if not fades:  # behind the last cell the map goes on as it ends
        part = np.where(low >= size - 1, 0, part)
        high = np.minimum(high, size - 1)
    return _Axis(counts, low, high, part)


def _cell(call: _Call, y: _Axis, x: _Axis, at_y: np.ndarray, at_x: np.ndarray) -> tuple:
    height, width = call.data.shape[2:]
    there = y.counts & x.counts & (at_y >= 0) & (at_y < height) & (at_x >= 0) & (at_x < width)
    return np.where(there, at_y, 0), np.where(there, at_x, 0), there


def _values(call: _Call, sample: _Sample) -> Iterator[np.ndarray]:
    """Of each of the four cells (channels, N, Ho, Wo); 0 for one that is not there."""
    images = np.arange(len(call.data))[:, None, None]
    of_channels = call.data[:, sample.channels].swapaxes(0, 1)
    for y, x, there in sample.cells:
        if of_channels.shape[2] * of_channels.shape[3] == 0:
            yield np.zeros((len(of_channels), *there.shape))
        else:
            yield np.where(there, of_channels[:, images, y, x], 0)
