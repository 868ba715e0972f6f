# SPDX-License-Identifier: Apache-2.0
"""ROIPool and PSROIPool: bins of whole cells."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node
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
def roi_pool(g: Graph, node: Node) -> str:
    """The maximum of every bin.

    ::

        rois -> bins of cells, a RoI each --+
        data -------------------------------+-> MaxRoiPool -> finish: _pool_cells
    """
    if node.dtype == np.float64:
        raise node.refusal(
            "float64 data have no translation: MaxRoiPool of the runtimes is float32"
        )
    return _pool_cells(g, node, "roi_pool", node.shapes[0][1], (1, 1))


@rule("_gluon_roi_PSROIPool")
def ps_roi_pool(g: Graph, node: Node) -> str:
    """The mean of every bin in the map of its group.

    ::

        rois -> bins of cells, a RoI each --+
        data -> groups as images -----------+-> RoiAlign, a sample a cell -> finish: _pool_cells
    """
    node.accept("output_dim")  # the shape has it
    pooled = pooled_size(node)
    group = grid_of(node, "group_size", pooled)
    return _pool_cells(g, node, node.get("convention", "rfcn"), node.out_shapes[0][1], group)


def _pool_cells(g: Graph, node: Node, convention: str, dim: int, group: tuple[int, int]) -> str:
    """Cells of bins -> one RoI for each bin -> MaxRoiPool or RoiAlign.

    ::

        rois -> decode -> box -> first and end cell of bins, along y and x -> bin_boxes
                  |                     |                                        |
                  |                     +-> bins without a cell                  |
        data -> group_images -----------------+----------- MaxRoiPool or RoiAlign
                  |                           |                 |
                  |                           +--> Where <-- join_bins
                  +-- valid, fill -----------------> finish -> (K, dim, P, Q)
    """
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    rows = decode(g, node, np.float32)
    data, computed = data_of(g, node)
    axes = [
        _cells(g, convention, low, high, scale, bins, g.size(data, 2 + axis))
        for axis, ((low, high), bins) in enumerate(zip(axes_of(g, rows.box), pooled))
    ]
    low, high = [axis[0] for axis in axes], [axis[1] for axis in axes]
    images = bin_images(g, rows.image, pooled, group, rows.rows)
    if convention == "roi_pool":
        # A box of MaxRoiPool ends with its last cell.
        high = [g("Sub", edge, np.float32(1)) for edge in high]
        boxes = bin_boxes(g, low, high, pooled, rows.rows)
        rois = g("Concat", g.unsqueeze(g.cast(images, np.float32), 1), boxes, axis=1)
        bins = g("MaxRoiPool", data, rois, pooled_shape=[1, 1], spatial_scale=1.0)
        # The kernels' search for the maximum starts at the lowest number of the type.
        bins = g("Max", bins, np.float32(np.finfo(node.dtype).min))
        empty = [g("Less", upper, lower) for lower, upper in zip(low, high)]
    else:
        boxes = bin_boxes(g, low, high, pooled, rows.rows)
        boxes = boxes if computed == np.float32 else g.cast(boxes, computed)
        maps = group_images(g, data, dim, group[0] * group[1])
        bins = align(g, maps, boxes, images, computed, 1, True)  # a sample per cell, in its centre
        empty = [g("LessOrEqual", upper, lower) for lower, upper in zip(low, high)]
    none = g("Or", g.unsqueeze(empty[0], 1, 3), g.unsqueeze(empty[1], 1, 2))
    out = g("Where", none, np.array(0, computed), join_bins(g, bins, rows.rows, pooled, dim))
    return finish(g, node, rows, out, computed)


def _cells(
    g: Graph, convention: str, low: str, high: str, scale: float, bins: int, size: str
) -> tuple[str, str]:
    """First and end cell of every bin along one axis, (K, bins) each: core/geometry/bins.h.

    ::

        low, high -> rounded and scaled, in the order of the convention -> start, length
        each = length / bins;  first = floor(bin * each), end = ceil((bin + 1) * each)
        + start -> limited to the map
    """
    s, one = np.float32(scale), np.float32(1)
    if convention == "rfcn":
        start = saturate(g, g("Mul", round_away(g, low), s))
        end = saturate(g, g("Mul", rounded(g, g("Add", round_away(g, high), one)), s))
        length = g("Max", g("Sub", end, start), np.float32(0.1))
    else:
        start = saturate(g, round_away(g, g("Mul", low, s)))
        length = g("Sub", saturate(g, round_away(g, g("Mul", high, s))), start)
        length = g("Add", length, one) if convention == "roi_pool" else length
        length = g("Max", length, one)
    each = quotient(g, length, np.float32(bins))
    last = g.cast(size, np.float32)
    last = g("Sub", last, one) if convention == "torchvision" else last
    edges = []
    for first, rounding in ((0, "Floor"), (1, "Ceil")):
        offset = product(g, each, np.arange(first, bins + first, dtype=np.float32)[None])
        if convention == "rfcn":
            edge = g(rounding, g("Add", offset, start))
        else:
            edge = g("Add", g(rounding, offset), start)
        edges.append(g("Min", g("Max", edge, np.float32(0)), last))
    return edges[0], edges[1]
