# SPDX-License-Identifier: Apache-2.0
"""ROIPool and PSROIPool: bins that are rectangles of cells."""

from __future__ import annotations

import numpy as np

from ..graph import Node, OnnxGraph, Tensor, concat
from ..registry import rule
from .arithmetic import product, quotient, round_away, rounded, saturate
from .boxes import (
    align,
    axes_of,
    bin_boxes,
    bin_images,
    data_of,
    decode,
    finish,
    grid_of,
    group_images,
    join_bins,
    pooled_size,
)


@rule("_gluon_roi_ROIPool")
def roi_pool(g: OnnxGraph, node: Node) -> Tensor:
    """The maximum of every bin.

    ::

        rois -> bins of cells, a RoI each --+
        data -------------------------------+-> MaxRoiPool -> finish: _pool_cells
    """
    if node.dtype == np.float64:
        raise node.refusal(
            "float64 data have no translation: MaxRoiPool of the runtimes is float32"
        )
    return _pool_cells(g, node, "roi_pool", node.static_size(1), (1, 1))


@rule("_gluon_roi_PSROIPool")
def ps_roi_pool(g: OnnxGraph, node: Node) -> Tensor:
    """The mean of every bin in the map of its group.

    ::

        rois -> bins of cells, a RoI each --+
        data -> groups as images -----------+-> RoiAlign, a sample a cell -> finish: _pool_cells
    """
    node.ignore("output_dim")  # it follows from the shape
    pooled = pooled_size(node)
    group = grid_of(node, "group_size", pooled)
    return _pool_cells(g, node, node.get("convention", "rfcn"), node.static_out_size(1), group)


def _pool_cells(
    g: OnnxGraph, node: Node, convention: str, dim: int, group: tuple[int, int]
) -> Tensor:
    """Cells of bins -> one RoI for each bin -> MaxRoiPool or RoiAlign.

    ::

        rois -> decode -> box -> first and end cell of bins, along y and x -> bin_boxes
                  |                     |                                        |
                  |                     +-> bins without a cell                  |
        data -> group_images -----------------+----------- MaxRoiPool or RoiAlign
                  |                           |                 |
                  |                           +--> Where <-- join_bins
                  +-- place, fill -----------------> finish -> (K, dim, P, Q)
    """
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    rows = decode(node, np.float32)
    data = data_of(node)
    axes = [
        _cells(convention, low, high, scale, bins, data.size(2 + axis))
        for axis, ((low, high), bins) in enumerate(zip(axes_of(rows.box), pooled))
    ]
    low, high = [axis[0] for axis in axes], [axis[1] for axis in axes]
    images = bin_images(rows.image, pooled, group, rows.number)
    if convention == "roi_pool":
        # MaxRoiPool's boxes include their last cell.
        high = [edge - 1 for edge in high]
        boxes = bin_boxes(low, high, pooled, rows.number)
        rois = concat(images.cast(np.float32).unsqueeze(1), boxes, axis=1)
        bins = g("MaxRoiPool", data, rois, pooled_shape=[1, 1], spatial_scale=1.0)
        # As in the kernels, the maximum starts at the lowest number of the type.
        bins = bins.max(np.finfo(node.dtype).min)
        empty = [upper < lower for lower, upper in zip(low, high)]
    else:
        boxes = bin_boxes(low, high, pooled, rows.number)
        boxes = boxes if data.dtype == np.float32 else boxes.cast(data.dtype)
        maps = group_images(data, dim, group[0] * group[1])
        bins = align(maps, boxes, images, 1, True)  # a sample per cell, in its centre
        empty = [upper <= lower for lower, upper in zip(low, high)]
    none = empty[0].unsqueeze(1, 3) | empty[1].unsqueeze(1, 2)
    out = none.where(0, join_bins(bins, rows.number, pooled, dim))
    return finish(node, rows, out)


def _cells(
    convention: str, low: Tensor, high: Tensor, scale: float, bins: int, size: Tensor
) -> tuple[Tensor, Tensor]:
    """First and end cell of every bin along one axis, (K, bins) each: core/geometry/bins.h.

    ::

        low, high -> rounded and scaled, in the order of the convention -> start, length
        each = length / bins;  first = floor(bin * each), end = ceil((bin + 1) * each)
        + start -> limited to the map
    """
    if convention == "rfcn":
        start = saturate(round_away(low) * scale)
        end = saturate(rounded(round_away(high) + 1) * scale)
        length = (end - start).max(0.1)
    else:
        start = saturate(round_away(low * scale))
        length = saturate(round_away(high * scale)) - start
        length = length + 1 if convention == "roi_pool" else length
        length = length.max(1)
    each = quotient(length, bins)
    last = size.cast(np.float32)
    last = last - 1 if convention == "torchvision" else last
    edges = []
    for first, rounded_to in ((0, Tensor.floor), (1, Tensor.ceil)):
        offset = product(each, np.arange(first, bins + first)[None])
        if convention == "rfcn":
            edge = rounded_to(offset + start)
        else:
            edge = rounded_to(offset) + start
        edges.append(edge.max(0).min(last))
    return edges[0], edges[1]
