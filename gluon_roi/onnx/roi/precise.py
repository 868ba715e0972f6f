# SPDX-License-Identifier: Apache-2.0
"""PrROIPool: integrals of the bilinear surface, as products of matrices."""

from __future__ import annotations

import numpy as np

from ..graph import END, Node, OnnxGraph, Tensor
from ..registry import rule
from .arithmetic import saturate
from .boxes import axes_of, data_of, decode, finish, pooled_size


@rule("_gluon_roi_PrROIPool")
def pr_roi_pool(g: OnnxGraph, node: Node) -> Tensor:
    """Ay . X . Ax^T: one product of Ay with all maps, in which other images have the weight 0.

    ::

        rois -> decode -> box ----> hat means along y -> Ay (K * P, N * H), 0 for other images
                  |         +-----> hat means along x -> Ax (K, Q, W)            |
        data -> Transpose -> (N * H, C * W) -----------------------------> MatMul: (K * P, C * W)
                  |                                          Ax ---------> MatMul: (K, P * C, Q)
                  +-- place, fill ---------------------------------> Transpose, finish
    """
    (height, width), scale = pooled_size(node), float(node.get("spatial_scale"))
    data = data_of(node)
    rows = decode(node, data.dtype)
    images, channels = data.size(0), node.static_size(1)
    wy, wx = (
        _hat_means(low, high, scale, bins, data.size(2 + n)).cast(data.dtype)
        for n, ((low, high), bins) in enumerate(zip(axes_of(rows.box), (height, width)))
    )
    on_image = rows.image.reshape(-1, 1).equal(images.numbers().reshape(1, -1))
    on_image = on_image.cast(data.dtype).unsqueeze(1, 3)
    wy = wy.unsqueeze(2) * on_image
    lines = images * data.size(2)
    wy = wy.reshape(rows.number * [height], lines)
    across = data.size(3) * [channels]
    maps = data.transpose(0, 2, 1, 3).reshape(lines, across)
    part = (wy @ maps).reshape(rows.number, height * channels, data.size(3))
    out = part @ wx.transpose(0, 2, 1)
    out = out.reshape(rows.number, height, channels, width).transpose(0, 2, 1, 3)
    return finish(node, rows, out)


def _hat_means(low: Tensor, high: Tensor, scale: float, bins: int, size: Tensor) -> Tensor:
    """The weight of each cell in each bin along an axis, (K, bins, cells): core/geometry/precise.h.

    Between neighbouring cells the hat function is linear, so the weight is the share of the bin in
    that interval times the height in the middle of the share. Weights are float64, as in the
    kernels. Shares are computed along the bin, so that they add up to 1 even if a runtime rounds to
    float32.
    """
    real = np.float64
    start, end = (saturate(edge.cast(real) * scale) for edge in (low, high))
    length = (end - start) / bins
    numbers = np.arange(bins)[None]
    edges = [(start + number * length).unsqueeze(2) for number in (numbers, numbers + 1)]
    filled = edges[1] > edges[0]
    length = length.unsqueeze(2)
    # The intervals from each cell to the next, including the cell before the map.
    cell = size.graph("Range", np.array(-1), size.scalar(), np.array(1)).cast(real)
    begin, stop = ((edge - cell).clip(0, 1) for edge in edges)
    middle = (begin + stop) * 0.5
    divisor = filled.where(length, 1)
    first, last = (((limit - edges[0]) / divisor).clip(0, 1) for limit in (cell, cell + 1))
    share = filled.where(last - first, 0)
    rising = share * middle
    falling = share - rising
    return rising.columns(0, -1) + falling.columns(1, END)
