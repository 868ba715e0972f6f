# SPDX-License-Identifier: Apache-2.0
"""RoIs in a graph: which rows have a result, and bins as RoIs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import Graph, Node
from .arithmetic import is_finite

# ---- Rows ----------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Decoded RoIs; rows without a result have image 0 and a box of zeros."""

    image: str  # (K,) int64
    box: str  # (K, 4), the type of the geometry
    valid: str  # (K,) bool
    fill: str  # (K,), value of rows without a result: 0, or NaN
    rows: str  # (1,), K


class _Form(NamedTuple):
    """Rows in any of the forms of rois."""

    image: str  # (K,), its index
    box: str  # (K, coordinates)
    rows: str  # (1,), K
    number: Any  # type of image: int64 unless it is a column of rois


def decode(g: Graph, node: Node, geometry: Any, coordinates: int = 4) -> Rows:
    """Decode rois: (K, 1 + coordinates), (N, R, coordinates), or with rois_num.

    ::

        rois --+-- index --+-- below 0 --------------> padding --> fill: 0, else NaN
               |           +-- below N, whole -+
               |                               +-And-> valid --> image, box: 0 where it is not
               +-- box ------- finite ---------+
    """
    data, rois, *counts = node.inputs
    beyond_is_padding = node.get("bad_index", "error") == "padding"
    node.accept("rois_num")  # the inputs tell
    given = np.promote_types(node.dtypes[1], np.float32)
    rois = g.cast(rois, given) if given != node.dtypes[1] else rois
    images = g.size(data, 0)
    if len(node.shapes[1]) == 3:
        form = _per_image(g, rois, images, coordinates)
    elif counts:
        form = _with_counts(g, rois, counts[0])
    else:
        form = _with_column(g, rois, coordinates, given)
    index, box, count, number = form
    zero, size = np.array(0, number), g.cast(images, number)
    padding = g("Less", index, zero)
    inside = g("Less", index, size)
    if number != np.int64:
        whole = g("Equal", g("Floor", index), index)
        if beyond_is_padding:
            padding = g("Or", padding, g("And", whole, g("GreaterOrEqual", index, size)))
        inside = g("And", inside, whole)
    elif beyond_is_padding:
        padding = g("Or", padding, g("GreaterOrEqual", index, size))
    finite = is_finite(g, box, given)
    finite = g("ReduceMin", g.cast(finite, np.int32), axes=[1], keepdims=0)
    valid = g("And", g("And", inside, g("Not", padding)), g.cast(finite, np.bool_))
    box = g("Where", g.unsqueeze(valid, 1), box, np.array(0, given))
    box = g.cast(box, geometry) if given != geometry else box
    image = g.cast(g("Where", valid, index, zero), np.int64)
    fill = g("Where", padding, np.array(0, geometry), np.array(np.nan, geometry))
    return Rows(image, box, valid, fill, count)


def _per_image(g: Graph, rois: str, images: str, coordinates: int) -> _Form:
    per_image = g.size(rois, 1)
    box = g.reshape(rois, g("Mul", images, per_image), coordinates)
    count = g.size(box, 0)
    column = g.reshape(count_to(g, images), -1, 1)
    index = g.reshape(g("Expand", column, g.joined(images, per_image)), -1)
    return _Form(index, box, count, np.int64)


def _with_counts(g: Graph, rois: str, counts: str) -> _Form:
    count = g.size(rois, 0)
    ends = g("CumSum", g.cast(counts, np.int64), np.array(0))
    row = g.reshape(count_to(g, count), -1, 1)
    passed = g.cast(g("GreaterOrEqual", row, g.unsqueeze(ends, 0)), np.int64)
    index = g("ReduceSum", passed, np.array([1]), keepdims=0)
    return _Form(index, rois, count, np.int64)


def _with_column(g: Graph, rois: str, coordinates: int, given: Any) -> _Form:
    box, count = g.columns(rois, 1, 1 + coordinates), g.size(rois, 0)
    index = g.squeeze(g.columns(rois, 0, 1), 1)
    return _Form(index, box, count, given)


def count_to(g: Graph, end: str) -> str:
    """0, 1, ... below a vector of one element."""
    return g("Range", np.array(0), g.scalar(end), np.array(1))


def axes_of(g: Graph, box: str) -> list[tuple[str, str]]:
    """(low, high) edges of the boxes, (K, 1) each, along y and x."""
    x1, y1, x2, y2 = g("Split", box, np.array([1, 1, 1, 1]), axis=1, outputs=4)
    return [(y1, y2), (x1, x2)]


