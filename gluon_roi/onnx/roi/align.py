# SPDX-License-Identifier: Apache-2.0
"""ROIAlign, PSROIAlign and PyramidROIAlign: bilinear samples in a grid."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..graph import Graph, Node
from ..registry import rule
from .arithmetic import FARTHEST
from .bins import SampleAxis, align_bins, sample_axes
from .boxes import Rows, align, axes_of, data_of, decode, finish, pooled_size


@rule("_gluon_roi_ROIAlign")
def roi_align(g: Graph, node: Node) -> str:
    """RoiAlign, or a RoI for each bin of boxes that RoiAlign would sample differently.

    ::

        rois -> decode -> image, box --+
                  |                    |
        data -----|--------------------+-> _align_boxes --+
                  |                                       |
                  +-- valid, fill ------------------------+-> finish
    """
    data, dtype = data_of(g, node)
    rows = decode(g, node, dtype)
    scale = float(node.get("spatial_scale"))
    out = _align_boxes(g, node, data, rows.image, rows.box, scale, dtype)
    return finish(g, node, rows, out, dtype)


@rule("_gluon_roi_PSROIAlign")
def ps_roi_align(g: Graph, node: Node) -> str:
    """A RoI for each bin, on the map of its group.

    ::

        rois -> decode -> image, box -> sample_axes --+
                  |                                   |
        data -----|-----------------------------------+-> align_bins --+
                  |                                                    |
                  +-- valid, fill -------------------------------------+-> finish
    """
    node.accept("output_dim")  # the shape has it
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    aligned, sampling_ratio = node.get("aligned", True), node.get("sampling_ratio", -1)
    data, dtype = data_of(g, node)
    rows = decode(g, node, dtype)
    axes = sample_axes(g, rows.box, scale, aligned, pooled, dtype)
    out = align_bins(
        g,
        data,
        rows.image,
        axes,
        rows.rows,
        pooled,
        sampling_ratio,
        pooled,
        node.out_shapes[0][1],
        dtype,
    )
    return finish(g, node, rows, out, dtype)


@rule("_gluon_roi_PyramidROIAlign")
def pyramid_roi_align(g: Graph, node: Node) -> str:
    """ROIAlign of each map's boxes, added to the rows of the output that they belong to.

    ::

        rois -> decode -> Equal(number of its map) or, of lists, valid -> NonZero --+
                  |                                                     |           |
                  |  map n --------------------------------> Gather -> _align_boxes |
                  |                                                          |      |
                  +-> fill -> Expand -------> ScatterND for each map <-------+------+

    A row of a list that is for another map is padding, so each box is pooled once.
    """
    scales = node.sizes("spatial_scale")
    geometry = np.float64 if node.dtype == np.float64 else np.float32
    if node.get("assignment", "size") == "given":
        rows = _rows_of_lists(g, node, len(scales), geometry)
        of_maps = [one.valid for one in rows]
    else:
        rows_of = node.with_inputs(0, *range(len(scales), len(node.inputs)))
        rows = [decode(g, rows_of, geometry)] * len(scales)
        numbers = _map_numbers(g, node, rows[0].box, scales)
        of_maps = [
            g("And", rows[0].valid, g("Equal", numbers, np.array(number)))
            for number in range(len(scales))
        ]
    # Of all lists, a row is NaN if it is in one.
    fills = [g("Where", one.valid, np.array(0, geometry), one.fill) for one in dict.fromkeys(rows)]
    fill = functools.reduce(lambda total, one: g("Add", total, one), fills)
    out = g.unsqueeze(fill, 1, 2, 3)
    out = g("Expand", out, g.joined(rows[0].rows, node.out_shapes[0][1], *pooled_size(node)))
    for number, (scale, one, mine) in enumerate(zip(scales, rows, of_maps)):
        data, dtype = data_of(g, node, number)
        own = g("NonZero", mine)
        places = g("Transpose", own, perm=[1, 0])
        own = g.reshape(own, -1)
        image, box = g("Gather", one.image, own), g("Gather", one.box, own)
        part = _align_boxes(g, node, data, image, box, float(scale), dtype)
        out = g("ScatterND", out, places, part, reduction="add")
    return out if geometry == node.dtype else g.cast(out, node.dtype)


def _rows_of_lists(g: Graph, node: Node, lists: int, geometry: Any) -> list[Rows]:
    """The rows of each map's list of boxes."""
    node.accept("canonical_size", "canonical_level")
    all_rois, rows = node.inputs[-1], []
    apart = g.reshape(all_rois, lists, -1, g.shape(all_rois, 1))
    for number in range(lists):
        own = node.with_inputs(number, -1)
        own.inputs[1] = g("Gather", apart, np.array(number), axis=0)
        rows.append(decode(g, own, geometry))
    return rows


