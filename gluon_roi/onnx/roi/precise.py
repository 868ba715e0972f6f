# SPDX-License-Identifier: Apache-2.0
"""PrROIPool: integrals of the bilinear surface, as products of matrices."""

from __future__ import annotations

import numpy as np

from ..graph import END, Graph, Node
from ..registry import rule
from .arithmetic import saturate
from .boxes import axes_of, count_to, data_of, decode, finish, pooled_size


@rule("_gluon_roi_PrROIPool")
def pr_roi_pool(g: Graph, node: Node) -> str:
    """Ay . X . Ax^T: one product of Ay with all maps, where maps of other images weigh 0.

    ::

        rois -> decode -> box ----> hat means along y -> Ay (K * P, N * H), 0 for other images
                  |         +-----> hat means along x -> Ax (K, Q, W)            |
        data -> Transpose -> (N * H, C * W) -----------------------------> MatMul: (K * P, C * W)
                  |                                          Ax ---------> MatMul: (K, P * C, Q)
                  +-- valid, fill ---------------------------------> Transpose, finish
    """
    (height, width), scale = pooled_size(node), float(node.get("spatial_scale"))
    data, dtype = data_of(g, node)
    rows = decode(g, node, dtype)
    images, channels = g.size(data, 0), node.shapes[0][1]
    wy, wx = (
        g.cast(_hat_means(g, low, high, scale, bins, g.size(data, 2 + n)), dtype)
        for n, ((low, high), bins) in enumerate(zip(axes_of(g, rows.box), (height, width)))
    )
    own = g("Equal", g.reshape(rows.image, -1, 1), g.reshape(count_to(g, images), 1, -1))
    own = g.unsqueeze(g.cast(own, dtype), 1, 3)
    wy = g("Mul", g.unsqueeze(wy, 2), own)
    lines = g("Mul", images, g.size(data, 2))
    wy = g.reshape(wy, g("Mul", rows.rows, np.array([height])), lines)
    across = g("Mul", g.size(data, 3), np.array([channels]))
    maps = g.reshape(g("Transpose", data, perm=[0, 2, 1, 3]), lines, across)
    part = g.reshape(g("MatMul", wy, maps), rows.rows, height * channels, g.size(data, 3))
    out = g("MatMul", part, g("Transpose", wx, perm=[0, 2, 1]))
    out = g("Transpose", g.reshape(out, rows.rows, height, channels, width), perm=[0, 2, 1, 3])
    return finish(g, node, rows, out, dtype)


def _hat_means(g: Graph, low: str, high: str, scale: float, bins: int, size: str) -> str:
    """The weight of each cell in each bin along an axis, (K, bins, cells): core/geometry/precise.h.

    Between neighbouring cells a hat is linear, so the weight is the share of the bin in that
    interval times the height in the middle of this share. Weights are float64, as in the kernels.
    Shares are measured along the bin, where they add up to 1 even if a runtime rounds to float32.
    """
    one, real = np.float64(1), np.float64
    start, end = (
        saturate(g, g("Mul", g.cast(edge, real), real(scale)), real) for edge in (low, high)
    )
    length = g("Div", g("Sub", end, start), real(bins))
    numbers = np.arange(bins, dtype=real)[None]
    edges = [
        g.unsqueeze(g("Add", start, g("Mul", number, length)), 2)
        for number in (numbers, numbers + 1)
    ]
    filled = g("Greater", edges[1], edges[0])
    length = g.unsqueeze(length, 2)
    # The intervals from each cell to the next, including the cell before the map.
    cell = g.cast(g("Range", np.array(-1), g.scalar(size), np.array(1)), real)
    begin, stop = (g("Clip", g("Sub", edge, cell), real(0), one) for edge in edges)
    middle = g("Mul", g("Add", begin, stop), real(0.5))
    divisor = g("Where", filled, length, one)
    first, last = (
        g("Clip", g("Div", g("Sub", limit, edges[0]), divisor), real(0), one)
        for limit in (cell, g("Add", cell, one))
    )
    share = g("Where", filled, g("Sub", last, first), real(0))
    rising = g("Mul", share, middle)
    falling = g("Sub", share, rising)
    return g("Add", g.columns(rising, 0, -1), g.columns(falling, 1, END))
