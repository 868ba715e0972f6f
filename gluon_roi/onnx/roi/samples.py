# SPDX-License-Identifier: Apache-2.0
"""RotatedROIAlign and DeformablePSROIPool: samples off an upright grid, or that may not count."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import Graph, Node
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
    """Samples along one axis of the map, in a shape that broadcasts to (K, P, Q, S, S)."""

    position: str
    inside: str  # whether they count


def _limited(g: Graph, position: str, size: str, beyond: float, dtype: Any) -> _Samples:
    """Samples count up to `beyond` cells before the first and after the last cell, and read it."""
    last = g("Sub", g.cast(size, dtype), np.array(1, dtype))
    inside = g(
        "And",
        g("GreaterOrEqual", position, np.array(-beyond, dtype)),
        g("LessOrEqual", position, g("Add", last, np.array(beyond, dtype))),
    )
    return _Samples(g("Max", g("Min", position, last), np.array(0, dtype)), inside)


def _sample_sums(
    g: Graph,
    maps: str,
    image: str,
    group: tuple[int, int],
    y: _Samples,
    x: _Samples,
    count: str,
    pooled: tuple[int, int],
    samples: int,
    dim: int,
    dtype: Any,
) -> str:
    """Sums of the S x S samples of every bin: (K, dim, P, Q)."""
    number = samples * samples
    shape = g.joined(count, pooled[0], pooled[1], samples, samples)
    if dtype == np.float64:  # GridSample is for float32 only: a RoI for each sample
        corner = [
            g.reshape(g("Expand", g("Add", axis.position, np.array(0.5)), shape), -1, 1)
            for axis in (x, y)
        ]
        boxes = g("Concat", *corner, *corner, axis=1)
        images = bin_images(g, image, pooled, group, count)
        images = g("Expand", g.unsqueeze(images, 1), np.array([1, number]))
        maps = group_images(g, maps, dim, group[0] * group[1])
        values = align(g, maps, boxes, g.reshape(images, -1), dtype, 1, True, (1, 1), 1)
        inside = g("Expand", g("And", y.inside, x.inside), shape)
        values = g("Where", g.reshape(inside, -1, 1, 1, 1), values, np.array(0.0))
        values = g.reshape(values, count, pooled[0] * pooled[1], number, dim)
        sums = g("Transpose", g("ReduceSum", values, np.array([2]), keepdims=0), perm=[0, 2, 1])
        return g.reshape(sums, count, dim, *pooled)
    # GridSample knows no RoIs: all images are one map, below each other, and a row of zeros after
    # each, so that a sample on its last row does not read the next one.
    groups, bins = group[0] * group[1], pooled[0] * pooled[1]
    maps = g.reshape(maps, g.size(maps, 0), dim, groups, g.shape(maps, 2, 4))
    maps = g("Pad", maps, np.array([0, 0, 0, 0, 0, 0, 0, 0, 1, 0]))
    height, width = g.size(maps, 3), g.size(maps, 4)
    maps = g.reshape(g("Transpose", maps, perm=[2, 1, 0, 3, 4]), groups, dim, -1, width)
    first = g.unsqueeze(g.cast(g("Mul", image, height), dtype), 1, 2, 3, 4)
    places = [
        grid_place(g, x.position, x.inside, g.size(maps, 3)),
        grid_place(g, g("Add", y.position, first), y.inside, g.size(maps, 2)),
    ]
    places = [g.unsqueeze(g("Expand", place, shape), 5) for place in places]
    xy = g("Concat", *places, axis=5)
    if groups > 1:  # the bins apart, each with its map
        p, q = parts_of_bins(pooled, group)
        maps = g("Gather", maps, (p[:, None] * group[1] + q).ravel(), axis=0)
        xy = g("Transpose", xy, perm=[1, 2, 0, 3, 4, 5])
    values = grid_sample(g, maps, g.reshape(xy, bins if groups > 1 else 1, -1, number, 2))
    sums = g("ReduceSum", values, np.array([3]), keepdims=0)
    if groups > 1:
        sums = g("Transpose", sums, perm=[2, 1, 0])
    else:
        sums = g("Transpose", g.reshape(sums, dim, count, bins), perm=[1, 0, 2])
    return g.reshape(sums, count, dim, *pooled)


def _angle(g: Graph, degrees: str, dtype: Any) -> tuple[str, str]:
    """Cosine and sine, (K, 1) each, of an angle rounded to the type of the geometry."""
    real = np.float64
    whole = g("Mod", degrees, np.array(360, dtype), fmod=1)
    radians = g("Div", g("Mul", g.cast(whole, real), real(np.pi)), real(180))
    radians = g.cast(g.cast(radians, dtype), real)
    return g.cast(g("Cos", radians), dtype), g.cast(g("Sin", radians), dtype)


@rule("_gluon_roi_RotatedROIAlign")
def rotated_roi_align(g: Graph, node: Node) -> str:
    """Samples, rotated about the centre of the box.

    ::

        rois -> decode -> sides --> samples along each, from the centre --+
                   |      theta --> cosine, sine --------------- products +
                   |      centre --> on the map ------------ sums, _limited: y, x
                   |                                                      |
        data ------------------------------- GridSample, or RoiAlign of each
                   |                                   |
                   +-- valid, fill ---> finish <-- sum / samples^2
    """
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    aligned, samples = node.get("aligned", False), node.get("sampling_ratio", -1)
    if samples <= 0:
        raise node.refusal(
            f"argument sampling_ratio: expected a number above 0, got {samples}: a number of "
            "samples that depends on the box has no translation"
        )
    data, dtype = data_of(g, node)
    rows = decode(g, node, dtype, coordinates=5)
    cx, cy, *sides, theta = g("Split", rows.box, np.array([1] * 5), axis=1, outputs=5)
    cosine, sine = (g.unsqueeze(part, 2) for part in _angle(g, theta, dtype))

    def along(side: str, bins: int) -> str:
        """Positions of samples from the centre of the box, (K, bins, samples)."""
        length = on_map(g, side, scale, False, dtype)
        length = length if aligned else g("Max", length, np.array(1, dtype))
        bin_size = quotient(g, length, np.array(bins, dtype), dtype)
        start = g("Neg", g("Div", length, np.array(2, dtype)))
        base = bases(g, start, bin_size, bins, dtype)
        return positions(g, base, bin_size, samples, dtype)

    def around(centre: str, sign: str, first: str, second: str, size: str) -> _Samples:
        centre = g.unsqueeze(on_map(g, centre, scale, aligned, dtype), 2, 3, 4)
        return _limited(g, g("Add", g(sign, first, second), centre), size, 1, dtype)

    u, v = along(sides[0], pooled[1]), along(sides[1], pooled[0])
    u_cosine, u_sine, v_cosine, v_sine = (
        g("Unsqueeze", product(g, side, part, dtype), np.array(places))
        for side, places in ((u, [1, 3]), (v, [2, 4]))
        for part in (cosine, sine)
    )
    x = around(cx, "Add", u_cosine, v_sine, g.size(data, 3))
    y = around(cy, "Sub", v_cosine, u_sine, g.size(data, 2))
    dim, one = node.shapes[0][1], (1, 1)
    out = _sample_sums(g, data, rows.image, one, y, x, rows.rows, pooled, samples, dim, dtype)
    out = g("Div", out, np.array(samples * samples, dtype))
    return finish(g, node, rows, out, dtype)


class _PartAxis(NamedTuple):
    """One axis of the boxes, (K, 1) each: core/geometry/parts.h."""

    start: str
    length: str


def _part_axis(g: Graph, low: str, high: str, scale: float, dtype: Any) -> _PartAxis:
    end = rounded(g, g("Add", round_away(g, high, dtype), np.array(1, dtype)), dtype)
    start, end = (on_map(g, edge, scale, True, dtype) for edge in (round_away(g, low, dtype), end))
    return _PartAxis(start, g("Max", g("Sub", end, start), np.array(0.1, dtype)))


def _part_moves(g: Graph, node: Node, pooled: tuple[int, int], count: str) -> tuple[str, str, str]:
    """Moves of each bin along y and x, and which offsets are finite.

    Moves are (K, P, Q), in lengths of the box, and 0 for offsets that are not finite. The second is
    (K, 1, P, Q).
    """
    trans, dtype = data_of(g, node, 2)
    for axis, part in zip((2, 3), parts_of_bins(pooled, grid_of(node, "part_size", pooled))):
        trans = g("Gather", trans, part, axis=axis)
    trans = g.reshape(trans, count, 2, *pooled)
    finite = g("ReduceMin", g.cast(is_finite(g, trans, dtype), np.int32), axes=[1], keepdims=1)
    finite = g.cast(finite, np.bool_)
    trans = g("Where", finite, trans, np.array(0, dtype))
    trans = product(g, trans, np.array(node.get("trans_std", 0.0), dtype), dtype)
    x, y = (g.squeeze(one, 1) for one in g("Split", trans, np.array([1, 1]), axis=1, outputs=2))
    return y, x, finite


def _part_samples(
    g: Graph,
    axis: _PartAxis,
    move: str | None,
    pooled: tuple[int, int],
    n: int,
    samples: int,
    size: str,
    dtype: Any,
) -> _Samples:
    """The samples of every bin along axis n of the map, with the first on the bin's edge."""
    bin_size = quotient(g, axis.length, np.array(pooled[n], dtype), dtype)
    step = quotient(g, bin_size, np.array(samples, dtype), dtype)
    first = g.unsqueeze(bases(g, axis.start, bin_size, pooled[n], dtype), 2 - n)
    if move is not None:
        length = g.unsqueeze(axis.length, 2)
        first = g("Add", first, product(g, move, length, dtype))
    behind = product(g, np.arange(samples, dtype=dtype)[None], step, dtype)
    behind = g.unsqueeze(behind, 1, 2, 4 - n)
    position = g("Add", g.unsqueeze(first, 3, 4), behind)
    return _limited(g, position, size, 0.5, dtype)


