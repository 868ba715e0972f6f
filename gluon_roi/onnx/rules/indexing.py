# SPDX-License-Identifier: Apache-2.0
"""MXNet's operators that select, sort and reduce."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Node, OnnxGraph, Tensor, concat_sizes
from ..registry import rule, rules
from .shapes import along


@rule("take")
def _take(g: OnnxGraph, node: Node) -> Tensor:
    node.expect("mode", "clip", "wrap")
    axis, mode = node.axis("axis", 0), node.get("mode", "clip")
    data, index = node.inputs
    size = data.size(axis)
    index = index.cast(np.int64)
    if mode == "clip":
        index = _clamp_index(index, size)
    else:
        # Reduced first, because OpenVINO computes Mod in float32, which is exact up to 2**24.
        index = (index - index / size * size) % size
    if len(node.shapes[1]) == 0:
        index = index.squeeze(0)
    return data.gather(index, axis=axis)


def _clamp_index(index: Tensor, size: Tensor) -> Tensor:
    """The nearest valid index of an axis of this size."""
    return index.min(size - [1]).max([0])


@rule("pick")
def _pick(g: OnnxGraph, node: Node) -> Tensor:
    node.expect("mode", "clip", "wrap")
    axis = node.axis("axis", -1)
    data, index = node.inputs
    index = index.cast(np.int64)
    if len(node.shapes[1]) < node.rank:
        index = index.unsqueeze(axis)
    size = data.size(axis)
    if node.get("mode", "clip") == "clip":
        index = _clamp_index(index, size)
    else:
        index = index % size
    out = g("GatherElements", data, index, axis=axis)
    if node.get("keepdims", False):
        return out
    return out.squeeze(axis) if node.rank > 1 else out


@rule("Embedding")
def _embedding(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("input_dim", "output_dim", "dtype", "sparse_grad")
    index, data = node.inputs
    index = _clamp_index(index.cast(np.int64), data.size(0))
    return data.gather(index.squeeze(0) if len(node.shapes[0]) == 0 else index)


@rule("one_hot")
def _one_hot(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("dtype")
    index = node.inputs[0].cast(np.int64).unsqueeze(-1)
    on, off = (node.get(f"{name}_value", value) for name, value in (("on", 1.0), ("off", 0.0)))
    dtype = node.out_dtypes[0]
    is_on = index.equal(np.arange(node.get("depth")))
    return g("Where", is_on, np.array(on).astype(dtype), np.array(off).astype(dtype))


@rule("gather_nd")
def _gather_nd(g: OnnxGraph, node: Node) -> Tensor:
    data, index = node.inputs
    rank = len(node.shapes[1])
    last = index.cast(np.int64).transpose(*range(1, rank), 0)
    return g("GatherND", data, last)


@rule("topk")
def _topk(g: OnnxGraph, node: Node) -> Any:
    returned = node.get("ret_typ", "indices")
    node.expect("ret_typ", "indices", "value", "both")
    node.ignore("dtype")
    data, axis, _ = along(node, -1)
    size = data.size(axis)
    k = node.get("k", 1)
    k = size if k < 1 else np.array([k])
    largest = 0 if node.get("is_ascend", False) else 1
    value, index = g("TopK", data, k, axis=axis, largest=largest, sorted=1, outputs=2)
    if returned == "value":
        return value
    index = index.cast(node.out_dtypes[-1])
    return [value, index] if returned == "both" else index


@rule("argsort", "sort")
def _argsort(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("dtype")
    data, axis, _ = along(node, -1)
    size = data.size(axis)
    largest = 0 if node.get("is_ascend", True) else 1
    value, index = g("TopK", data, size, axis=axis, largest=largest, sorted=1, outputs=2)
    return value if node.op == "sort" else index.cast(node.out_dtypes[0])


@rules({"argmax": "ArgMax", "argmin": "ArgMin"})
def _arg(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    keep = bool(node.get("keepdims", False))
    data, axis, rank = along(node, None)
    found = g(variant, data, axis=axis, keepdims=int(keep or rank == 1))
    if rank == 1 != len(node.out_shapes[0]):
        found = found.reshape(*node.out_shapes[0])  # of ones, or a scalar
    return found.cast(node.out_dtypes[0])


@rule("SequenceMask")
def _sequence_mask(g: OnnxGraph, node: Node) -> Tensor:
    """Elements from the length of each sequence on, along axis 0 or 1, are replaced."""
    node.ignore("use_sequence_length")  # the number of inputs shows it
    axis, value = node.axis("axis", 0), float(node.get("value", 0.0))
    data, *lengths = node.inputs
    if not lengths:
        return data
    place = data.size(axis).numbers().unsqueeze(1 - axis)
    inside = place < lengths[0].cast(np.int64).unsqueeze(axis)
    inside = inside.unsqueeze(*range(2, node.rank)) if node.rank > 2 else inside
    return inside.where(data, np.array(value).astype(node.dtype))


# ---- Sums and products ---------------------------------------------------------------------------


@rules({
    "sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin",
    "prod": "ReduceProd",
})  # fmt: skip
def _reduction(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    given = node.axes() or list(range(node.rank))
    if node.get("exclude", False) and node.axes():
        given = [axis for axis in range(node.rank) if axis not in given]
        if not given:
            node.ignore("keepdims")
            return node.inputs[0]
    return _reduce(g, node, variant, node.inputs[0], given)


def _reduce(g: OnnxGraph, node: Node, variant: str, data: Tensor, axes: list[int]) -> Tensor:
    keep = int(node.get("keepdims", False))
    if variant == "ReduceSum":
        out = g(variant, data, np.array(axes, np.int64), keepdims=keep)
    elif axes:
        out = g(variant, data, axes=axes, keepdims=keep)
    else:
        out = g(variant, data, keepdims=keep)  # of a scalar
    # If no axis is left, MXNet returns a vector of one element, or a scalar with np_shape.
    return out if keep or len(axes) < node.rank or not node.out_shapes[0] else out.unsqueeze(0)


@rule("norm")
def _norm(g: OnnxGraph, node: Node) -> Tensor:
    node.expect("out_dtype", None, node.dtype.name)
    node.expect("ord", 2, 1)
    node.expect_floats()
    axes = node.axes() or list(range(node.rank))
    if node.get("ord", 2) == 2:
        return _reduce(g, node, "ReduceL2", node.inputs[0], axes)
    # OpenVINO's ReduceL1 always reduces all axes
    return _reduce(g, node, "ReduceSum", node.inputs[0].abs(), axes)


@rules({"softmax": "Softmax", "log_softmax": "LogSoftmax"})
def _softmax(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    """The first numbers along the axis are normalised, and the others 0, if there is a length."""
    node.expect("dtype", None, node.dtype.name)
    node.ignore("use_length")  # the number of inputs shows it
    (data, *lengths), temperature = node.inputs, node.get("temperature")
    axis = node.axis("axis", -1)
    if temperature not in (None, 1):
        data = data / temperature
    if not lengths:
        return g(variant, data, axis=axis)
    place = data.size(axis).numbers().reshape(-1, *[1] * (node.rank - 1 - axis))
    inside = place < lengths[0].cast(np.int64).unsqueeze(axis)
    return inside.where(g(variant, inside.where(data, -np.inf), axis=axis), 0)


@rule("SoftmaxActivation")
def _softmax_activation(g: OnnxGraph, node: Node) -> Tensor:
    axis = 1 if node.get("mode", "instance") == "channel" else -1
    return g("Softmax", node.inputs[0], axis=axis)


@rule("batch_dot", "_linalg_gemm2")
def _batch_dot(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("forward_stype")
    node.expect("axis", -2)  # of gemm2: the rows of matrices
    node.expect_floats()
    *batch, rows, columns = range(node.rank)
    sides = [
        tensor.transpose(*batch, columns, rows) if node.get(flag, False) else tensor
        for tensor, flag in zip(node.inputs, ("transpose_a", "transpose_b"))
    ]
    alpha = float(node.get("alpha", 1.0))
    out = g("MatMul", *sides)
    return out if alpha == 1 else out * alpha


@rule("dot")
def _dot(g: OnnxGraph, node: Node) -> Tensor:
    """A matrix product; all axes of an input that are not summed over are flattened."""
    node.ignore("forward_stype")
    sizes, sides = [], []
    for place, (tensor, flag) in enumerate(zip(node.inputs, ("transpose_a", "transpose_b"))):
        rank = len(node.shapes[place])
        first = bool(node.get(flag, False)) != bool(place)  # whether the first axis is summed over
        if rank != 2:
            tensor = g("Flatten", tensor, axis=1 if first else rank - 1)
        if rank > 1:
            sizes.append(node.inputs[place].shape(*((1, rank) if first else (0, rank - 1))))
        sides.append(tensor.transpose(1, 0) if first != bool(place) else tensor)
    out = g("MatMul", *sides)
    if all(len(shape) == 2 for shape in node.shapes):
        return out
    return out.reshape_exactly(concat_sizes(*sizes) if sizes else np.array([1]))
