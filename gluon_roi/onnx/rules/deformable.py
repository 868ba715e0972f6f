# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution: samples that offsets move, which an ordinary convolution reads."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node
from ..registry import rule
from ..roi.boxes import count_to
from ..roi.grid import grid_place, grid_sample


@rule("_gluon_roi_DeformableSampling")
def _deformable_sampling(g: Graph, node: Node) -> str:
    """Samples as cells of a map, or as columns, one for each kernel cell of each channel.

    ::

        offset --------------> _places
                                  |
        data, parts apart --> GridSample --> * mask --> Reshape

    In float32, the type of the runtimes' GridSample.
    """
    node.accept("mask")  # the inputs tell
    node.expect_floats()
    data, offset, *masks = (g.cast(tensor, np.float32) for tensor in node.inputs)
    kernel = _pair(node, "kernel")
    parts = node.get("num_deformable_group", 1)  # channels that share offsets
    as_map = node.get("layout", "map") == "map"
    images, size = g.size(offset, 0), g.shape(offset, 2, 4)
    channels = node.shapes[0][1]

    # Cells of the kernel stand beside each other in a map, after each other in columns.
    spread = np.array(kernel if as_map else (kernel[0] * kernel[1], 1))
    outputs = g("Mul", size, spread)
    moves = g.reshape(offset, images, parts, *kernel, 2, size)
    moves = g("Split", moves, np.array([1, 1]), axis=4, outputs=2)
    yx = [_places(g, node, n, move, g.size(data, 2 + n)) for n, move in enumerate(moves)]
    places = g("Concat", *yx[::-1], axis=6)
    places = g("Transpose", places, perm=[0, 1, 4, 2, 5, 3, 6]) if as_map else places
    data = g.reshape(data, -1, channels // parts, g.shape(data, 2, 4)) if parts > 1 else data
    samples = grid_sample(g, data, g.reshape(places, -1, outputs, 2))
    for mask in masks:
        mask = g.reshape(mask, images, parts, *kernel, size)
        mask = g("Transpose", mask, perm=[0, 1, 4, 2, 5, 3]) if as_map else mask
        samples = g("Mul", samples, g.reshape(mask, -1, 1, outputs))
    if as_map:
        samples = g.reshape(samples, images, channels, outputs)
    else:
        samples = g.reshape(samples, images, channels * kernel[0] * kernel[1], size)
    return g.cast(samples, node.dtype)


def _places(g: Graph, node: Node, n: int, move: str, side: str) -> str:
    """Where to sample along y (0) or x (1): (N, parts, kh, kw, Ho, Wo, 1).

    Parameters
    ----------
    move : (N, parts, kh, kw, 1, Ho, Wo), in map cells
    side : (1,), cells of the map along the axis
    """
    kernel = _pair(node, "kernel")
    stride, dilate = _pair(node, "stride")[n], _pair(node, "dilate")[n]
    pad = _pair(node, "pad", 0)[n]
    fades = node.get("convention", "mxnet") == "torchvision"  # to 0 within one cell off the map
    numbers = g.cast(count_to(g, g.size(move, 5 + n)), np.float32)
    corners = g("Mul", g.reshape(numbers, -1, *[1] * (1 - n)), np.float32(stride))
    cells = np.indices(kernel, np.float32)[n].reshape(*kernel, 1, 1) * dilate - pad
    position = g("Add", g.squeeze(move, 4), g("Add", corners, cells))
    if fades:
        after = g("Greater", position, np.float32(-1))
    else:
        after = g("GreaterOrEqual", position, np.float32(0))
    end = g.cast(side, np.float32)
    inside = g("And", after, g("Less", position, end))
    if not fades:
        position = g("Min", position, g("Sub", end, np.float32(1)))
    return g.unsqueeze(grid_place(g, position, inside, side), 6)


def _pair(node: Node, name: str, default: int = 1) -> tuple[int, int]:
    sizes = node.sizes(name) or (default,)
    return (sizes * 2)[:2]
