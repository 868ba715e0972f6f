# SPDX-License-Identifier: Apache-2.0
"""MXNet's operators that change shapes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import END, Node, OnnxGraph, Tensor, concat, concat_sizes
from ..registry import rule, rules


@rule("Reshape")
def _reshape(g: OnnxGraph, node: Node) -> Tensor:
    data, codes = node.inputs[0], node.sizes("shape")
    if not codes:
        raise node.refusal("a shape that is not given has no translation")
    node.ignore("target_shape", "keep_highest")  # in old files; no effect if shape is given
    backwards = node.get("reverse", False)
    if backwards and -4 in codes:
        raise node.refusal(f"shape={codes} with reverse=True has no translation")

    def sizes(first: int, end: int) -> Tensor:
        """Sizes of axes, counted from the last if the shape is read backwards."""
        if backwards:
            first, end = node.rank - end, node.rank - first
        return data.shape(first, end)

    codes = codes[::-1] if backwards else codes
    parts: list[Any] = []
    axis, position = 0, 0
    while position < len(codes):
        code = codes[position]
        if code == 0:
            parts.append(sizes(axis, axis + 1))
        elif code == -2:
            if axis < node.rank:
                parts.append(sizes(axis, node.rank))
            axis = node.rank
        elif code == -3:
            parts.append(g("Mul", *(sizes(axis + n, axis + n + 1) for n in range(2))))
            axis += 1
        elif code == -4:
            first, second = codes[position + 1 : position + 3]
            size = sizes(axis, axis + 1)
            if first == -1:
                parts += [size / [second], second]
            elif second == -1:
                parts += [first, size / [first]]
            else:
                parts += [first, second]
            position += 2
        else:
            parts.append(code)
        axis += 1
        position += 1
    return data.reshape(*(parts[::-1] if backwards else parts))


@rule("Flatten")
def _flatten(g: OnnxGraph, node: Node) -> Tensor:
    return g("Flatten", node.inputs[0])


@rule("reshape_like")
def _reshape_like(g: OnnxGraph, node: Node) -> Tensor:
    data, like = node.inputs
    pieces = []
    for side, shape in (("lhs", node.shapes[0]), ("rhs", node.shapes[1])):
        begin, end, _ = slice(node.get(f"{side}_begin"), node.get(f"{side}_end")).indices(
            len(shape)
        )
        pieces.append((begin, end))
    (left, right), (begin, end) = pieces
    parts = [like.shape(begin, end)]
    if left > 0:
        parts.insert(0, data.shape(0, left))
    if right < node.rank:
        parts.append(data.shape(right, node.rank))
    return data.reshape_exactly(concat_sizes(*parts))


@rule("expand_dims")
def _expand_dims(g: OnnxGraph, node: Node) -> Tensor:
    return node.inputs[0].unsqueeze(node.axis(rank=node.rank + 1))


@rule("squeeze")
def _squeeze(g: OnnxGraph, node: Node) -> Tensor:
    axes = node.axes()
    if not axes:
        if None in node.static_shapes[0]:
            raise node.refusal("without axis, an axis whose size is dynamic has no translation")
        axes = [axis for axis, size in enumerate(node.shapes[0]) if size == 1]
    left = node.rank - len(axes)
    if left == 0:  # MXNet returns a vector of one element
        axes = axes[1:]
    return g("Squeeze", node.inputs[0], np.array(axes)) if axes else node.inputs[0]


@rule("transpose")
def _transpose(g: OnnxGraph, node: Node) -> Tensor:
    axes = node.axes("axes") or list(range(node.rank))[::-1]
    return node.inputs[0].transpose(*axes) if axes else node.inputs[0]


@rule("SwapAxis")
def _swap_axes(g: OnnxGraph, node: Node) -> Tensor:
    axes = list(range(node.rank))
    first, second = node.axis("dim1", 0), node.axis("dim2", 0)
    axes[first], axes[second] = second, first
    return node.inputs[0].transpose(*axes)


@rule("Concat")
def _concat(g: OnnxGraph, node: Node) -> Tensor:
    return concat(*node.inputs, axis=node.axis("dim", 1))


@rule("stack")
def _stack(g: OnnxGraph, node: Node) -> Tensor:
    axis = node.axis("axis", 0, rank=node.rank + 1)
    parts = [tensor.unsqueeze(axis) for tensor in node.inputs]
    return concat(*parts, axis=axis)


@rule("SliceChannel")
def _split(g: OnnxGraph, node: Node) -> Any:
    number, axis = node.get("num_outputs"), node.axis("axis", 1)
    squeeze = node.get("squeeze_axis", False)
    parts = [node.inputs[0]]
    if number > 1:
        # Without sizes, onnxruntime merges Splits with different numbers of outputs.
        size = node.static_shapes[0][axis]
        if size is None:
            part_size = node.inputs[0].size(axis) / [number]
            sizes: Any = part_size.expand(np.array([number]))
        else:
            sizes = np.full(number, size // number)
        parts = g("Split", node.inputs[0], sizes, axis=axis, outputs=number)
    return [part.squeeze(axis) if squeeze else part for part in parts]


@rule("slice_axis")
def _slice_axis(g: OnnxGraph, node: Node) -> Tensor:
    axis, begin, end = node.axis(), node.get("begin"), node.get("end")
    return node.inputs[0].columns(begin, END if end is None else end, axis)


@rule("slice")
def _slice(g: OnnxGraph, node: Node) -> Tensor:
    data = node.inputs[0]
    begins, ends, steps = (node.sizes(name) for name in ("begin", "end", "step"))
    if not begins:  # of a scalar
        return data
    steps = tuple(step or 1 for step in steps or (None,) * len(begins))
    needed = [0] * len(begins)  # sizes, so that `begin` is not before the first element
    limits: list[tuple[int, int]] = []
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps)):
        first, last = (END, -END) if step < 0 else (0, END)
        limits.append((first if begin is None else begin, last if end is None else end))
        if step < 0 and begin is not None and begin < 0:
            needed[axis] = -begin
    begin, end = (np.array(limit, np.int64) for limit in zip(*limits))
    if any(needed):
        # ONNX begins at the first element then, and MXNet takes none, as up to a later end.
        end = g("Where", data.shape(0, len(begins)) < needed, np.array(needed), end)
    return g("Slice", data, begin, end, np.arange(len(begins)), np.array(steps))


@rule("slice_like")
def _slice_like(g: OnnxGraph, node: Node) -> Tensor:
    data, like = node.inputs
    axes = np.array(node.axes("axes") or range(node.rank), np.int64)
    if not len(axes):  # of a scalar
        return data
    return g("Slice", data, axes * 0, like.shape().gather(axes), axes)


@rule("Crop")
def _crop(g: OnnxGraph, node: Node) -> Tensor:
    """Crop to the height and width of the second input, or of the attribute h_w."""
    data, *like = node.inputs
    size = like[0].shape(2, 4) if like else np.array(node.sizes("h_w"))
    node.ignore("h_w")
    begin: Any = np.array(node.sizes("offset", (0, 0)))
    if node.get("center_crop", False):
        begin = (data.shape(2, 4) - size) / [2]
    return g("Slice", data, begin, g("Add", begin, size), np.array([2, 3]))


@rules({"depth_to_space": "DepthToSpace", "space_to_depth": "SpaceToDepth"})
def _blocks(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    node.expect_floats()
    return g(variant, node.inputs[0], blocksize=node.get("block_size"))


@rule("Pad")
def _pad(g: OnnxGraph, node: Node) -> Tensor:
    node.expect("mode", "constant", "edge", "reflect")
    width = np.array(node.sizes("pad_width")).reshape(-1, 2)
    value = np.array(node.get("constant_value", 0.0), node.dtype)
    return g("Pad", node.inputs[0], width.T.ravel(), value, mode=node.get("mode"))


@rule("reverse")
def _reverse(g: OnnxGraph, node: Node) -> Tensor:
    axes = np.array(node.axes(), np.int64)
    ones = np.ones(len(axes), np.int64)
    return g("Slice", node.inputs[0], -ones, -ones * END, axes, -ones)


@rule("tile")
def _tile(g: OnnxGraph, node: Node) -> Tensor:
    reps = node.sizes("reps")
    data, rank = node.inputs[0], node.rank
    if len(reps) > rank:
        data = g("Unsqueeze", data, np.arange(len(reps) - rank))
    return g("Tile", data, np.array((1,) * (rank - len(reps)) + reps, np.int64))


def along(node: Node, default: int | None) -> tuple[Tensor, int, int]:
    """The data, the axis of the operation, and the rank; without an axis, the data is flattened."""
    if node.get("axis", default) is None:
        return node.inputs[0].reshape(-1), 0, 1
    return node.inputs[0], node.axis("axis", default), node.rank


@rule("repeat")
def _repeat(g: OnnxGraph, node: Node) -> Tensor:
    repeats = node.get("repeats")
    data, axis, rank = along(node, None)
    times = [1] * (rank + 1)
    times[axis + 1] = repeats
    tiled = g("Tile", data.unsqueeze(axis + 1), np.array(times, np.int64))
    size = data.size(axis) * [repeats]
    parts = [data.shape(0, axis)] * (axis > 0) + [size]
    parts += [data.shape(axis + 1, rank)] * (axis + 1 < rank)
    return tiled.reshape_exactly(concat_sizes(*parts))


@rule("broadcast_like")
def _broadcast_like(g: OnnxGraph, node: Node) -> Tensor:
    data, like = node.inputs
    lhs, rhs = node.axes("lhs_axes"), node.sizes("rhs_axes")
    if not lhs:
        return g("Expand", data, like.shape())
    parts: list[Any] = [data.size(axis) for axis in range(node.rank)]
    for left, right in zip(lhs, rhs):
        right %= len(node.shapes[1])
        parts[left] = like.size(right)
    return data.expand(*parts)


@rule("broadcast_axis")
def _broadcast_axis(g: OnnxGraph, node: Node) -> Tensor:
    shape = [1] * node.rank
    for axis, size in zip(node.axes(), node.sizes("size")):
        shape[axis] = size
    return g("Expand", node.inputs[0], np.array(shape, np.int64))


@rule("broadcast_to")
def _broadcast_to(g: OnnxGraph, node: Node) -> Tensor:
    shape = tuple(size or 1 for size in node.sizes("shape"))  # 0 keeps the size
    return g("Expand", node.inputs[0], np.array(shape, np.int64))
