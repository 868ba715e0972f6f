# SPDX-License-Identifier: Apache-2.0
"""Computes convolutions in MXNet's layout, with the sum and activation after them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..bridge.symbol_json import NodeEntry
from . import gemm
from .epilogue import find_epilogue
from .graph import InferenceGraph
from .layers import bias_of, convolves_maps, pair
from .layouts import mxnets_layout_pays


class Layer(NamedTuple):
    """An operator, and the parameters that it shares among all applications of a layer."""

    operator: str
    weight: NodeEntry
    bias: NodeEntry


def use_gemm(graph: InferenceGraph) -> int:
    """Replace convolutions of maps by those of this package; return how many.

    Their maps stay in MXNet's layout, which this package's operators and most of MXNet's read and
    write. MXNet's own convolutions have the layouts of oneDNN, and between the two each map is
    laid out anew.
    """
    types, uses = graph.types(), graph.uses()
    convolutions = [
        number
        for number in graph.needed()
        if convolves_maps(graph, number)
        and types.get(graph.nodes[number]["inputs"][0]) == np.float32
    ]
    if not mxnets_layout_pays(graph, set(convolutions)):
        return 0
    layers: dict[tuple[NodeEntry, ...], Layer | None] = {}
    count = 0
    for number in convolutions:
        node, layer = graph.nodes[number], shared_layer(graph, number, layers)
        if layer is None:
            continue
        epilogue = find_epilogue(graph, uses, NodeEntry(number, 0))
        new = graph.node(
            layer.operator,
            node["name"],
            [node["inputs"][0], layer.weight, layer.bias, *epilogue.residual],
            **_attributes(graph, number, layer.operator),
            **epilogue.attributes,
        )
        graph.replace(epilogue.last, new, uses, types)
        count += 1
    return count


def shared_layer(
    graph: InferenceGraph, number: int, layers: dict[tuple[NodeEntry, ...], Layer | None]
) -> Layer | None:
    """The operator and parameters of a convolution, made once for all applications of a layer.

    None if its weights are no finite float32. `layers` has those that are made.
    """
    key = tuple(graph.nodes[number]["inputs"][1:])
    if key not in layers:
        layers[key] = _layer(graph, number)
    return layers[key]


def _layer(graph: InferenceGraph, number: int) -> Layer | None:
    weight, bias = graph.value(graph.nodes[number]["inputs"][1]), bias_of(graph, number)
    if weight is None or bias is None or weight.dtype != np.float32:
        return None
    if not np.isfinite(gemm.error_bound(weight)):
        return None
    name, groups = graph.nodes[number]["name"], graph.integer(number, "num_group", 1)
    operator = gemm.DEPTHWISE if weight.shape[1] == 1 < groups else gemm.OPERATOR
    packed = weight if operator == gemm.DEPTHWISE else gemm.pack_weights(weight, groups)
    return Layer(
        operator,
        graph.constant(f"{name}_packed", packed),
        graph.constant(f"{name}_packed_bias", bias),
    )


def _attributes(graph: InferenceGraph, number: int, operator: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "num_filter": graph.attribute(number, "num_filter", "0"),
        "kernel": graph.sizes(number, "kernel"),
    }
    for name, default in (("stride", 1), ("pad", 0), ("dilate", 1)):
        size = pair(graph, number, name, default)
        attributes.update({name: size} if size != (default, default) else {})
    groups = graph.attribute(number, "num_group", "1")
    if operator == gemm.OPERATOR and groups != "1":
        attributes["num_group"] = groups
    return attributes
