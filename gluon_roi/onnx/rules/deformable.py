# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution: samples at offset positions, which an ordinary convolution reads."""

from __future__ import annotations

import numpy as np

from ..graph import Node, OnnxGraph, Tensor, concat
from ..registry import rule
from ..roi.grid import grid_place, grid_sample


@rule("_gluon_roi_DeformableSampling")
def _deformable_sampling(g: OnnxGraph, node: Node) -> Tensor:
    """Samples as a map, or as columns: a channel for each channel and kernel cell.

    ::

        offset --------------> _places
                                  |
        data, parts apart --> GridSample --> * mask --> Reshape

    In float32, the type of the runtimes' GridSample.
    """
    node.ignore("mask")  # the number of inputs shows it
    node.expect_floats()
    data, offset, *masks = (tensor.cast(np.float32) for tensor in node.inputs)
    kernel = _pair(node, "kernel")
    parts = node.get("num_deformable_group", 1)  # channels that share offsets
    as_map = node.get("layout", "map") == "map"
    images, size = offset.size(0), offset.shape(2, 4)
    channels = node.static_size(1)

    # In a map the kernel's cells are neighbours, in columns they are channels.
    outputs = size * (kernel if as_map else (kernel[0] * kernel[1], 1))
    offsets = offset.reshape(images, parts, *kernel, 2, size).split(2, 4)
    yx = [
        _places(node, n, offset_of_axis, data.size(2 + n))
        for n, offset_of_axis in enumerate(offsets)
    ]
    places = concat(*yx[::-1], axis=6)
    places = places.transpose(0, 1, 4, 2, 5, 3, 6) if as_map else places
    data = data.reshape(-1, channels // parts, data.shape(2, 4)) if parts > 1 else data
    samples = grid_sample(data, places.reshape(-1, outputs, 2))
    for mask in masks:
        mask = mask.reshape(images, parts, *kernel, size)
        mask = mask.transpose(0, 1, 4, 2, 5, 3) if as_map else mask
        samples = samples * mask.reshape(-1, 1, outputs)
    channels_and_size = (channels, outputs) if as_map else (channels * kernel[0] * kernel[1], size)
    return samples.reshape(images, *channels_and_size).cast(node.dtype)


def _places(node: Node, n: int, offset_of_axis: Tensor, side: Tensor) -> Tensor:
    """The sampling positions along y (n = 0) or x (n = 1): (N, parts, kh, kw, Ho, Wo, 1).

    Parameters
    ----------
    offset_of_axis : (N, parts, kh, kw, 1, Ho, Wo), in map cells
    side : (1,), cells of the map along the axis
    """
    kernel = _pair(node, "kernel")
    stride, dilate = _pair(node, "stride")[n], _pair(node, "dilate")[n]
    pad = _pair(node, "pad", 0)[n]
    zero_border = node.get("convention", "mxnet") == "torchvision"  # the map is padded with zeros
    numbers = offset_of_axis.size(5 + n).numbers().cast(np.float32)
    corners = numbers.reshape(-1, *[1] * (1 - n)) * stride
    cells = np.indices(kernel, np.float32)[n].reshape(*kernel, 1, 1) * dilate - pad
    position = offset_of_axis.squeeze(4) + (corners + cells)
    after = position > -1 if zero_border else position >= 0
    end = side.cast(np.float32)
    inside = after & (position < end)
    if not zero_border:
        position = position.min(end - 1)
    return grid_place(position, inside, side).unsqueeze(6)


def _pair(node: Node, name: str, default: int = 1) -> tuple[int, int]:
    sizes = node.sizes(name) or (default,)
    return (sizes * 2)[:2]
