# SPDX-License-Identifier: Apache-2.0
"""The pass that gives all inputs of a batch normalisation the same dtype."""

from __future__ import annotations

from onnx import helper

from ..graph import OnnxGraph, onnx_type
from .types import TensorType, type_of


def cast_batch_norms(graph: OnnxGraph, types: dict[str, TensorType]) -> None:
    """Normalise float16 data in float32, the dtype of MXNet's parameters, and round the result.

    ONNX accepts both dtypes in one node, but OpenVINO does not. A normalisation that is folded into
    a layer needs no Cast, so this pass comes last.
    """
    nodes = []
    for node in graph.nodes:
        if node.op_type != "BatchNormalization":
            nodes.append(node)
            continue
        data, scale = (type_of(graph, types, name) for name in node.input[:2])
        if data is None or scale is None or data.dtype == scale.dtype:
            nodes.append(node)
            continue
        wide, out = (graph.unique(f"{node.name}/Cast") for _ in range(2))
        casts = [
            helper.make_node("Cast", [source], [target], name=name, to=onnx_type(dtype))
            for source, target, name, dtype in (
                (node.input[0], wide, wide, scale.dtype),
                (out, node.output[0], out, data.dtype),
            )
        ]
        node.input[0], node.output[0] = wide, out
        nodes += [casts[0], node, casts[1]]
    graph.nodes = nodes
