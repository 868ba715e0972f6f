# SPDX-License-Identifier: Apache-2.0
"""RotatedROIAlign and DeformablePSROIPool: samples that are rotated, or excluded from the mean."""

from __future__ import annotations

import functools
import operator
from typing import Any, Callable, NamedTuple

import numpy as np

from ..graph import Node, OnnxGraph, Tensor, concat, concat_sizes
from ..registry import rule
from .arithmetic import all_finite, bases, on_map, positions, product, quotient, round_away, rounded
from .boxes import (
    axes_of,
    bin_images,
    data_of,
    decode,
    finish,
    grid_of,
    group_images,
    join_bins,
    parts_of_bins,
    pooled_size,
)
from .grid import grid_place, grid_sample


class _Samples(NamedTuple):
    """Samples along one axis of the map, with a shape that broadcasts to (K, P, Q, S, S)."""

    position: Tensor  # on the map
    inside: Tensor  # whether they are on the map before they are clamped


class _Cells(NamedTuple):
    """The two cells along an axis that samples read, and their weights."""

    cells: tuple[Tensor, Tensor]
    weights: tuple[Tensor, Tensor]


def _clamp_to_map(position: Tensor, size: Tensor, beyond: float) -> _Samples:
    """Clamp samples to the map; they are valid up to `beyond` cells outside its outermost cells."""
    last = size.cast(position.dtype) - 1
    inside = (position >= -beyond) & (position <= last + beyond)
    return _Samples(position.min(last).max(0), inside)


def _cells_of(samples: _Samples) -> _Cells:
    """Neighbouring cells; twice the same one for a sample in its centre."""
    low = samples.position.floor()
    weight = samples.position - low
    first = low.cast(np.int64)
    return _Cells((first, first + (weight > 0).cast(np.int64)), (1 - weight, weight))


class _Bins(NamedTuple):
    """The bins of K boxes, whose S x S samples are added up."""

    image: Tensor  # (K,)
    boxes: Tensor  # (1,), K
    pooled: tuple[int, int]  # P and Q
    samples: int  # S
    group: tuple[int, int]  # of score maps
    dim: int  # channels of the output

    def shape(self) -> Any:
        return concat_sizes(self.boxes, *self.pooled, self.samples, self.samples)


def _sample_sums(maps: Tensor, images: int | None, bins: _Bins, y: _Samples, x: _Samples) -> Tensor:
    """Sums of the samples of every bin: (K, dim, P, Q).

    Parameters
    ----------
    images : int, optional
        The number of maps; None if it is dynamic.
    """
    # GridSample has no RoIs. Its positions are float32, relative to the size of the map, so the
    # maps of several images in one, below each other, would make them less exact.
    is_grid = images == 1 and maps.dtype == np.float32
    return (_grid_sums if is_grid else _gathered_sums)(maps, bins, y, x)


def _grid_sums(maps: Tensor, bins: _Bins, y: _Samples, x: _Samples) -> Tensor:
    """The sums for a single image.

    ::

        y, x -> grid_place -> (1, bins, S^2, 2), or a batch of bins --+
                                                                      |
        maps -> group_images -> the map of each bin ----------> GridSample -> ReduceSum
    """
    p, q = parts_of_bins(bins.pooled, bins.group)
    groups = bins.group[0] * bins.group[1]
    maps = group_images(maps, bins.dim, groups)
    places = [
        grid_place(axis.position, axis.inside, maps.size(n)).expand(bins.shape()).unsqueeze(5)
        for n, axis in ((3, x), (2, y))
    ]
    xy = concat(*places, axis=5)
    number = bins.samples * bins.samples
    if groups == 1:
        sums = grid_sample(maps, xy.reshape(1, -1, number, 2)).sum(3)
        return sums.reshape(bins.dim, bins.boxes, *bins.pooled).transpose(1, 0, 2, 3)
    maps = maps.gather((p[:, None] * bins.group[1] + q).ravel(), axis=0)
    xy = xy.transpose(1, 2, 0, 3, 4, 5).reshape(len(p) * len(q), bins.boxes, number, 2)
    sums = grid_sample(maps, xy).sum(3).transpose(2, 1, 0)
    return sums.reshape(bins.boxes, bins.dim, *bins.pooled)


