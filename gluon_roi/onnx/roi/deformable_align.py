# SPDX-License-Identifier: Apache-2.0
"""DeformableROIAlign: bilinear samples in bins that have an offset and a factor each."""

from __future__ import annotations

import numpy as np

from ..graph import Node, OnnxGraph, Tensor
from ..registry import rule
from .align import align_boxes
from .arithmetic import all_finite, product, saturate
from .bins import SampleAxis, align_bins, sample_axes
from .boxes import data_of, decode, finish, join_bins, pooled_size


@rule("_gluon_roi_DeformableROIAlign")
def deformable_roi_align(g: OnnxGraph, node: Node) -> Tensor:
    """A RoI for each bin; without offset and mask, ROIAlign.

    ::

        rois -> decode -> image, box -> sample_axes -> start and length of each bin --+
                  |                                                                   |
        offset -> Gather -> finite? -> shift ---------------------------------------->+-> align_bins
        mask ---> Gather -> NaN for bins without finite offsets -------------------> Mul <----+
                  |                                                                   |
                  +-- place, fill ----------------------------------------------------+-> finish
    """
    given = [name for name in ("offset", "mask") if node.get(name, False)]
    gamma, aligned = node.get("gamma", 0.1), node.get("aligned", True)
    data, scale = data_of(node), float(node.get("spatial_scale"))
    boxes = [place for place in range(len(node.inputs)) if not 2 <= place < 2 + len(given)]
    rows = decode(node.with_inputs(*boxes), data.dtype)
    if not given:
        out = align_boxes(node, data, rows.image, rows.box, scale, aligned)
        return finish(node, rows, out)
    pooled, sampling_ratio = pooled_size(node), node.get("sampling_ratio", 0)
    axes, count = sample_axes(rows.box, scale, aligned, pooled), rows.number
    shifts: list = [0, 0]
    factor = None
    if "offset" in given:
        offset = data_of(node, 2).gather(rows.place, axis=0)
        finite = all_finite(offset)
        x, y = finite.where(offset, 0).split(2, 1)
        shifts = [
            product(product(product(axis.bin, float(bins)), gamma).unsqueeze(2, 3), along)
            for axis, bins, along in zip(axes, pooled, (y, x))
        ]
        one, nan = np.array(1, data.dtype), np.array(np.nan, data.dtype)
        factor = g("Where", finite, one, nan)
    if "mask" in given:
        mask = data_of(node, 2 + given.index("mask")).gather(rows.place, axis=0)
        factor = mask if factor is None else factor * mask
    bins = (
        _bins(axis, shift, n, pooled, count) for n, (axis, shift) in enumerate(zip(axes, shifts))
    )
    number = count * [pooled[0] * pooled[1]]
    image = rows.image.unsqueeze(1).expand(count, pooled[0] * pooled[1]).reshape(number)
    dim = node.static_out_size(1)
    out = align_bins(data, image, list(bins), number, (1, 1), sampling_ratio, (1, 1), dim)
    return finish(node, rows, join_bins(out, count, pooled, dim) * factor)


def _bins(
    axis: SampleAxis, shift: Tensor | int, n: int, pooled: tuple[int, int], count: Tensor
) -> SampleAxis:
    """Each bin of an axis (0 for y, 1 for x) as a box of a single bin, (K * P * Q, 1) each."""
    start = axis.start.unsqueeze(2, 3)
    start = start if isinstance(shift, int) else saturate(start + shift)
    place = np.arange(pooled[n]).reshape((1, 1, -1, 1) if n == 0 else (1, 1, 1, -1))
    begin = start + product(place.astype(axis.bin.dtype), axis.bin.unsqueeze(2, 3))
    length = axis.bin.unsqueeze(2, 3).expand(count, 1, *pooled).reshape(-1, 1)
    begin = begin.expand(count, 1, *pooled).reshape(-1, 1)
    return SampleAxis(begin, length, length)
