# SPDX-License-Identifier: Apache-2.0
"""MXNet's operators that resize maps, or sample them at given places."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Graph, Node
from ..registry import rule
from ..roi.boxes import count_to
from ..roi.grid import grid_sample


@rule("UpSampling")
def _upsampling(g: Graph, node: Node) -> str:
    node.expect("sample_type", "nearest")
    node.accept("num_filter", "multi_input_mode")
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
def _bilinear_resize(g: Graph, node: Node) -> str:
    modes = ("size", "like", "odd_scale", *(f"to_{n}_{to}" for n in ("even", "odd") for to in _TO))
    node.expect("mode", *modes)
    mode = node.get("mode", "size")
    sides = [_resized(g, node, mode, axis) for axis in (2, 3)]
    return g(
        "Resize",
        node.inputs[0],
        None,
        None,
        g.joined(g.shape(node.inputs[0], 0, 2), *sides),
        mode="linear",
        # Of these two, only the second takes the first cell for a side of 1, as MXNet does.
        coordinate_transformation_mode="align_corners"
        if node.get("align_corners", True)
        else "pytorch_half_pixel",
    )


_TO = ("down", "up")


def _resized(g: Graph, node: Node, mode: str, axis: int) -> Any:
    """The new size of an axis: a number, or a vector of one element."""
    name = {2: "height", 3: "width"}[axis]
    given, scale = node.get(name, 1), node.get(f"scale_{name}")
    if mode == "like":
        return g.size(node.inputs[1], axis)
    if node.known[0][axis] is not None:
        return int(node.out_shapes[0][axis])
    if mode == "size" and scale is None:
        return given
    size = g.size(node.inputs[0], axis)
    if mode == "size":
        return _scaled(g, size, scale)
    even = g("Mul", g("Div", size, np.array([2])), np.array([2]))
    odd = g("Sub", size, even)  # 0 or 1
    if mode == "odd_scale":
        return g("Add", _scaled(g, even, scale), odd)
    twice = g("Mul", odd, np.array([2]))
    return {
        "to_even_down": lambda: even,
        "to_even_up": lambda: g("Add", even, twice),
        "to_odd_down": lambda: g("Sub", g("Add", even, twice), np.array([1])),
        "to_odd_up": lambda: g("Add", even, np.array([1])),
    }[mode]()


def _scaled(g: Graph, size: str, scale: float) -> str:
    return g.cast(g("Floor", g("Mul", g.cast(size, np.float32), np.float32(scale))), np.int64)


@rule("GridGenerator")
def _grid_generator(g: Graph, node: Node) -> str:
    """Places x, y to sample at, (N, 2, H, W), from -1 at the first cell to 1 at the last."""
    node.expect("transform_type", "affine", "warp")
    height, width = node.out_shapes[0][2:]
    if node.get("transform_type") == "affine":
        node.accept("target_shape")  # the shape has it
        dtype = node.dtype.type
        y, x = np.indices((height, width)).reshape(2, -1).astype(dtype)
        with np.errstate(divide="ignore", invalid="ignore"):  # MXNet gives NaN for a side of 1
            x, y = (
                dtype(-1) + place * dtype(np.float64(2) / (size - 1))
                for place, size in ((x, width), (y, height))
            )
        places = g("MatMul", g.reshape(node.inputs[0], -1, 2, 3), np.stack([x, y, np.ones_like(x)]))
        return g.reshape(places, -1, 2, int(height), int(width))
    node.accept("target_shape")
    axes = []
    for n, flow in enumerate(g("Split", node.inputs[0], np.array([1, 1]), axis=1, outputs=2)):
        size = g.size(node.inputs[0], 3 - n)
        place = g.reshape(g.cast(count_to(g, size), node.dtype), *((-1,) if n == 0 else (-1, 1)))
        half = g("Sub", g.cast(size, node.dtype), np.array(1, node.dtype))
        half = g("Mul", half, np.array(0.5, node.dtype))
        moved = g("Div", g("Add", flow, place), half)
        axes.append(g("Sub", moved, np.array(1, node.dtype)))
    return g("Concat", *axes, axis=1)


@rule("BilinearSampler")
def _bilinear_sampler(g: Graph, node: Node) -> str:
    data, grid = node.inputs
    return grid_sample(g, data, g("Transpose", grid, perm=[0, 2, 3, 1]), align_corners=1)
