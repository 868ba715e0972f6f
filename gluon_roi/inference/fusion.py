# SPDX-License-Identifier: Apache-2.0
"""MXNet's own fusion of convolutions, activations and sums, which oneDNN computes at once."""

from __future__ import annotations

import collections
import contextlib
import os
import warnings
from typing import Iterator, Mapping

import mxnet as mx
import numpy as np

from ..bridge.symbol_json import NodeEntry, Nodes, symbol_content, symbol_text
from ..files import sentence
from .layers import FUSABLE_LAYERS

_BACKEND = "MKLDNN"
#: How the names of the operators of fused layers begin.
FUSED_PREFIX = "_sg_mkldnn_"


def fuse(
    symbol: mx.sym.Symbol, parameters: dict[str, mx.nd.NDArray]
) -> tuple[mx.sym.Symbol, dict[str, mx.nd.NDArray], dict[str, int]]:
    """The symbol and parameters after MXNet's fusion, and how many nodes are fused and are not.

    Symbol and parameters are those given if this MXNet has no oneDNN, or if its fusion fails, of
    which a warning tells.
    """
    fused, arrays = symbol, parameters
    if mx.runtime.Features().is_enabled(_BACKEND):
        try:
            fused, arrays = _fused(symbol, parameters)
        except mx.MXNetError as error:
            warnings.warn(
                "optimize: MXNet does not fuse the layers of this graph, which is slower: "
                f"{sentence(str(error))}",
                stacklevel=2,
            )
    operators = [node["op"] for node in symbol_content(fused)["nodes"]]
    return (
        fused,
        arrays,
        {
            "nodes fused by MXNet": sum(op.startswith(FUSED_PREFIX) for op in operators),
            "layers that MXNet did not fuse": sum(op in FUSABLE_LAYERS for op in operators),
        },
    )


def _fused(
    symbol: mx.sym.Symbol, parameters: dict[str, mx.nd.NDArray]
) -> tuple[mx.sym.Symbol, dict[str, mx.nd.NDArray]]:
    with _quiet():
        # The fusion is that of operators. To infer shapes fails if those of inputs are not known.
        found = _prepared(symbol).optimize_for(_BACKEND, ctx=mx.cpu(), skip_infer=True)
    nodes = Nodes(symbol_content(found))
    _remove_identities(nodes)
    _merge_variables(nodes)
    _restore_names(nodes, symbol)
    _restore_layers(nodes, parameters)
    fused = mx.sym.load_json(symbol_text(nodes.content()))
    return fused, {name: parameters[name] for name in fused.list_inputs() if name in parameters}


