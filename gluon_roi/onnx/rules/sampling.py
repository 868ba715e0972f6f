# SPDX-License-Identifier: Apache-2.0
"""MXNet's operators that resize maps, or sample them at given positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Node, OnnxGraph, Tensor, concat, concat_sizes
from ..registry import rule
from ..roi.grid import grid_sample


@rule("UpSampling")
def _upsampling(g: OnnxGraph, node: Node) -> Tensor:
    node.expect("sample_type", "nearest")
    node.ignore("num_filter", "multi_input_mode")
    if len(node.inputs) > 1:
        raise node.refusal("several inputs have no translation")
    scale = node.get("scale")
    return g(
        "Resize",
        node.inputs[0],
        None,
        np.array([1, 1, scale, scale], np.float32),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


@rule("_contrib_BilinearResize2D")
def _bilinear_resize(g: OnnxGraph, node: Node) -> Tensor:
    modes = ("size", "like", "odd_scale", *(f"to_{n}_{to}" for n in ("even", "odd") for to in _TO))
    node.expect("mode", *modes)
    mode = node.get("mode", "size")
    sides = [_resized_side(node, mode, axis) for axis in (2, 3)]
    return g(
        "Resize",
        node.inputs[0],
        None,
        None,
        concat_sizes(node.inputs[0].shape(0, 2), *sides),
        mode="linear",
        # For a side of 1 only pytorch_half_pixel reads the first cell, as MXNet does.
        coordinate_transformation_mode="align_corners"
        if node.get("align_corners", True)
        else "pytorch_half_pixel",
    )


_TO = ("down", "up")


def _resized_side(node: Node, mode: str, axis: int) -> Any:
    """The new size of an axis: a number, or a vector of one element."""
    name = {2: "height", 3: "width"}[axis]
    given, scale = node.get(name, 1), node.get(f"scale_{name}")
    if mode == "like":
        return node.inputs[1].size(axis)
    if node.static_shapes[0][axis] is not None:
        return node.static_out_size(axis)
    if mode == "size" and scale is None:
        return given
    size = node.inputs[0].size(axis)
    if mode == "size":
        return _scale_size(size, scale)
    even = size / [2] * [2]
    odd = size - even  # 0 or 1
    if mode == "odd_scale":
        return _scale_size(even, scale) + odd
    twice = odd * [2]
    return {
        "to_even_down": lambda: even,
        "to_even_up": lambda: even + twice,
        "to_odd_down": lambda: even + twice - [1],
        "to_odd_up": lambda: even + [1],
    }[mode]()


def _scale_size(size: Tensor, scale: float) -> Tensor:
    return (size.cast(np.float32) * scale).floor().cast(np.int64)


@rule("GridGenerator")
def _grid_generator(g: OnnxGraph, node: Node) -> Tensor:
    """Sampling positions x, y, (N, 2, H, W), from -1 at the first cell to 1 at the last."""
    node.expect("transform_type", "affine", "warp")
    node.expect_floats()
    node.ignore("target_shape")  # part of the output shape
    if node.get("transform_type") == "affine":
        height, width = node.static_out_size(2), node.static_out_size(3)
        dtype = node.dtype.type
        y, x = np.indices((height, width)).reshape(2, -1).astype(dtype)
        with np.errstate(divide="ignore", invalid="ignore"):  # MXNet gives NaN for a side of 1
            x, y = (
                dtype(-1) + position * dtype(np.float64(2) / (size - 1))
                for position, size in ((x, width), (y, height))
            )
        positions = node.inputs[0].reshape(-1, 2, 3) @ np.stack([x, y, np.ones_like(x)])
        return positions.reshape(-1, 2, height, width)
    axes = []
    for n, flow in enumerate(node.inputs[0].split(2, 1)):
        size = node.inputs[0].size(3 - n)
        position = size.numbers().cast(node.dtype).reshape(-1, *[1] * n)
        half = (size.cast(node.dtype) - 1) * 0.5
        axes.append((flow + position) / half - 1)
    return concat(*axes, axis=1)


@rule("BilinearSampler")
def _bilinear_sampler(g: OnnxGraph, node: Node) -> Tensor:
    data, grid = node.inputs
    return grid_sample(data, grid.transpose(0, 2, 3, 1), align_corners=1)