def finish(g: Graph, node: Node, rows: Rows, out: str, computed: Any) -> str:
    """Fill the rows without a result, and convert to the type of the data."""
    fill = rows.fill
    if node.dtype == np.float64 and computed == np.float64:
        fill = g.cast(fill, np.float64)
    which = g("NonZero", g("Not", rows.valid))
    fill = g.unsqueeze(g("Gather", fill, g.reshape(which, -1)), 1, 2, 3)
    fill = g("Expand", fill, g.joined(1, g.shape(out, 1)))
    out = g("ScatterND", out, g("Transpose", which, perm=[1, 0]), fill)
    return out if computed == node.dtype else g.cast(out, node.dtype)


def data_of(g: Graph, node: Node, number: int = 0) -> tuple[str, Any]:
    """A map in the type that it is pooled in, and that type."""
    computed = np.float64 if node.dtype == np.float64 else np.float32
    data = node.inputs[number]
    return (data if node.dtype == computed else g.cast(data, computed)), computed


def pooled_size(node: Node) -> tuple[int, int]:
    size = node.sizes("pooled_size")
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


def grid_of(node: Node, name: str, pooled: tuple[int, int]) -> tuple[int, int]:
    """An attribute that defaults to the pooled size."""
    size = node.sizes(name, pooled)
    return size[0], size[-1]


# ---- Bins as RoIs --------------------------------------------------------------------------------


def align(
    g: Graph,
    data: str,
    boxes: str,
    images: str,
    computed: Any,
    scale: float,
    aligned: bool,
    pooled: tuple[int, int] = (1, 1),
    sampling_ratio: int = -1,
) -> str:
    """RoiAlign; for float64 the scale is applied before, because RoiAlign's is float32."""
    if computed == np.float64 and scale != 1:
        boxes, scale = g("Mul", boxes, np.float64(scale)), 1
    return g(
        "RoiAlign",
        data,
        boxes,
        images,
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        mode="avg",
        output_height=pooled[0],
        output_width=pooled[1],
        sampling_ratio=max(sampling_ratio, 0),
        spatial_scale=float(scale),
    )


def bin_boxes(g: Graph, low: list[str], high: list[str], pooled: tuple, count: str) -> str:
    """Boxes (K * P * Q, 4) of the bins, from edges (K, P) along y and (K, Q) along x."""
    shape = g.joined(count, pooled[0], pooled[1], 1)
    edges = []
    for edge in (low, high):
        y, x = g.unsqueeze(edge[0], 2, 3), g.unsqueeze(edge[1], 1, 3)
        edges += [g("Expand", x, shape), g("Expand", y, shape)]
    return g.reshape(
        g("Concat", *edges, axis=3), g("Mul", count, np.array(pooled[:1]) * pooled[1]), 4
    )


def parts_of_bins(pooled: tuple, grid: tuple) -> tuple[np.ndarray, np.ndarray]:
    """The row and the column of a grid over the box that each row and column of bins is in."""
    p, q = (np.arange(bins) * parts // bins for bins, parts in zip(pooled, grid))
    return p, q


def bin_images(g: Graph, image: str, pooled: tuple, group: tuple, count: str) -> str:
    """Image of every bin, (K * P * Q,); each image became group[0] * group[1] images."""
    p, q = parts_of_bins(pooled, group)
    index = g("Mul", g.unsqueeze(image, 1, 2), np.array(group[0] * group[1]))
    index = g("Add", index, (p[:, None] * group[1] + q)[None])
    return g.reshape(index, g("Mul", count, np.array([pooled[0] * pooled[1]])))


def group_images(g: Graph, data: str, dim: int, groups: int) -> str:
    """Score maps (N, dim * groups, H, W) as images (N * groups, dim, H, W)."""
    if groups == 1:
        return data
    size = g.shape(data, 2, 4)
    apart = g.reshape(data, g.size(data, 0), dim, groups, size)
    number = g("Mul", g.size(data, 0), np.array([groups]))
    return g.reshape(g("Transpose", apart, perm=[0, 2, 1, 3, 4]), number, dim, size)


def join_bins(g: Graph, bins: str, count: str, pooled: tuple, dim: int) -> str:
    """(K * P * Q, dim, 1, 1) to (K, dim, P, Q)."""
    return g("Transpose", g.reshape(bins, count, pooled[0], pooled[1], dim), perm=[0, 3, 1, 2])
