# SPDX-License-Identifier: Apache-2.0
"""DeformableSampling: the samples that a deformable convolution multiplies by its weights."""

from __future__ import annotations

import itertools
from typing import Any, Iterator, NamedTuple

import numpy as np

from .common import as_numpy, backward_of, operator, pair

__all__ = ["deformable_sampling", "deformable_sampling_backward"]


class _Axis(NamedTuple):
    """The cells of samples along one axis."""

    inside: np.ndarray  # whether the sample is read at all
    low: np.ndarray  # lower cell, may be off the map
    high: np.ndarray  # higher cell, may be off the map
    fraction: np.ndarray  # weight of the higher cell


def _axis(position: np.ndarray, size: int, zero_border: bool) -> _Axis:
    with np.errstate(invalid="ignore"):
        inside = (position > -1 if zero_border else position >= 0) & (position < size)
    position = np.where(inside, position, 0)
    low = np.floor(position)
    fraction = (position - low).astype("float64")
    low = low.astype("int64")
    high = low + 1
    if not zero_border:  # samples behind the last cell have its value
        fraction = np.where(low >= size - 1, 0, fraction)
        high = np.minimum(high, size - 1)
    return _Axis(inside, low, high, fraction)


class _Sample(NamedTuple):
    """The samples (N, Ho, Wo) of one kernel cell in one channel group."""

    channels: slice  # of data
    out_index: tuple  # index into the output as (N, C, Ho, kh, Wo, kw)
    mask_index: tuple  # index into mask
    cells: list[tuple]  # four of (weight, y, x, whether the cell is read), each (N, Ho, Wo)
    values: list[np.ndarray]  # of the four cells, (channels, N, Ho, Wo); 0 off the map
    y: _Axis
    x: _Axis


class _Sampling(NamedTuple):
    """The operator bound to its arguments."""

    data: np.ndarray  # (N, C, H, W), float64
    offset: np.ndarray  # (N, groups, kernel cells, 2, Ho, Wo), in the dtype of positions
    mask: np.ndarray  # (N, groups, kernel cells, Ho, Wo), float64
    kernel: tuple[int, int]
    corner: tuple[np.ndarray, np.ndarray]  # y (Ho, 1) and x (1, Wo) of kernel cell (0, 0)
    dilate: tuple[int, int]
    zero_border: bool
    columns: bool

    def split_kernel(self, out: np.ndarray) -> np.ndarray:
        """A view (N, C, Ho, kh, Wo, kw) of an array with the shape of the output."""
        (batch, channels), size = self.data.shape[:2], self.offset.shape[4:]
        if self.columns:
            view = out.reshape(batch, channels, *self.kernel, *size)
            return view.transpose(0, 1, 4, 2, 5, 3)
        return out.reshape(batch, channels, size[0], self.kernel[0], size[1], self.kernel[1])

    def samples(self) -> Iterator[_Sample]:
        (channels, *sizes), groups = self.data.shape[1:], self.offset.shape[1]
        group_channels, images = channels // groups, np.arange(len(self.data))[:, None, None]
        for group, i, j in itertools.product(range(groups), *map(range, self.kernel)):
            channel_slice = slice(group * group_channels, (group + 1) * group_channels)
            cell = i * self.kernel[1] + j
            y, x = (
                _axis(
                    (self.corner[n] + (i, j)[n] * self.dilate[n]).astype(self.offset.dtype)
                    + self.offset[:, group, cell, n],
                    sizes[n],
                    self.zero_border,
                )
                for n in (0, 1)
            )
            group_data = self.data[:, channel_slice].swapaxes(0, 1)
            cells, values = [], []
            for (at_y, wy), (at_x, wx) in itertools.product(
                ((y.low, 1 - y.fraction), (y.high, y.fraction)),
                ((x.low, 1 - x.fraction), (x.high, x.fraction)),
            ):
                is_read = y.inside & x.inside & (at_y >= 0) & (at_y < sizes[0])
                is_read &= (at_x >= 0) & (at_x < sizes[1])
                at_y, at_x = np.where(is_read, at_y, 0), np.where(is_read, at_x, 0)
                cells.append((wy * wx, at_y, at_x, is_read & (wy * wx != 0)))
                if 0 in sizes:
                    values.append(np.zeros((group_channels, *is_read.shape)))
                else:
                    values.append(np.where(is_read, group_data[:, images, at_y, at_x], 0))
            yield _Sample(
                channel_slice,
                np.s_[:, channel_slice, :, i, :, j],
                (slice(None), group, cell),
                cells,
                values,
                y,
                x,
            )

    def forward(self) -> np.ndarray:
        (batch, channels), (height, width) = self.data.shape[:2], self.offset.shape[4:]
        kh, kw = self.kernel
        out = np.zeros((batch, channels, height, kh, width, kw))
        for sample in self.samples():
            total: Any = 0.0
            for values, (weight, *_) in zip(sample.values, sample.cells):
                total = total + np.where(weight != 0, weight * values, 0)
            inside = sample.y.inside & sample.x.inside
            value = np.where(inside, self.mask[sample.mask_index] * total, 0)
            out[sample.out_index] = value.swapaxes(0, 1)
        if self.columns:
            return out.transpose(0, 1, 3, 5, 2, 4).reshape(batch, channels * kh * kw, height, width)
        return out.reshape(batch, channels, height * kh, width * kw)

    def backward(self, d_out: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        d_out = self.split_kernel(as_numpy(d_out).astype("float64"))
        d_data, d_offset, d_mask = (np.zeros(a.shape) for a in self[:3])
        images = np.arange(len(self.data))[:, None, None]
        for sample in self.samples():
            slope = d_out[sample.out_index].swapaxes(0, 1)  # (channels, N, Ho, Wo)
            factor = self.mask[sample.mask_index]
            sums = [(slope * values).sum(0) for values in sample.values]
            for (weight, y, x, used), share in zip(sample.cells, sums):
                for c, of_channel in enumerate(slope, start=sample.channels.start):
                    added = np.where(used, of_channel * weight * factor, 0)
                    np.add.at(d_data[:, c], (images, y, x), added)
                d_mask[sample.mask_index] += np.where(used, weight * share, 0)
            y, x = sample.y.fraction, sample.x.fraction
            n, group, cell = sample.mask_index
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
        With the shapes of data, offset and mask. Without a mask, the last one is the gradient with
        respect to a mask of 1.

    Raises
    ------
    ValueError
        As in :func:`deformable_sampling`.

    Examples
    --------
    >>> ramp = np.arange(16.0).reshape(1, 1, 4, 4)
    >>> offset, d_out = np.full((1, 2, 4, 4), 0.5), np.ones((1, 1, 4, 4))
    >>> d_data, d_offset, d_mask = deformable_sampling_backward(d_out, ramp, offset)
    >>> d_offset[0, :, 0, 0].tolist()                           # y, x
    [4.0, 1.0]
    """
    return sampling.backward(d_out)
