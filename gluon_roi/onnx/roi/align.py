# SPDX-License-Identifier: Apache-2.0
"""ROIAlign, PSROIAlign and PyramidROIAlign: bilinear samples in a grid."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numpy as np

from ..graph import Node, OnnxGraph, Tensor, concat
from ..registry import rule
from .arithmetic import FARTHEST, on_map
from .bins import SampleAxis, align_bins, sample_axes
from .boxes import Rows, align, axes_of, data_of, decode, filled_rows, finish, pooled_size


@rule("_gluon_roi_ROIAlign")
def roi_align(g: OnnxGraph, node: Node) -> Tensor:
    """RoiAlign; boxes that it would sample differently are pooled with a RoI for each bin.

    ::

        rois -> decode -> image, box --+
                  |                    |
        data -----|--------------------+-> align_boxes ---+
                  |                                       |
                  +-- place, fill ------------------------+-> finish
    """
    data = data_of(node)
    rows = decode(node, data.dtype)
    scale, aligned = float(node.get("spatial_scale")), node.get("aligned", False)
    pool = _largest_samples if node.get("mode", "avg") == "max" else align_boxes
    return finish(node, rows, pool(node, data, rows.image, rows.box, scale, aligned))


@rule("_gluon_roi_PSROIAlign")
def ps_roi_align(g: OnnxGraph, node: Node) -> Tensor:
    """A RoI for each bin, on the map of its group.

    ::

        rois -> decode -> image, box -> sample_axes --+
                  |                                   |
        data -----|-----------------------------------+-> align_bins --+
                  |                                                    |
                  +-- place, fill -------------------------------------+-> finish
    """
    node.ignore("output_dim")  # it follows from the shape
    pooled, scale = pooled_size(node), float(node.get("spatial_scale"))
    aligned, sampling_ratio = node.get("aligned", True), node.get("sampling_ratio", -1)
    data = data_of(node)
    rows = decode(node, data.dtype)
    axes = sample_axes(rows.box, scale, aligned, pooled)
    out = align_bins(
        data, rows.image, axes, rows.number, pooled, sampling_ratio, pooled, node.static_out_size(1)
    )
    return finish(node, rows, out)


@rule("_gluon_roi_PyramidROIAlign")
def pyramid_roi_align(g: OnnxGraph, node: Node) -> Tensor:
    """ROIAlign of each map's boxes, added to the rows of the output that they belong to.

    ::

        rois -> decode, of lists each -> Equal(number of its map) -> NonZero -> Gather --+
                  |                                                               |      |
                  |  map n ---------------------------------------------> align_boxes    |
                  |                                                               |      |
                  +-> fill -> Expand ------------> ScatterND for each map <-------+------+

    A box is a padding row in the lists of all other maps, so it is pooled once.
    """
    scales, aligned = node.sizes("spatial_scale"), node.get("aligned", False)
    geometry = np.float64 if node.dtype == np.float64 else np.float32
    if node.get("assignment", "size") == "given":
        rows = _rows_of_lists(node, len(scales), geometry)
        # A row of the output is NaN if it is NaN in one of the lists.
        fill = functools.reduce(operator.add, (of_list.fill for of_list in rows))
    else:
        rois_node = node.with_inputs(0, *range(len(scales), len(node.inputs)))
        # The map is that of the box as it is given, which may have more digits than the maps.
        given = np.promote_types(rois_node.dtypes[1], geometry)
        all_rows = decode(rois_node, given)
        map_indices = _map_indices(node, all_rows.box, scales)
        if given != geometry:
            box, fill = all_rows.box.cast(geometry), all_rows.fill.cast(geometry)
            all_rows = all_rows._replace(box=box, fill=fill)
        rows = [_rows_of_map(all_rows, map_indices, number) for number in range(len(scales))]
        fill = all_rows.fill
    out = filled_rows(node, fill, geometry)
    for number, (scale, of_map) in enumerate(zip(scales, rows)):
        data = data_of(node, number)
        part = align_boxes(node, data, of_map.image, of_map.box, float(scale), aligned)
        out = g("ScatterND", out, of_map.place.unsqueeze(1), part, reduction="add")
    return out if geometry == node.dtype else out.cast(node.dtype)


def _rows_of_map(rows: Rows, map_indices: Tensor, number: int) -> Rows:
    """The rows that are pooled from the map with this index."""
    which = map_indices.equal(number).nonzero().reshape(-1)
    image, box, place = (part.gather(which) for part in (rows.image, rows.box, rows.place))
    return Rows(image, box, place, rows.fill, which.shape())


def _rows_of_lists(node: Node, lists: int, geometry: Any) -> list[Rows]:
    """The decoded rows of each map's list of boxes."""
    node.ignore("canonical_size", "canonical_level")
    all_rois, rows = node.inputs[-1], []
    lists_of_rois = all_rois.reshape(lists, -1, all_rois.shape(1))
    for number in range(lists):
        list_node = node.with_inputs(number, -1)
        list_node.inputs[1] = lists_of_rois.gather(np.array(number), axis=0)
        rows.append(decode(list_node, geometry))
    return rows


