# SPDX-License-Identifier: Apache-2.0
"""The pass that shortens chains of reshapes, casts and transpositions."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from ..graph import OnnxGraph
from .types import RESHAPES, TensorType, cast_type, type_of


def shorten_chains(graph: OnnxGraph, types: dict[str, TensorType]) -> None:
    """Let a node skip the previous node in a chain, if this does not change its output.

    A Reshape skips earlier reshapes, a Cast skips lossless casts, and two transpositions are
    merged. Unused nodes are pruned later.
    """
    producers: dict[str, onnx.NodeProto] = {}
    for node in graph.nodes:
        shorten = {"Cast": _skip_cast, "Reshape": _skip_reshape, "Transpose": _merge_transpositions}
        while node.op_type in shorten and node.input[0] in producers:
            if not shorten[node.op_type](graph, types, producers[node.input[0]], node):
                break
        producers.update((name, node) for name in node.output)


def _skip_reshape(
    graph: OnnxGraph, types: dict[str, TensorType], before: onnx.NodeProto, node: onnx.NodeProto
) -> bool:
    sizes = graph.constants.get(node.input[1])
    if before.op_type not in RESHAPES or sizes is None or 0 in sizes:
        return False
    node.input[0] = before.input[0]
    return True


def _skip_cast(
    graph: OnnxGraph, types: dict[str, TensorType], before: onnx.NodeProto, node: onnx.NodeProto
) -> bool:
    given = type_of(graph, types, before.input[0]) if before.op_type == "Cast" else None
    if given is None:
        return False
    wider = cast_type(before)
    is_number = given.dtype.kind == "b" or given.dtype.kind == wider.kind
    if not (is_number and np.can_cast(given.dtype, wider, "safe")):
        return False
    node.input[0] = before.input[0]
    return True


def _merge_transpositions(
    graph: OnnxGraph, types: dict[str, TensorType], before: onnx.NodeProto, node: onnx.NodeProto
) -> bool:
    if before.op_type != "Transpose":
        return False
    first, then = (helper.get_node_attr_value(n, "perm") for n in (before, node))
    node.attribute[0].CopyFrom(helper.make_attribute("perm", [first[n] for n in then]))
    node.input[0] = before.input[0]
    return True
