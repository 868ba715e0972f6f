# SPDX-License-Identifier: Apache-2.0
"""ROIAlign, PSROIAlign and PyramidROIAlign: bilinear samples in a grid."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from ..graph import Graph, Node, Tensor
from ..registry import rule
from .arithmetic import FARTHEST
from .bins import SampleAxis, align_bins, sample_axes
from .boxes import Rows, align, axes_of, data_of, decode, finish, pooled_size


@rule("_gluon_roi_ROIAlign")
def roi_align(g: Graph, node: Node) -> Tensor:
    """RoiAlign, or a RoI for each bin of boxes that RoiAlign would sample differently.

    ::

        rois -> decode -> image, box --+
                  |                    |
        data -----|--------------------+-> _align_boxes --+
                  |                                       |
                  +-- valid, fill ------------------------+-> finish
    """
    data = data_of(node)
    rows = decode(node, data.dtype)
    scale = float(node.get("spatial_scale"))
    out = _align_boxes(node, data, rows.image, rows.box, scale)
    return finish(node, rows, out)


@rule("_gluon_roi_PSROIAlign")
def ps_roi_align(g: Graph, node: Node) -> Tensor:
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
    data = data_of(node)
    rows = decode(node, data.dtype)
    axes = sample_axes(rows.box, scale, aligned, pooled)
    out = align_bins(
        data, rows.image, axes, rows.rows, pooled, sampling_ratio, pooled, node.out_shapes[0][1]
    )
    return finish(node, rows, out)


@rule("_gluon_roi_PyramidROIAlign")
def pyramid_roi_align(g: Graph, node: Node) -> Tensor:
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
        rows = _rows_of_lists(node, len(scales), geometry)
        of_maps = [one.valid for one in rows]
    else:
        rows_of = node.with_inputs(0, *range(len(scales), len(node.inputs)))
        rows = [decode(rows_of, geometry)] * len(scales)
        numbers = _map_numbers(node, rows[0].box, scales)
        of_maps = [rows[0].valid & numbers.equal(number) for number in range(len(scales))]
    # Of all lists, a row is NaN if it is in one.
    fills = [one.valid.where(0, one.fill) for one in dict.fromkeys(rows)]
    fill = functools.reduce(operator.add, fills)
    out = fill.unsqueeze(1, 2, 3)
    out = out.expand(rows[0].rows, node.out_shapes[0][1], *pooled_size(node))
    for number, (scale, one, mine) in enumerate(zip(scales, rows, of_maps)):
        data = data_of(node, number)
        own = mine.nonzero()
        places = own.transpose(1, 0)
        own = own.reshape(-1)
        image, box = one.image.gather(own), one.box.gather(own)
        part = _align_boxes(node, data, image, box, float(scale))
        out = g("ScatterND", out, places, part, reduction="add")
    return out if geometry == node.dtype else out.cast(node.dtype)


def _rows_of_lists(node: Node, lists: int, geometry: Any) -> list[Rows]:
    """The rows of each map's list of boxes."""
    node.accept("canonical_size", "canonical_level")
    all_rois, rows = node.inputs[-1], []
    apart = all_rois.reshape(lists, -1, all_rois.shape(1))
    for number in range(lists):
        own = node.with_inputs(number, -1)
        own.inputs[1] = apart.gather(np.array(number), axis=0)
        rows.append(decode(own, geometry))
    return rows


def _map_numbers(node: Node, box: Tensor, scales: tuple) -> Tensor:
    """The number of each box's map in the pyramid, (K,) int64: core/geometry/pyramid.h."""
    size, level = node.get("canonical_size", 224.0), node.get("canonical_level", 4)
    edges = axes_of(box.cast(np.float64).clip(-FARTHEST, FARTHEST))
    height, width = ((high - low).max(0) for low, high in edges)
    relative = (height * width).sqrt() / size + 1e-6
    # The finest map also takes all smaller boxes.
    powers = [1 - int(np.frexp(scale)[1]) - level for scale in scales[1:]]
    least = np.ldexp(1.0, np.clip([-5000, *powers], -5000, 5000))[None]
    return (relative >= least).cast(np.int64).sum(1) - 1


def _align_boxes(node: Node, data: Tensor, image: Tensor, box: Tensor, scale: float) -> Tensor:
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
    far = FARTHEST / max(scale, 1)
    held = box.clip(-far, far)
    if sampling_ratio > 0:
        return align(data, held, image, scale, aligned, pooled, sampling_ratio)
    axes = sample_axes(box, scale, aligned, pooled)
    odd = _odd(data, axes, aligned)
    plain = odd.where([[0, 0, 1 / scale, 1 / scale]], held)
    out = align(data, plain, image, scale, aligned, pooled)
    which = odd.squeeze(1).nonzero().reshape(-1)
    axes = [SampleAxis(*(part.gather(which) for part in axis)) for axis in axes]
    apart = align_bins(
        data, image.gather(which), axes, which.shape(), pooled, -1, (1, 1), node.shapes[0][1]
    )
    return out.graph("ScatterND", out, which.unsqueeze(1), apart)


def _odd(data: Tensor, axes: list[SampleAxis], aligned: bool) -> Tensor:
    """Whether a box is odd, and so pooled bin by bin, (K, 1) bool."""
    conditions: list[Tensor] = []
    for n, axis in enumerate(axes):
        conditions.append(axis.length > data.size(2 + n).cast(data.dtype) * 4)
        if aligned:
            conditions.append(axis.length <= 0)
        conditions = [functools.reduce(operator.or_, conditions)]
    return conditions[0]
