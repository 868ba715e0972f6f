# SPDX-License-Identifier: Apache-2.0
"""Adds the bias of a Deconvolution by a node of its own, because MXNet 1.8.0 forgets it.

MXNet 1.8.0 does so in float32 on the CPU, if oneDNN computes the layer in a layout of its own: if
the numbers of its input and output channels are multiples of 8.
"""

from __future__ import annotations

from ast import literal_eval

import mxnet as mx

from ..bridge.symbol_json import without_longs
from ..inference.layers import FORGETS_BIAS
from .symbols import SymbolGraph, own_scope

#: Marks the nodes that add a bias.
_ATTRIBUTE = "__gluon_roi_bias__"


def has_bias(node: dict) -> bool:
    """Whether a node of a symbol file is a Deconvolution of two axes with a bias."""
    if node["op"] != "Deconvolution" or len(node["inputs"]) < 3:
        return False
    return len(literal_eval(without_longs(node["attrs"]["kernel"]))) == 2


def forgets_bias(content: dict) -> bool:
    """Whether the graph of a symbol file has a bias that MXNet may forget."""
    return FORGETS_BIAS and any(
        has_bias(node) or any(map(forgets_bias, node.get("subgraphs", ())))
        for node in content["nodes"]
    )


def adds_bias(content: dict) -> bool:
    """Whether the graph of a symbol file has a node that this module has made."""
    return any(
        _ATTRIBUTE in node.get("attrs", {}) or any(map(adds_bias, node.get("subgraphs", ())))
        for node in content["nodes"]
    )


def add_biases(content: dict, in_network: bool) -> dict:
    """Replace each Deconvolution of the content of a symbol file that `has_bias`."""
    graph = SymbolGraph(content)
    for index, node in enumerate(list(graph.nodes)):
        if "subgraphs" in node:
            node["subgraphs"] = [add_biases(body, in_network) for body in node["subgraphs"]]
        if has_bias(node):
            loop = graph.attributes_of(index).get("__subgraph_name__")  # in the body of a loop
            with own_scope(in_network, **({"__subgraph_name__": loop} if loop else {})):
                graph.replace(index, _with_bias(graph, index))
    return graph.content()


def _with_bias(graph: SymbolGraph, index: int) -> mx.sym.Symbol:
    """The symbol that replaces a Deconvolution."""
    node = graph.nodes[index]
    given = {key: without_longs(value) for key, value in graph.attributes_of(index).items()}
    hidden = {key: value for key, value in given.items() if key.startswith("__")}
    visible = {key: value for key, value in given.items() if key not in hidden}
    variable = graph.nodes[node["inputs"][2].node]
    if variable["op"] == "null":  # a reshape does not tell MXNet the shape of its input
        shape = f"({given['num_filter']},)"
        variable.setdefault("attrs", {}).setdefault("__shape__", shape)
    data, weight, bias = map(graph.stand_in, node["inputs"])
    maps = mx.sym.Deconvolution(
        data, weight, **{**visible, "no_bias": True}, name=f"{node['name']}_without_bias"
    )
    column = mx.sym.reshape(bias, shape=(1, -1, 1, 1), name=f"{node['name']}_bias_of_maps")
    attributes = {**hidden, _ATTRIBUTE: "True"}
    return mx.sym.broadcast_add(maps, column, name=node["name"], attr=attributes)