@rule("_gluon_roi_DeformablePSROIPool")
def deformable_ps_roi_pool(g: Graph, node: Node) -> str:
    """Samples of the bins; a pair of a RoI and a class counts as a RoI, as in the kernels.

    ::

        rois --> decode -> box -> start and length of each pair along y and x --+
                   |                                                            |
        trans --> Gather by parts -> finite? -> moves of bins --> _part_samples: y, x
                   |                    |                                       |
        data --> maps of groups --------|-- GridSample, or RoiAlign of each <---+-> count
                   |                    |                  |                          |
                   |                    +-> Where <- sum / count <--------------------+
                   +-- valid, fill -----> finish (rows with offsets not finite: NaN)
    """
    # The shape has output_dim; the others have no effect without trans.
    node.accept("output_dim", "part_size", "trans_std")
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    group, samples = grid_of(node, "group_size", pooled), node.get("sample_per_part", 4)
    moved = node.get("trans", False)
    classes = node.shapes[2][1] // 2 if moved else 1
    dim = node.out_shapes[0][1] // classes
    data, dtype = data_of(g, node)
    places = [place for place in range(len(node.inputs)) if place != 2 or not moved]
    rows = decode(g, node.with_inputs(*places), dtype)
    count = g("Mul", rows.rows, np.array([classes]))

    def of_classes(each: str) -> str:
        """(K, 1) to (K * classes, 1)."""
        return g.reshape(g("Expand", each, np.array([1, classes])), -1, 1)

    axes = [
        _PartAxis(*map(of_classes, _part_axis(g, low, high, scale, dtype)))
        for low, high in axes_of(g, rows.box)
    ]
    image = g("Mul", g.unsqueeze(rows.image, 1), np.array(classes))
    image = g.reshape(g("Add", image, np.arange(classes)[None]), -1)
    apart = g("Mul", g.size(data, 0), np.array([classes]))
    maps = g.reshape(data, apart, node.shapes[0][1] // classes, g.shape(data, 2, 4))
    moves: list[str | None] = [None, None]
    if moved:
        *moves, finite = _part_moves(g, node, pooled, count)
    y, x = (
        _part_samples(g, axis, move, pooled, n, samples, g.size(data, 2 + n), dtype)
        for n, (axis, move) in enumerate(zip(axes, moves))
    )
    out = _sample_sums(g, maps, image, group, y, x, count, pooled, samples, dim, dtype)
    inside = [
        g("ReduceSum", g.cast(axis.inside, dtype), np.array([3, 4]), keepdims=0) for axis in (y, x)
    ]
    divisor = g("Max", g("Mul", *inside), np.array(1, dtype))
    out = g("Div", out, g.unsqueeze(divisor, 1))
    if moved:
        out = g("Where", finite, out, np.array(np.nan, dtype))
    return finish(g, node, rows, g.reshape(out, rows.rows, classes * dim, *pooled), dtype)
