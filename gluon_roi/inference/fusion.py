# SPDX-License-Identifier: Apache-2.0
"""MXNet's own fusion of convolutions, activations and sums, which oneDNN computes at once."""

from __future__ import annotations

import collections
import contextlib
import os
from typing import Iterator, Mapping

import mxnet as mx

from ..bridge.symbol_json import NodeEntry, Nodes, symbol_content, text

_BACKEND = "MKLDNN"
_FUSED = "_sg_mkldnn_"
_LAYERS = ("Convolution", "FullyConnected")


def fuse(
    symbol: mx.sym.Symbol,
    parameters: dict[str, mx.nd.NDArray],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[mx.sym.Symbol, dict[str, mx.nd.NDArray], int]:
    """The symbol and parameters after MXNet's fusion, and the number of fused nodes.

    They are returned unchanged if this MXNet has no oneDNN, or if its fusion fails.
    """
    if not mx.runtime.Features().is_enabled(_BACKEND):
        return symbol, parameters, 0
    arguments = {k: v for k, v in parameters.items() if k in set(symbol.list_arguments())}
    states = {k: v for k, v in parameters.items() if k in set(symbol.list_auxiliary_states())}
    known = {k: v for k, v in shapes.items() if k in set(symbol.list_inputs())}
    try:
        with _quiet():
            fused = _with_identities(symbol).optimize_for(
                _BACKEND, arguments, states, mx.cpu(), known
            )
    except mx.MXNetError:
        return symbol, parameters, 0
    fused = _with_names(fused, symbol)
    arrays = {**arguments, **states}
    count = sum(node["op"].startswith(_FUSED) for node in symbol_content(fused)["nodes"])
    return fused, {name: arrays[name] for name in fused.list_inputs() if name in arrays}, count


def _with_identities(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """The symbol with an identity behind outputs with which MXNet's fusion goes wrong.

    It forgets all but one reader of a convolution or a sum, the axis of a BatchNorm behind a
    convolution, and outputs of the graph that are also read in it. It removes mere copies before,
    so the identity is BlockGrad.
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
        is_unsafe_layer = node["op"] in _LAYERS and (count > 1 or entry in normalized)
        if is_unsafe_layer or is_output_and_input and node["op"] != "null":
            identity = nodes.add("BlockGrad", node["name"])
            nodes.redirect({entry: identity})
            nodes.heads = [identity if head == entry else head for head in nodes.heads]
            nodes.nodes[identity.node]["inputs"] = [entry]
    return mx.sym.load_json(text(nodes.content()))


def _with_names(fused: mx.sym.Symbol, symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """The fused symbol with its variables once, and the names of the outputs.

    MXNet's fusion copies variables that several nodes read, and names nodes by a number.
    """
    nodes, before = Nodes(symbol_content(fused)), Nodes(symbol_content(symbol))
    variables: dict[str, NodeEntry] = {}
    copies = {}
    for number, node in enumerate(nodes.nodes):
        if node["op"] == "null":
            first = variables.setdefault(node["name"], NodeEntry(number, 0))
            copies[NodeEntry(number, 0)] = first
    nodes.redirect(copies)
    nodes.heads = [copies.get(head, head) for head in nodes.heads]
    for head, old in zip(nodes.heads, before.heads):
        if nodes.nodes[head.node]["op"].startswith(_FUSED):
            nodes.nodes[head.node]["name"] = before.nodes[old.node]["name"]
    return mx.sym.load_json(text(nodes.content()))


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
