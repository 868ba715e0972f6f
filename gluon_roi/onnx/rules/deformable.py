# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution: samples that offsets move, which an ordinary convolution reads."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node, Tensor, concat
from ..registry import rule
from ..roi.grid import grid_place, grid_sample


@rule("_gluon_roi_DeformableSampling")
def _deformable_sampling(g: Graph, node: Node) -> Tensor:
    """Samples as cells of a map, or as columns, one for each kernel cell of each channel.

    ::

        offset --------------> _places
                                  |
        data, parts apart --> GridSample --> * mask --> Reshape

    In float32, the type of the runtimes' GridSample.
    """
    node.accept("mask")  # the inputs tell
    node.expect_floats()
    data, offset, *masks = (tensor.cast(np.float32) for tensor in node.inputs)
    kernel = _pair(node, "kernel")
    parts = node.get("num_deformable_group", 1)  # channels that share offsets
    as_map = node.get("layout", "map") == "map"
    images, size = offset.size(0), offset.shape(2, 4)
    channels = node.shapes[0][1]

    # Cells of the kernel stand beside each other in a map, after each other in columns.
    outputs = size * (kernel if as_map else (kernel[0] * kernel[1], 1))
    moves = offset.reshape(images, parts, *kernel, 2, size).split(2, 4)
    yx = [_places(node, n, move, data.size(2 + n)) for n, move in enumerate(moves)]
    places = concat(*yx[::-1], axis=6)
    places = places.transpose(0, 1, 4, 2, 5, 3, 6) if as_map else places
    data = data.reshape(-1, channels // parts, data.shape(2, 4)) if parts > 1 else data
    samples = grid_sample(data, places.reshape(-1, outputs, 2))
    for mask in masks:
        mask = mask.reshape(images, parts, *kernel, size)
        mask = mask.transpose(0, 1, 4, 2, 5, 3) if as_map else mask
        samples = samples * mask.reshape(-1, 1, outputs)
    whole = (channels, outputs) if as_map else (channels * kernel[0] * kernel[1], size)
    return samples.reshape(images, *whole).cast(node.dtype)


def _places(node: Node, n: int, move: Tensor, side: Tensor) -> Tensor:
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
    numbers = move.size(5 + n).numbers().cast(np.float32)
    corners = numbers.reshape(-1, *[1] * (1 - n)) * stride
    cells = np.indices(kernel, np.float32)[n].reshape(*kernel, 1, 1) * dilate - pad
    position = move.squeeze(4) + (corners + cells)
    after = position > -1 if fades else position >= 0
    end = side.cast(np.float32)
    inside = after & (position < end)
    if not fades:
        position = position.min(end - 1)
    return grid_place(position, inside, side).unsqueeze(6)


def _pair(node: Node, name: str, default: int = 1) -> tuple[int, int]:
    sizes = node.sizes(name) or (default,)
    return (sizes * 2)[:2]