def _map_numbers(g: Graph, node: Node, box: str, scales: tuple) -> str:
    """The number of each box's map in the pyramid, (K,) int64: core/geometry/pyramid.h."""
    size, level = node.get("canonical_size", 224.0), node.get("canonical_level", 4)
    far = np.array(FARTHEST, np.float64)
    edges = axes_of(g, g("Clip", g.cast(box, np.float64), -far, far))
    sides = [g("Max", g("Sub", high, low), np.float64(0)) for low, high in edges]
    relative = g("Div", g("Sqrt", g("Mul", *sides)), np.float64(size))
    relative = g("Add", relative, np.float64(1e-6))
    # The finest map also takes all smaller boxes.
    powers = [1 - int(np.frexp(scale)[1]) - level for scale in scales[1:]]
    least = np.ldexp(1.0, np.clip([-5000, *powers], -5000, 5000))[None]
    passed = g.cast(g("GreaterOrEqual", relative, least), np.int64)
    return g("Sub", g("ReduceSum", passed, np.array([1]), keepdims=0), np.array(1))


def _align_boxes(
    g: Graph, node: Node, data: str, image: str, box: str, scale: float, dtype: Any
) -> str:
    """ROIAlign of finite boxes on one map: (K, C, P, Q).

    ::

        box --+--> (another box if it is odd) -----> RoiAlign --> ScatterND --> out
              |                                                       |
              +--> odd --> Gather --> align_bins, a RoI for each bin -+

    A box is odd if RoiAlign would take no samples of it, or more than a map can need. With a fixed
    number of samples, no box is odd.
    """
    pooled, aligned = pooled_size(node), node.get("aligned", False)
    sampling_ratio = node.get("sampling_ratio", -1)
    far = np.array(FARTHEST / max(scale, 1), dtype)
    held = g("Clip", box, -far, far)
    if sampling_ratio > 0:
        return align(g, data, held, image, dtype, scale, aligned, pooled, sampling_ratio)
    axes = sample_axes(g, box, scale, aligned, pooled, dtype)
    odd = _odd(g, data, axes, aligned, dtype)
    plain = g("Where", odd, np.array([[0, 0, 1 / scale, 1 / scale]], dtype), held)
    out = align(g, data, plain, image, dtype, scale, aligned, pooled)
    which = g.reshape(g("NonZero", g.squeeze(odd, 1)), -1)
    axes = [SampleAxis(*(g("Gather", part, which) for part in axis)) for axis in axes]
    apart = align_bins(
        g,
        data,
        g("Gather", image, which),
        axes,
        g.shape(which),
        pooled,
        -1,
        (1, 1),
        node.shapes[0][1],
        dtype,
    )
    return g("ScatterND", out, g.unsqueeze(which, 1), apart)


def _odd(g: Graph, data: str, axes: list[SampleAxis], aligned: bool, dtype: Any) -> str:
    """Whether a box is odd, and so pooled bin by bin, (K, 1) bool."""
    odd = ""
    for n, axis in enumerate(axes):
        cells = g.cast(g.size(data, 2 + n), dtype)
        conditions = [g("Greater", axis.length, g("Mul", cells, np.array(4, dtype)))]
        if aligned:
            conditions.append(g("LessOrEqual", axis.length, np.array(0, dtype)))
        for condition in conditions:
            odd = g("Or", odd, condition) if odd else condition
    return odd
