# SPDX-License-Identifier: Apache-2.0
"""RotatedROIAlign and DeformablePSROIPool: samples that are rotated, or excluded from the mean."""

from __future__ import annotations

import operator
from typing import Callable, NamedTuple

import numpy as np

from ..graph import Graph, Node, Tensor, concat, concat_sizes
from ..registry import rule
from .arithmetic import bases, is_finite, on_map, positions, product, quotient, round_away, rounded
from .boxes import (
    align,
    axes_of,
    bin_images,
    data_of,
    decode,
    finish,
    grid_of,
    group_images,
    parts_of_bins,
    pooled_size,
)
from .grid import grid_place, grid_sample


class _Samples(NamedTuple):
    """Samples along one axis of the map, with a shape that broadcasts to (K, P, Q, S, S)."""

    position: Tensor
    inside: Tensor  # whether they are on the map


def _clamp_to_map(position: Tensor, size: Tensor, beyond: float) -> _Samples:
    """Clamp samples to the map; they are valid up to `beyond` cells outside its outermost cells."""
    last = size.cast(position.dtype) - 1
    inside = (position >= -beyond) & (position <= last + beyond)
    return _Samples(position.min(last).max(0), inside)


def _sample_sums(
    maps: Tensor,
    image: Tensor,
    group: tuple[int, int],
    y: _Samples,
    x: _Samples,
    count: Tensor,
    pooled: tuple[int, int],
    samples: int,
    dim: int,
) -> Tensor:
    """Sums of the S x S samples of every bin: (K, dim, P, Q)."""
    number = samples * samples
    shape = concat_sizes(count, pooled[0], pooled[1], samples, samples)
    if maps.dtype == np.float64:  # GridSample supports float32 only, so each sample is a RoI
        corner = [(axis.position + 0.5).expand(shape).reshape(-1, 1) for axis in (x, y)]
        boxes = concat(*corner, *corner, axis=1)
        images = bin_images(image, pooled, group, count)
        images = images.unsqueeze(1).expand(1, number)
        maps = group_images(maps, dim, group[0] * group[1])
        values = align(maps, boxes, images.reshape(-1), 1, True, (1, 1), 1)
        inside = (y.inside & x.inside).expand(shape)
        values = inside.reshape(-1, 1, 1, 1).where(values, 0.0)
        values = values.reshape(count, pooled[0] * pooled[1], number, dim)
        sums = values.sum(2).transpose(0, 2, 1)
        return sums.reshape(count, dim, *pooled)
    # GridSample has no RoIs: the images are stacked vertically into one map, with a row of zeros
    # after each, so that a sample in the last row does not read the next image.
    groups, bins = group[0] * group[1], pooled[0] * pooled[1]
    maps = maps.reshape(maps.size(0), dim, groups, maps.shape(2, 4))
    maps = maps.graph("Pad", maps, np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 0]))
    height, width = maps.size(3), maps.size(4)
    maps = maps.transpose(2, 1, 0, 3, 4).reshape(groups, dim, -1, width)
    first = (image * height).cast(maps.dtype).unsqueeze(1, 2, 3, 4)
    places = [
        grid_place(x.position, x.inside, maps.size(3)),
        grid_place(y.position + first, y.inside, maps.size(2)),
    ]
    places = [place.expand(shape).unsqueeze(5) for place in places]
    xy = concat(*places, axis=5)
    if groups > 1:  # a batch entry per bin, with the bin's map
        p, q = parts_of_bins(pooled, group)
        maps = maps.gather((p[:, None] * group[1] + q).ravel(), axis=0)
        xy = xy.transpose(1, 2, 0, 3, 4, 5)
    values = grid_sample(maps, xy.reshape(bins if groups > 1 else 1, -1, number, 2))
    sums = values.sum(3)
    if groups > 1:
        sums = sums.transpose(2, 1, 0)
    else:
        sums = sums.reshape(dim, count, bins).transpose(1, 0, 2)
    return sums.reshape(count, dim, *pooled)


def _angle(degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine, (K, 1) each, of an angle rounded to the type of the geometry."""
    g, dtype, real = degrees.graph, degrees.dtype, np.float64
    reduced = g("Mod", degrees, np.array(360, dtype), fmod=1)
    radians = (reduced.cast(real) * np.pi / 180).cast(dtype).cast(real)
    return g("Cos", radians).cast(dtype), g("Sin", radians).cast(dtype)


@rule("_gluon_roi_RotatedROIAlign")
def rotated_roi_align(g: Graph, node: Node) -> Tensor:
    """Samples that are rotated about the centre of the box.

    ::

        rois -> decode -> sides --> samples along each, from the centre --+
                   |      theta --> cosine, sine --------------- products +
                   |      centre --> on the map ------------ sums, _clamp_to_map: y, x
                   |                                                      |
        data ------------------------------- GridSample, or RoiAlign of each
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
    dim, one = node.shapes[0][1], (1, 1)
    out = _sample_sums(data, rows.image, one, y, x, rows.number, pooled, samples, dim)
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
    finite = trans.graph("ReduceMin", is_finite(trans).cast(np.int32), axes=[1], keepdims=1)
    finite = finite.cast(np.bool_)
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
def deformable_ps_roi_pool(g: Graph, node: Node) -> Tensor:
    """Samples of the bins; a pair of a RoI and a class is treated as a RoI, as in the kernels.

    ::

        rois --> decode -> box -> start and length of each pair along y and x --+
                   |                                                            |
        trans --> Gather by parts -> finite? -> offsets of bins --> _part_samples: y, x
                   |                    |                                       |
        data --> maps of groups --------|-- GridSample, or RoiAlign of each <---+-> count
                   |                    |                  |                          |
                   |                    +-> Where <- sum / count <--------------------+
                   +-- place, fill -----> finish (rows with offsets not finite: NaN)
    """
    # output_dim follows from the shape; the others have no effect without trans.
    node.accept("output_dim", "part_size", "trans_std")
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    group, samples = grid_of(node, "group_size", pooled), node.get("sample_per_part", 4)
    has_trans = node.get("trans", False)
    classes = node.shapes[2][1] // 2 if has_trans else 1
    dim = node.out_shapes[0][1] // classes
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
    maps = data.reshape(pair_images, node.shapes[0][1] // classes, data.shape(2, 4))
    offsets: list[Tensor | None] = [None, None]
    if has_trans:
        *offsets, finite = _part_offsets(node, pooled, rows.place, count)
    y, x = (
        _part_samples(axis, offset, pooled, n, samples, data.size(2 + n))
        for n, (axis, offset) in enumerate(zip(axes, offsets))
    )
    out = _sample_sums(maps, image, group, y, x, count, pooled, samples, dim)
    ys, xs = (axis.inside.cast(data.dtype).sum(3, 4) for axis in (y, x))
    out = out / (ys * xs).max(1).unsqueeze(1)
    if has_trans:
        out = finite.where(out, np.nan)
    return finish(node, rows, out.reshape(rows.number, classes * dim, *pooled))
