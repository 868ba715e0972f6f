# SPDX-License-Identifier: Apache-2.0
"""DeformableSampling: what a deformable convolution multiplies by its weights."""

from __future__ import annotations

import itertools
from typing import Any, Iterator, NamedTuple

import numpy as np

from .common import as_numpy, backward_of, operator, pair

__all__ = ["deformable_sampling", "deformable_sampling_backward"]


class _Axis(NamedTuple):
    counts: np.ndarray
    low: np.ndarray  # cells; those beyond the map are not there
    high: np.ndarray
    part: np.ndarray  # weight of the high one


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


class _Sample(NamedTuple):
    """Those of one kernel cell in one group, (N, Ho, Wo)."""

    channels: slice  # of data
    rows: tuple  # index of the output as (N, C, Ho, kh, Wo, kw): channels are second
    moves: tuple  # index of mask
    cells: list[tuple]  # four (weight, y, x, whether it is read), (N, Ho, Wo)
    values: list[np.ndarray]  # of the four, (channels, N, Ho, Wo); 0 beyond the map
    y: _Axis
    x: _Axis


class _Sampling(NamedTuple):
    """The operator with its arguments."""

    data: np.ndarray  # (N, C, H, W), float64
    offset: np.ndarray  # (N, groups, kernel cells, 2, Ho, Wo), of the type of positions
    mask: np.ndarray  # (N, groups, kernel cells, Ho, Wo), float64
    kernel: tuple[int, int]
    corner: tuple[np.ndarray, np.ndarray]  # y (Ho, 1) and x (1, Wo) of kernel cell (0, 0)
    dilate: tuple[int, int]
    fades: bool
    columns: bool

    def apart(self, out: np.ndarray) -> np.ndarray:
        """A view of an array of the output's shape as (N, C, Ho, kh, Wo, kw)."""
        (batch, channels), size = self.data.shape[:2], self.offset.shape[4:]
        if self.columns:
            apart = out.reshape(batch, channels, *self.kernel, *size)
            return apart.transpose(0, 1, 4, 2, 5, 3)
        return out.reshape(batch, channels, size[0], self.kernel[0], size[1], self.kernel[1])

    def samples(self) -> Iterator[_Sample]:
        (channels, *sizes), groups = self.data.shape[1:], self.offset.shape[1]
        each, images = channels // groups, np.arange(len(self.data))[:, None, None]
        for group, i, j in itertools.product(range(groups), *map(range, self.kernel)):
            own, cell = slice(group * each, (group + 1) * each), i * self.kernel[1] + j
            y, x = (
                _axis(
                    (self.corner[n] + (i, j)[n] * self.dilate[n]).astype(self.offset.dtype)
                    + self.offset[:, group, cell, n],
                    sizes[n],
                    self.fades,
                )
                for n in (0, 1)
            )
            of_channels = self.data[:, own].swapaxes(0, 1)
            cells, values = [], []
            for (at_y, wy), (at_x, wx) in itertools.product(
                ((y.low, 1 - y.part), (y.high, y.part)), ((x.low, 1 - x.part), (x.high, x.part))
            ):
                there = y.counts & x.counts & (at_y >= 0) & (at_y < sizes[0])
                there &= (at_x >= 0) & (at_x < sizes[1])
                at_y, at_x = np.where(there, at_y, 0), np.where(there, at_x, 0)
                cells.append((wy * wx, at_y, at_x, there & (wy * wx != 0)))
                if 0 in sizes:
                    values.append(np.zeros((each, *there.shape)))
                else:
                    values.append(np.where(there, of_channels[:, images, at_y, at_x], 0))
            yield _Sample(
                own, np.s_[:, own, :, i, :, j], (slice(None), group, cell), cells, values, y, x
            )

    def forward(self) -> np.ndarray:
        (batch, channels), (height, width) = self.data.shape[:2], self.offset.shape[4:]
        kh, kw = self.kernel
        out = np.zeros((batch, channels, height, kh, width, kw))
        for sample in self.samples():
            total: Any = 0.0
            for values, (weight, *_) in zip(sample.values, sample.cells):
                total = total + np.where(weight != 0, weight * values, 0)
            counts = sample.y.counts & sample.x.counts
            value = np.where(counts, self.mask[sample.moves] * total, 0)
            out[sample.rows] = value.swapaxes(0, 1)
        if self.columns:
            return out.transpose(0, 1, 3, 5, 2, 4).reshape(batch, channels * kh * kw, height, width)
        return out.reshape(batch, channels, height * kh, width * kw)

    def backward(self, d_out: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        d_out = self.apart(as_numpy(d_out).astype("float64"))
        d_data, d_offset, d_mask = (np.zeros(a.shape) for a in self[:3])
        images = np.arange(len(self.data))[:, None, None]
        for sample in self.samples():
            slope = d_out[sample.rows].swapaxes(0, 1)  # (channels, N, Ho, Wo)
            factor = self.mask[sample.moves]
            sums = [(slope * values).sum(0) for values in sample.values]
            for (weight, y, x, used), share in zip(sample.cells, sums):
                for c, of_channel in enumerate(slope, start=sample.channels.start):
                    added = np.where(used, of_channel * weight * factor, 0)
                    np.add.at(d_data[:, c], (images, y, x), added)
                d_mask[sample.moves] += np.where(used, weight * share, 0)
            y, x = sample.y.part, sample.x.part
            n, group, cell = sample.moves
            by_y = (1 - x) * (sums[2] - sums[0]) + x * (sums[3] - sums[1])
            by_x = (1 - y) * (sums[1] - sums[0]) + y * (sums[3] - sums[2])
            d_offset[n, group, cell, 0] = by_y * factor
            d_offset[n, group, cell, 1] = by_x * factor
        batch, size = len(d_data), d_mask.shape[3:]
        return d_data, d_offset.reshape(batch, -1, *size), d_mask.reshape(batch, -1, *size)


@operator
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
) -> _Sampling:
    """The samples of a deformable convolution (Dai et al. 2017, section 2.1; Zhu et al. 2018).

    Parameters
    ----------
    data, offset, mask, kernel, stride, dilate, pad, num_deformable_group, convention, layout
        As in :func:`gluon_roi.nd.DeformableSampling`.
    geometry : type, optional
        The type of positions; ``numpy.float32`` rounds them as the operators do for float16 and
        float32 data.

    Returns
    -------
    numpy.ndarray, shape (N, C, Ho * kh, Wo * kw) or (N, C * kh * kw, Ho, Wo), float64

    Raises
    ------
    ValueError
        A wrong shape, size, scale, convention, number of channels or batch index.

    Examples
    --------
    >>> ramp = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> offset = np.tile([[[[0.5]], [[0.25]]]], (1, 1, 4, 4))
    >>> deformable_sampling(ramp, offset)[0, 0, 0].tolist()
    [2.25, 3.25, 4.25, 5.0]
    """
    name, groups = "deformable_sampling", num_deformable_group
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
    batch, cells = len(data), kernel[0] * kernel[1]
    size = tuple(
        (data.shape[2 + n] + 2 * pad[n] - dilate[n] * (kernel[n] - 1) - 1) // stride[n] + 1
        for n in (0, 1)
    )
    mask = np.ones((batch, groups * cells, *size)) if mask is None else as_numpy(mask)
    for argument, array, channels in (("offset", offset, 2 * cells), ("mask", mask, cells)):
        expected = (batch, groups * channels, *size)
        if array.shape != expected:
            raise ValueError(f"{name}: {argument} has shape {array.shape}, expected {expected}")
    y, x = (np.arange(size[n]) * stride[n] - pad[n] for n in (0, 1))
    return _Sampling(
        data,
        offset.reshape(batch, groups, cells, 2, *size),
        mask.astype("float64").reshape(batch, groups, cells, *size),
        kernel,
        (y[:, None], x[None]),
        dilate,
        convention == "torchvision",
        layout == "columns",
    )


@backward_of(deformable_sampling)
def deformable_sampling_backward(
    d_out: Any, sampling: _Sampling
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gradients of :func:`deformable_sampling` with respect to data, offset and mask.

    Parameters
    ----------
    d_out : array, of the shape of the output
        Gradient with respect to the output.
    data, offset, mask, kernel, stride, dilate, pad, num_deformable_group, convention, layout
        As in :func:`deformable_sampling`.
    geometry
        As in :func:`deformable_sampling`.

    Returns
    -------
    tuple of numpy.ndarray, float64
        Of the shapes of data, offset and mask. Without a mask, the last is that of a mask of 1.

    Raises
    ------
    ValueError
        As in :func:`deformable_sampling`.

    Examples
    --------
    >>> ramp = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> offset, d_out = np.full((1, 2, 4, 4), 0.5), np.ones((1, 1, 4, 4))
    >>> d_data, d_offset, d_mask = deformable_sampling_backward(d_out, ramp, offset)
    >>> d_offset[0, :, 0, 0].tolist()                           # downwards, to the right
    [4.0, 1.0]
    """
    return sampling.backward(d_out)