def _map_indices(node: Node, box: Tensor, scales: tuple) -> Tensor:
    """The index of each box's map in the pyramid, (K,) int64: core/geometry/pyramid.h."""
    size, level = node.get("canonical_size", 224.0), node.get("canonical_level", 4)
    edges = axes_of(box.cast(np.float64).clip(-FARTHEST, FARTHEST))
    height, width = ((high - low).max(0) for low, high in edges)
    relative = (height * width).sqrt() / size + 1e-6
    # All smaller boxes are pooled from the finest map as well.
    powers = [1 - int(np.frexp(scale)[1]) - level for scale in scales[1:]]
    min_sizes = np.ldexp(1.0, np.clip([-5000, *powers], -5000, 5000))[None]
    return (relative >= min_sizes).cast(np.int64).sum(1) - 1


def align_boxes(
    node: Node, data: Tensor, image: Tensor, box: Tensor, scale: float, aligned: bool
) -> Tensor:
    """ROIAlign of finite boxes on one map: (K, C, P, Q).

    ::

        box -> on the map --+--> (unit box if needs_per_bin) -> RoiAlign --> ScatterND --> out
                            |                                                   |
                            +--> needs_per_bin --> Gather --> align_bins, a RoI for each bin

    A box is pooled bin by bin if RoiAlign would take no samples of it (a side <= 0, aligned), or if
    a side is longer than 4 times the map, where RoiAlign's work would grow with the box. With a
    fixed number of samples, no box is.
    """
    pooled, sampling_ratio = pooled_size(node), node.get("sampling_ratio", -1)
    on_the_map = on_map(box, scale, False)
    if not aligned:
        on_the_map = _one_cell_at_least(on_the_map)
    if sampling_ratio > 0:
        return align(data, on_the_map, image, 1, aligned, pooled, sampling_ratio)
    axes = sample_axes(box, scale, aligned, pooled)
    needs_per_bin = _needs_per_bin(data, axes, aligned)
    plain = needs_per_bin.where([[0, 0, 1, 1]], on_the_map)
    out = align(data, plain, image, 1, aligned, pooled)
    which = needs_per_bin.squeeze(1).nonzero().reshape(-1)
    axes = [SampleAxis(*(part.gather(which) for part in axis)) for axis in axes]
    per_bin = align_bins(
        data, image.gather(which), axes, which.shape(), pooled, -1, (1, 1), node.static_size(1)
    )
    return out.graph("ScatterND", out, which.unsqueeze(1), per_bin)


def _largest_samples(
    node: Node, data: Tensor, image: Tensor, box: Tensor, scale: float, aligned: bool
) -> Tensor:
    """The largest sample of each bin: (K, C, P, Q).

    Each sample is a bin of a RoiAlign. (Several runtimes multiply cells by weights before they take
    the maximum of RoiAlign's own mode 'max'.)
    """
    (height, width), samples = pooled_size(node), node.get("sampling_ratio", -1)
    if samples <= 0:
        raise node.refusal(
            f"argument sampling_ratio: expected a number above 0 with mode=max, got {samples}: a "
            "number of samples that depends on the box has no translation"
        )
    on_the_map = on_map(box, scale, False)
    if not aligned:
        on_the_map = _one_cell_at_least(on_the_map)
    values = align(data, on_the_map, image, 1, aligned, (height * samples, width * samples), 1)
    apart = values.reshape(image.size(0), node.static_size(1), height, samples, width, samples)
    return apart.graph("ReduceMax", apart, axes=[3, 5], keepdims=0)


def _one_cell_at_least(box: Tensor) -> Tensor:
    """Boxes (K, 4) in cells of the map, extended to a minimum side of one cell.

    RoiAlign's mode output_half_pixel has this minimum in today's runtimes, but not in ONNX. The
    minimum is a few ulps below one cell, because RoiAlign takes a second sample in a bin that is
    longer than a cell.
    """
    low, high = box.columns(0, 2), box.columns(2, 4)
    margin = (low.abs() + 1) * (4 * float(np.finfo(box.dtype).eps))
    return concat(low, high.max(low + (1 - margin)), axis=1)


def _needs_per_bin(data: Tensor, axes: list[SampleAxis], aligned: bool) -> Tensor:
    """Whether a box has to be pooled bin by bin, (K, 1) bool."""
    conditions: list[Tensor] = []
    for n, axis in enumerate(axes):
        conditions.append(axis.length > data.size(2 + n).cast(data.dtype) * 4)
        if aligned:
            conditions.append(axis.length <= 0)
        conditions = [functools.reduce(operator.or_, conditions)]
    return conditions[0]
