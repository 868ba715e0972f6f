# SPDX-License-Identifier: Apache-2.0
"""RoIs in a graph: decoding of rows, and bins as RoIs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import Node, Tensor, concat, concat_sizes
from .arithmetic import is_finite

# ---- Rows ----------------------------------------------------------------------------------------


class Rows(NamedTuple):
    """Decoded RoIs: the V of K rows that are pooled, and the values of the other rows.

    Other functions of this folder call V K.
    """

    image: Tensor  # (V,) int64
    box: Tensor  # (V, 4), the type of the geometry
    place: Tensor  # (V,) int64, the rows of the output
    fill: Tensor  # (K,): NaN for rows that are neither pooled nor padding, otherwise 0
    number: Tensor  # (1,), V


class _IndexedBoxes(NamedTuple):
    """Rows of rois in any layout."""

    image: Tensor  # (K,), its index
    box: Tensor  # (K, coordinates)
    number: Any  # type of image: int64, or the type of rois if it is a column


def decode(node: Node, geometry: Any, coordinates: int = 4) -> Rows:
    """Decode rois: (K, 1 + coordinates), (N, R, coordinates), or with rois_num.

    ::

        rois --+-- index --+-- below 0 --------------> padding --+--> fill: 0, else NaN
               |           +-- below N, whole -+                 |
               |                               +-And-> valid ----+--> place
               +-- box ------- finite ---------+                        |
               +-- index, box ------------------------------> Gather ---+--> image, box

    Only valid rows are pooled.
    """
    data, rois, *counts = node.inputs
    beyond_is_padding = node.get("bad_index", "error") == "padding"
    node.ignore("rois_num")  # the inputs tell
    given = np.promote_types(node.dtypes[1], np.float32)
    rois = rois.cast(given) if given != node.dtypes[1] else rois
    images = data.size(0)
    if len(node.shapes[1]) == 3:
        form = _per_image(rois, images, coordinates)
    elif counts:
        form = _with_counts(rois, counts[0])
    else:
        form = _with_column(rois, coordinates, given)
    index, box, number = form
    size = images.cast(number)
    padding = index < 0
    inside = index < size
    if number != np.int64:
        is_integer = index.floor().equal(index)
        if beyond_is_padding:
            padding = padding | is_integer & (index >= size)
        inside = inside & is_integer
    elif beyond_is_padding:
        padding = padding | (index >= size)
    finite = is_finite(box)
    finite = box.graph("ReduceMin", finite.cast(np.int32), axes=[1], keepdims=0)
    valid = inside & ~padding & finite.cast(np.bool_)
    fill = box.graph("Where", padding | valid, np.array(0, geometry), np.array(np.nan, geometry))
    place = valid.nonzero().reshape(-1)
    image = index.gather(place).cast(np.int64)
    box = box.gather(place)
    box = box.cast(geometry) if given != geometry else box
    return Rows(image, box, place, fill, place.shape())


def _per_image(rois: Tensor, images: Tensor, coordinates: int) -> _IndexedBoxes:
    per_image = rois.size(1)
    box = rois.reshape(images * per_image, coordinates)
    index = images.numbers().reshape(-1, 1).expand(images, per_image).reshape(-1)
    return _IndexedBoxes(index, box, np.int64)


def _with_counts(rois: Tensor, counts: Tensor) -> _IndexedBoxes:
    ends = rois.graph("CumSum", counts.cast(np.int64), np.array(0))
    row = rois.size(0).numbers().reshape(-1, 1)
    index = (row >= ends.unsqueeze(0)).cast(np.int64).sum(1)
    return _IndexedBoxes(index, rois, np.int64)


def _with_column(rois: Tensor, coordinates: int, given: Any) -> _IndexedBoxes:
    index = rois.columns(0, 1).squeeze(1)
    return _IndexedBoxes(index, rois.columns(1, 1 + coordinates), given)


def axes_of(box: Tensor) -> list[tuple[Tensor, Tensor]]:
    """(low, high) edges of the boxes, (K, 1) each, along y and x."""
    x1, y1, x2, y2 = box.split(4, 1)
    return [(y1, y2), (x1, x2)]


def finish(node: Node, rows: Rows, out: Tensor) -> Tensor:
    """Scatter the pooled rows to the rows of the output, and convert to the type of the data."""
    filled = filled_rows(node, rows.fill, out.dtype)
    out = out.graph("ScatterND", filled, rows.place.unsqueeze(1), out)
    return out if out.dtype == node.dtype else out.cast(node.dtype)


def filled_rows(node: Node, fill: Tensor, dtype: Any) -> Tensor:
    """The output of a node before pooled rows are written."""
    fill = fill if fill.dtype == dtype else fill.cast(dtype)
    return fill.unsqueeze(1, 2, 3).expand(fill.size(0), *map(node.static_out_size, (1, 2, 3)))


def data_of(node: Node, number: int = 0) -> Tensor:
    """A map, converted to the type in which it is pooled."""
    computed = np.float64 if node.dtype == np.float64 else np.float32
    data = node.inputs[number]
    return data if node.dtype == computed else data.cast(computed)


def pooled_size(node: Node) -> tuple[int, int]:
    size = node.sizes("pooled_size")
    return (size[0], size[0]) if len(size) == 1 else (size[0], size[1])


def grid_of(node: Node, name: str, pooled: tuple[int, int]) -> tuple[int, int]:
    """An attribute that defaults to the pooled size."""
    size = node.sizes(name, pooled)
    return size[0], size[-1]


# ---- Bins as RoIs --------------------------------------------------------------------------------


def align(
    data: Tensor,
    boxes: Tensor,
    images: Tensor,
    scale: float,
    aligned: bool,
    pooled: tuple[int, int] = (1, 1),
    sampling_ratio: int = -1,
) -> Tensor:
    """Add a RoiAlign. For float64 boxes are scaled first, because RoiAlign's scale is float32."""
    if data.dtype == np.float64 and scale != 1:
        boxes, scale = boxes * scale, 1
    return data.graph(
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


def bin_boxes(low: list[Tensor], high: list[Tensor], pooled: tuple, count: Tensor) -> Tensor:
    """Boxes (K * P * Q, 4) of the bins, from edges (K, P) along y and (K, Q) along x."""
    shape = concat_sizes(count, pooled[0], pooled[1], 1)
    edges = []
    for edge in (low, high):
        y, x = edge[0].unsqueeze(2, 3), edge[1].unsqueeze(1, 3)
        edges += [x.expand(shape), y.expand(shape)]
    return concat(*edges, axis=3).reshape(count * (np.array(pooled[:1]) * pooled[1]), 4)


def parts_of_bins(pooled: tuple, grid: tuple) -> tuple[np.ndarray, np.ndarray]:
    """The row of a grid over the box for each row of bins, and its column for each column of
    bins."""
    p, q = (np.arange(bins) * parts // bins for bins, parts in zip(pooled, grid))
    return p, q


def bin_images(image: Tensor, pooled: tuple, group: tuple, count: Tensor) -> Tensor:
    """The image of every bin, (K * P * Q,), after each image is split into group[0] * group[1]
    images."""
    p, q = parts_of_bins(pooled, group)
    index = image.unsqueeze(1, 2) * (group[0] * group[1])
    index = index + (p[:, None] * group[1] + q)[None]
    return index.reshape(count * [pooled[0] * pooled[1]])


def group_images(data: Tensor, dim: int, groups: int) -> Tensor:
    """Score maps (N, dim * groups, H, W) as images (N * groups, dim, H, W)."""
    if groups == 1:
        return data
    size = data.shape(2, 4)
    apart = data.reshape(data.size(0), dim, groups, size)
    number = data.size(0) * [groups]
    return apart.transpose(0, 2, 1, 3, 4).reshape(number, dim, size)


def join_bins(bins: Tensor, count: Tensor, pooled: tuple, dim: int) -> Tensor:
    """(K * P * Q, dim, 1, 1) to (K, dim, P, Q)."""
    return bins.reshape(count, pooled[0], pooled[1], dim).transpose(0, 3, 1, 2)
