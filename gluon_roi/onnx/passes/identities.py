# SPDX-License-Identifier: Apache-2.0
"""The pass that removes nodes whose output equals an existing tensor."""

from __future__ import annotations

import onnx
from onnx import helper

from ..graph import OnnxGraph
from .types import RESHAPES, TensorType, cast_type, type_of


def remove_identities(graph: OnnxGraph, types: dict[str, TensorType]) -> dict[str, str]:
    """Remove nodes without an effect; return the replacements of tensors."""
    replaced: dict[str, str] = {}
    producers: dict[str, onnx.NodeProto] = {}
    kept = []
    for node in graph.nodes:
        node.input[:] = [replaced.get(name, name) for name in node.input]
        original = _original(graph, types, producers, node)
        if original is not None:
            replaced[node.output[0]] = original
            continue
        kept.append(node)
        producers.update((name, node) for name in node.output)
    graph.nodes = kept
    return replaced


def _original(
    graph: OnnxGraph,
    types: dict[str, TensorType],
    producers: dict[str, onnx.NodeProto],
    node: onnx.NodeProto,
) -> str | None:
    """The tensor that the output of a node equals, if there is one."""
    if node.op_type == "Transpose":
        order = helper.get_node_attr_value(node, "perm")
        return node.input[0] if list(order) == sorted(order) else None
    if node.op_type == "Cast":
        given = type_of(graph, types, node.input[0])
        return node.input[0] if given is not None and given.dtype == cast_type(node) else None
    output_type = types.get(node.output[0])
    if output_type is None:
        return None
    if node.op_type == "Expand":
        same = None not in output_type.shape and type_of(graph, types, node.input[0]) == output_type
        return node.input[0] if same else None
    return _before_reshapes(graph, types, producers, node, output_type)


def _before_reshapes(
    graph: OnnxGraph,
    types: dict[str, TensorType],
    producers: dict[str, onnx.NodeProto],
    node: onnx.NodeProto,
    output_type: TensorType,
) -> str | None:
    """The tensor before a chain of reshapes that ends with the same shape."""
    # The number of elements determines one dynamic size, unless another size is 0.
    dynamic = output_type.shape.count(None)
    if dynamic > 1 or (dynamic == 1 and 0 in output_type.shape):
        return None
    last: onnx.NodeProto | None = node
    while last is not None and last.op_type in RESHAPES:
        if type_of(graph, types, last.input[0]) == output_type:
            return last.input[0]
        last = producers.get(last.input[0])
    return None
