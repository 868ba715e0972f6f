# SPDX-License-Identifier: Apache-2.0
"""MXNet's operators that select, sort and reduce."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Graph, Node
from ..registry import Rule, rule
from .shapes import along


@rule("take")
def _take(g: Graph, node: Node) -> str:
    node.expect("mode", "clip", "wrap")
    axis, mode = node.axis("axis", 0), node.get("mode", "clip")
    data, index = node.inputs
    size = g.size(data, axis)
    index = g.cast(index, np.int64)
    if mode == "clip":
        index = g("Max", g("Min", index, g("Sub", size, np.array([1]))), np.array([0]))
    else:
        # The first step is for OpenVINO, which computes Mod in float32, exact up to 2**24.
        index = g("Sub", index, g("Mul", g("Div", index, size), size))
        index = g("Mod", index, size)
    if len(node.shapes[1]) == 0:
        index = g.squeeze(index, 0)
    return g("Gather", data, index, axis=axis)


@rule("pick")
def _pick(g: Graph, node: Node) -> str:
    node.expect("mode", "clip", "wrap")
    axis = node.axis("axis", -1)
    data, index = node.inputs
    index = g.cast(index, np.int64)
    if len(node.shapes[1]) < node.rank:
        index = g.unsqueeze(index, axis)
    size = g.size(data, axis)
    if node.get("mode", "clip") == "clip":
        index = g("Max", g("Min", index, g("Sub", size, np.array([1]))), np.array([0]))
    else:
        index = g("Mod", index, size)
    out = g("GatherElements", data, index, axis=axis)
    if node.get("keepdims", False):
        return out
    return g.squeeze(out, axis) if node.rank > 1 else out


@rule("Embedding")
def _embedding(g: Graph, node: Node) -> str:
    node.accept("input_dim", "output_dim", "dtype", "sparse_grad")
    index, data = node.inputs
    size = g.size(data, 0)
    index = g("Min", g.cast(index, np.int64), g("Sub", size, np.array([1])))
    return g("Gather", data, g("Max", index, np.array([0])))


@rule("one_hot")
def _one_hot(g: Graph, node: Node) -> str:
    node.accept("dtype")
    index = g.unsqueeze(g.cast(node.inputs[0], np.int64), -1)
    on, off = (node.get(f"{name}_value", value) for name, value in (("on", 1.0), ("off", 0.0)))
    dtype = node.out_dtypes[0]
    is_on = g("Equal", index, np.arange(node.get("depth")))
    return g("Where", is_on, np.array(on).astype(dtype), np.array(off).astype(dtype))


@rule("gather_nd")
def _gather_nd(g: Graph, node: Node) -> str:
    data, index = node.inputs
    rank = len(node.shapes[1])
    last = g("Transpose", g.cast(index, np.int64), perm=[*range(1, rank), 0])
    return g("GatherND", data, last)


@rule("topk")
def _topk(g: Graph, node: Node) -> Any:
    kind = node.get("ret_typ", "indices")
    node.expect("ret_typ", "indices", "value", "both")
    node.accept("dtype")
    data, axis, _ = along(g, node, -1)
    size = g.size(data, axis)
    k = node.get("k", 1)
    k = size if k < 1 else np.array([k])
    largest = 0 if node.get("is_ascend", False) else 1
    value, index = g("TopK", data, k, axis=axis, largest=largest, sorted=1, outputs=2)
    if kind == "value":
        return value
    index = g.cast(index, node.out_dtypes[-1])
    return [value, index] if kind == "both" else index


@rule("argsort", "sort")
def _argsort(g: Graph, node: Node) -> str:
    node.accept("dtype")
    data, axis, _ = along(g, node, -1)
    size = g.size(data, axis)
    largest = 0 if node.get("is_ascend", True) else 1
    value, index = g("TopK", data, size, axis=axis, largest=largest, sorted=1, outputs=2)
    return value if node.op == "sort" else g.cast(index, node.out_dtypes[0])


def _arg(op: str) -> Rule:
    def translate(g: Graph, node: Node) -> str:
        keep = bool(node.get("keepdims", False))
        data, axis, rank = along(g, node, None)
        found = g(op, data, axis=axis, keepdims=int(keep or rank == 1))
        if rank == 1 < len(node.out_shapes[0]):
            found = g.reshape(found, *node.out_shapes[0])  # of ones
        return g.cast(found, node.out_dtypes[0])

    return translate


rule("argmax")(_arg("ArgMax"))
rule("argmin")(_arg("ArgMin"))


# ---- Sums and products ---------------------------------------------------------------------------


def _reduction(op: str) -> Rule:
    def translate(g: Graph, node: Node) -> str:
        given = node.axes() or list(range(node.rank))
        keep = int(node.get("keepdims", False))
        if node.get("exclude", False) and node.axes():
            given = [axis for axis in range(node.rank) if axis not in given]
            if not given:
                return node.inputs[0]
        if op == "ReduceSum":
            out = g(op, node.inputs[0], np.array(given), keepdims=keep)
        else:
            out = g(op, node.inputs[0], axes=given, keepdims=keep)
        # If no axis is left, MXNet returns a vector of one element.
        return out if keep or len(given) < node.rank else g.unsqueeze(out, 0)

    return translate


for _name, _op in {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
}.items():
    rule(_name)(_reduction(_op))


@rule("norm")
def _norm(g: Graph, node: Node) -> str:
    node.expect("out_dtype", None, node.dtype.name)
    node.expect("ord", 2, 1)
    node.expect_floats()
    axes = node.axes() or list(range(node.rank))
    keep = int(node.get("keepdims", False))
    if node.get("ord", 2) == 2:
        out = g("ReduceL2", node.inputs[0], axes=axes, keepdims=keep)
    else:  # OpenVINO reduces all axes in ReduceL1
        out = g("ReduceSum", g("Abs", node.inputs[0]), np.array(axes), keepdims=keep)
    return out if keep or len(axes) < node.rank else g.unsqueeze(out, 0)


def _softmax_like(op: str) -> Rule:
    def translate(g: Graph, node: Node) -> str:
        node.expect("use_length", False)
        node.expect("dtype", None, node.dtype.name)
        temperature = node.get("temperature")
        data = node.inputs[0]
        if temperature not in (None, 1):
            data = g("Div", data, np.array(temperature, node.dtype))
        return g(op, data, axis=node.axis("axis", -1))

    return translate


rule("softmax")(_softmax_like("Softmax"))
rule("log_softmax")(_softmax_like("LogSoftmax"))


@rule("SoftmaxActivation")
def _softmax_activation(g: Graph, node: Node) -> str:
    if node.get("mode", "instance") == "channel":
        return g("Softmax", node.inputs[0], axis=1)
    return g("Softmax", node.inputs[0], axis=-1)


@rule("batch_dot")
def _batch_dot(g: Graph, node: Node) -> str:
    node.accept("forward_stype")
    sides = [
        g("Transpose", tensor, perm=[0, 2, 1]) if node.get(flag, False) else tensor
        for tensor, flag in zip(node.inputs, ("transpose_a", "transpose_b"))
    ]
    return g("MatMul", *sides)


@rule("dot")
def _dot(g: Graph, node: Node) -> str:
    """A product of matrices: the other axes of an input are one."""
    node.accept("forward_stype")
    sizes, sides = [], []
    for place, (tensor, flag) in enumerate(zip(node.inputs, ("transpose_a", "transpose_b"))):
        rank = len(node.shapes[place])
        first = bool(node.get(flag, False)) != bool(place)  # whether the first axis is summed over
        if rank != 2:
            tensor = g("Flatten", tensor, axis=1 if first else rank - 1)
        if rank > 1:
            sizes.append(g.shape(node.inputs[place], *((1, rank) if first else (0, rank - 1))))
        sides.append(g("Transpose", tensor, perm=[1, 0]) if first != bool(place) else tensor)
    out = g("MatMul", *sides)
    if all(len(shape) == 2 for shape in node.shapes):
        return out
    return g("Reshape", out, g.joined(*sizes) if sizes else np.array([1]))