def _gathered_sums(maps: Tensor, bins: _Bins, y: _Samples, x: _Samples) -> Tensor:
    """The sums for any number of images: products of the four cells of each sample.

    ::

        y, x -> _cells_of -> weights (bins, 1, S^2) for each of four cells ---+
                    |                                                         |
        image -> bin_images -> index (bins, S^2, 3)                           |
                                   |                                          |
        maps -> channels last -> GatherND: (bins, S^2, dim) ---------------> MatMul -> Add
    """
    number, shape = bins.samples * bins.samples, bins.shape()
    count = bins.boxes * [bins.pooled[0] * bins.pooled[1]]

    def of_bins(value: Tensor, *sizes: int) -> Tensor:
        return value.expand(shape).reshape(count, *sizes)

    # Samples that do not count read the row of zeros after a map, so that its cells may be NaN.
    maps = group_images(maps, bins.dim, bins.group[0] * bins.group[1])
    height = maps.size(2)
    maps = maps.graph("Pad", maps, np.array([0] * 6 + [1, 0])).transpose(0, 2, 3, 1)
    index = bin_images(bins.image, bins.pooled, bins.group, bins.boxes)
    index = index.unsqueeze(1, 2).expand(1, number, 1)
    rows, columns = _cells_of(y), _cells_of(x)
    inside = y.inside & x.inside
    row_indices = [
        of_bins(maps.graph("Where", inside, row, height), number, 1) for row in rows.cells
    ]
    column_indices = [of_bins(column, number, 1) for column in columns.cells]
    terms: list[Tensor] = []
    for row, of_row in zip(row_indices, rows.weights):
        for column, of_column in zip(column_indices, columns.weights):
            values = maps.graph("GatherND", maps, concat(index, row, column, axis=2))
            terms.append(of_bins(of_row * of_column, 1, number) @ values)
    sums = functools.reduce(operator.add, terms)
    return join_bins(sums, bins.boxes, bins.pooled, bins.dim)