def _prepared(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """An equal symbol in a form with which MXNet's fusion does not go wrong.

    MXNet's fusion forgets all but one reader of a layer, the axis of a BatchNorm behind a layer,
    and an output of the graph that a node also reads: an identity after each separates them. The
    identity is BlockGrad, because MXNet removes _copy before, together with the names of outputs.
    MXNet's fusion also confuses the inputs of a sum whose second summand alone is a layer.
    """
    nodes = Nodes(symbol_content(symbol))
    readers: collections.Counter = collections.Counter(nodes.heads)
    for number in nodes.needed():
        readers.update(nodes.nodes[number]["inputs"])
    read_inside = {entry for number in nodes.needed() for entry in nodes.nodes[number]["inputs"]}
    normalized = {
        nodes.nodes[number]["inputs"][0]
        for number in nodes.needed()
        if nodes.nodes[number]["op"] == "BatchNorm"
    }
    for entry, count in readers.items():
        node = nodes.nodes[entry.node]
        is_output_and_input = entry in nodes.heads and entry in read_inside
        is_unsafe_layer = node["op"] in FUSABLE_LAYERS and (count > 1 or entry in normalized)
        if is_unsafe_layer or is_output_and_input and node["op"] != "null":
            identity = nodes.add("BlockGrad", node["name"])
            nodes.redirect({entry: identity})
            nodes.heads = [identity if head == entry else head for head in nodes.heads]
            nodes.nodes[identity.node]["inputs"] = [entry]
    for number in nodes.needed():
        node = nodes.nodes[number]
        if node["op"] == "_copy" and NodeEntry(number, 0) in nodes.heads:
            node["op"] = "BlockGrad"
        if node["op"] == "elemwise_add":
            are_layers = [
                nodes.nodes[entry.node]["op"] in FUSABLE_LAYERS for entry in node["inputs"]
            ]
            if are_layers == [False, True]:
                node["inputs"].reverse()
    return mx.sym.load_json(symbol_text(nodes.content()))


def _remove_identities(nodes: Nodes) -> None:
    """Remove the identities behind fused layers, which `_prepared` adds.

    MXNet copies a map for each identity. Identities that are outputs of the graph stay.
    """
    for number in nodes.needed():
        node, identity = nodes.nodes[number], NodeEntry(number, 0)
        if node["op"] != "BlockGrad" or identity in nodes.heads:
            continue
        (source,) = node["inputs"]
        if nodes.nodes[source.node]["op"].startswith(FUSED_PREFIX):
            nodes.redirect({identity: source})


def _merge_variables(nodes: Nodes) -> None:
    """Let each variable be one node; MXNet's fusion copies those that several nodes read."""
    variables: dict[str, NodeEntry] = {}
    copies = {}
    for number, node in enumerate(nodes.nodes):
        if node["op"] == "null":
            first = variables.setdefault(node["name"], NodeEntry(number, 0))
            copies[NodeEntry(number, 0)] = first
    nodes.redirect(copies)
    nodes.heads = [copies.get(head, head) for head in nodes.heads]


def _restore_names(nodes: Nodes, symbol: mx.sym.Symbol) -> None:
    """Give fused nodes the names that the outputs of the symbol had; MXNet numbers them."""
    before = Nodes(symbol_content(symbol))
    for head, old in zip(nodes.heads, before.heads):
        if nodes.nodes[head.node]["op"].startswith(FUSED_PREFIX):
            nodes.nodes[head.node]["name"] = before.nodes[old.node]["name"]


def _restore_layers(nodes: Nodes, parameters: Mapping[str, mx.nd.NDArray]) -> None:
    """Undo the fusion of layers whose weights are not float32 parameters.

    oneDNN computes float32. And a fused layer keeps the weights of its first call, laid out anew,
    until MXNet knows that a parameter has been written: inputs, and weights that the graph
    computes, would be forgotten.
    """

    def is_parameter(entry: NodeEntry) -> bool:
        node = nodes.nodes[entry.node]
        values = parameters.get(node["name"]) if node["op"] == "null" else None
        return values is not None and values.dtype == np.float32

    for number in nodes.needed():
        node = nodes.nodes[number]
        if not node["op"].startswith(FUSED_PREFIX):
            continue
        (content,) = node["subgraphs"]
        part = Nodes(content)
        variables = [NodeEntry(i, 0) for i, inner in enumerate(part.nodes) if inner["op"] == "null"]
        given = dict(zip(variables, node["inputs"]))
        weights = [
            given[entry]
            for inner in part.nodes
            if inner["op"] in (*FUSABLE_LAYERS, "BatchNorm")
            for entry in inner["inputs"][1:]
        ]
        if not all(map(is_parameter, weights)):
            _replace_with_part(nodes, number, part, given)


def _replace_with_part(
    nodes: Nodes, number: int, part: Nodes, given: Mapping[NodeEntry, NodeEntry]
) -> None:
    """Replace a fused node with its nodes, whose variables stand for the entries in `given`."""
    entries = dict(given)

    def outer(entry: NodeEntry) -> NodeEntry:
        return entries.get(entry) or NodeEntry(entries[NodeEntry(entry.node, 0)].node, entry.output)

    for index, node in enumerate(part.nodes):  # each node comes after its inputs
        if node["op"] != "null":
            entries[NodeEntry(index, 0)] = NodeEntry(len(nodes.nodes), 0)
            nodes.nodes.append({**node, "inputs": [outer(entry) for entry in node["inputs"]]})
    (head,) = part.heads
    nodes.redirect({NodeEntry(number, 0): outer(head)})
    nodes.heads = [outer(head) if old == NodeEntry(number, 0) else old for old in nodes.heads]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Set MXNET_SUBGRAPH_VERBOSE=0, without which MXNet prints what it fuses, unless it is set."""
    name = "MXNET_SUBGRAPH_VERBOSE"
    before = os.environ.get(name)
    os.environ.setdefault(name, "0")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