def _angle(degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine, (K, 1) each, of an angle rounded to the type of the geometry."""
    g, dtype, real = degrees.graph, degrees.dtype, np.float64
    reduced = g("Mod", degrees, np.array(360, dtype), fmod=1)
    radians = (reduced.cast(real) * np.pi / 180).cast(dtype).cast(real)
    return g("Cos", radians).cast(dtype), g("Sin", radians).cast(dtype)


@rule("_gluon_roi_RotatedROIAlign")
def rotated_roi_align(g: OnnxGraph, node: Node) -> Tensor:
    """Samples that are rotated about the centre of the box.

    ::

        rois -> decode -> sides --> samples along each, from the centre --+
                   |      theta --> cosine, sine --------------- products +
                   |      centre --> on the map ------------ sums, _clamp_to_map: y, x
                   |                                                      |
        data ----------------------------------- GridSample, or GatherND
                   |                                   |
                   +-- place, fill ---> finish <-- sum / samples^2
    """
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    aligned, samples = node.get("aligned", False), node.get("sampling_ratio", -1)
    if samples <= 0:
        raise node.refusal(
            f"argument sampling_ratio: expected a number above 0, got {samples}: a number of "
            "samples that depends on the box has no translation"
        )
    data = data_of(node)
    rows = decode(node, data.dtype, coordinates=5)
    cx, cy, *sides, theta = rows.box.split(5, 1)
    cosine, sine = (part.unsqueeze(2) for part in _angle(theta))

    def along(side: Tensor, bins: int) -> Tensor:
        """Positions of samples relative to the centre of the box, (K, bins, samples)."""
        length = on_map(side, scale, False)
        length = length if aligned else length.max(1)
        bin_size = quotient(length, bins)
        base = bases(-(length / 2), bin_size, bins)
        return positions(base, bin_size, samples)

    def around(
        centre: Tensor, sign: Callable, first: Tensor, second: Tensor, size: Tensor
    ) -> _Samples:
        centre = on_map(centre, scale, aligned).unsqueeze(2, 3, 4)
        return _clamp_to_map(sign(first, second) + centre, size, 1)

    u, v = along(sides[0], pooled[1]), along(sides[1], pooled[0])
    u_cosine, u_sine, v_cosine, v_sine = (
        product(side, part).unsqueeze(*places)
        for side, places in ((u, (1, 3)), (v, (2, 4)))
        for part in (cosine, sine)
    )
    x = around(cx, operator.add, u_cosine, v_sine, data.size(3))
    y = around(cy, operator.sub, v_cosine, u_sine, data.size(2))
    bins = _Bins(rows.image, rows.number, pooled, samples, (1, 1), node.static_size(1))
    out = _sample_sums(data, node.static_shapes[0][0], bins, y, x)
    return finish(node, rows, out / (samples * samples))


class _PartAxis(NamedTuple):
    """One axis of the boxes, (K, 1) each: core/geometry/deform_psroi.h."""

    start: Tensor
    length: Tensor


def _part_axis(low: Tensor, high: Tensor, scale: float) -> _PartAxis:
    end = rounded(round_away(high) + 1)
    start, end = (on_map(edge, scale, True) for edge in (round_away(low), end))
    return _PartAxis(start, (end - start).max(0.1))


def _part_offsets(
    node: Node, pooled: tuple[int, int], place: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The offsets of each bin along y and x, and whether they are finite.

    Offsets are (K, P, Q), in units of the box size, and 0 where they are not finite; the flag is
    (K, 1, P, Q).
    """
    trans = data_of(node, 2).gather(place, axis=0)
    for axis, part in zip((2, 3), parts_of_bins(pooled, grid_of(node, "part_size", pooled))):
        trans = trans.gather(part, axis=axis)
    trans = trans.reshape(count, 2, *pooled)
    finite = all_finite(trans)
    trans = finite.where(trans, 0)
    trans = product(trans, node.get("trans_std", 0.0))
    x, y = (one.squeeze(1) for one in trans.split(2, 1))
    return y, x, finite


def _part_samples(
    axis: _PartAxis,
    offset: Tensor | None,
    pooled: tuple[int, int],
    n: int,
    samples: int,
    size: Tensor,
) -> _Samples:
    """The samples of every bin along axis n of the map, with the first on the bin's edge."""
    bin_size = quotient(axis.length, pooled[n])
    step = quotient(bin_size, samples)
    first = bases(axis.start, bin_size, pooled[n]).unsqueeze(2 - n)
    if offset is not None:
        first = first + product(offset, axis.length.unsqueeze(2))
    sample_offset = product(np.arange(samples)[None], step).unsqueeze(1, 2, 4 - n)
    return _clamp_to_map(first.unsqueeze(3, 4) + sample_offset, size, 0.5)


@rule("_gluon_roi_DeformablePSROIPool")
def deformable_ps_roi_pool(g: OnnxGraph, node: Node) -> Tensor:
    """Samples of the bins; a pair of a RoI and a class is treated as a RoI, as in the kernels.

    ::

        rois --> decode -> box -> start and length of each pair along y and x --+
                   |                                                            |
        trans --> Gather by parts -> finite? -> offsets of bins --> _part_samples: y, x
                   |                    |                                       |
        data --> maps of groups --------|------ GridSample, or GatherND <-------+-> count
                   |                    |                  |                          |
                   |                    +-> Where <- sum / count <--------------------+
                   +-- place, fill -----> finish (rows with offsets not finite: NaN)
    """
    # output_dim follows from the shape; the others have no effect without trans.
    node.ignore("output_dim", "part_size", "trans_std")
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    group, samples = grid_of(node, "group_size", pooled), node.get("sample_per_part", 4)
    has_trans = node.get("trans", False)
    classes = node.static_size(1, 2) // 2 if has_trans else 1
    dim = node.static_out_size(1) // classes
    data = data_of(node)
    places = [place for place in range(len(node.inputs)) if place != 2 or not has_trans]
    rows = decode(node.with_inputs(*places), data.dtype)
    count = rows.number * [classes]

    def per_class(each: Tensor) -> Tensor:
        """(K, 1) to (K * classes, 1)."""
        return each.expand(1, classes).reshape(-1, 1)

    axes = [
        _PartAxis(*map(per_class, _part_axis(low, high, scale))) for low, high in axes_of(rows.box)
    ]
    image = rows.image.unsqueeze(1) * classes
    image = (image + np.arange(classes)[None]).reshape(-1)
    pair_images = data.size(0) * [classes]
    maps = data.reshape(pair_images, node.static_size(1) // classes, data.shape(2, 4))
    offsets: list[Tensor | None] = [None, None]
    if has_trans:
        *offsets, finite = _part_offsets(node, pooled, rows.place, count)
    y, x = (
        _part_samples(axis, offset, pooled, n, samples, data.size(2 + n))
        for n, (axis, offset) in enumerate(zip(axes, offsets))
    )
    images = node.static_shapes[0][0]
    bins = _Bins(image, count, pooled, samples, group, dim)
    out = _sample_sums(maps, images and images * classes, bins, y, x)
    ys, xs = (axis.inside.cast(data.dtype).sum(3, 4) for axis in (y, x))
    out = out / (ys * xs).max(1).unsqueeze(1)
    if has_trans:
        out = finite.where(out, np.nan)
    return finish(node, rows, out.reshape(rows.number, classes * dim, *pooled))
