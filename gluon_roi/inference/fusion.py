# SPDX-License-Identifier: Apache-2.0
"""MXNet's own fusion of convolutions, activations and sums, which oneDNN computes at once."""

from __future__ import annotations

import collections
import contextlib
import os
from typing import Iterator, Mapping

import mxnet as mx

from ..bridge.symbol_json import Nodes, Place, symbol_content, text

_BACKEND = "MKLDNN"
_FUSED = "_sg_mkldnn_"
_LAYERS = ("Convolution", "FullyConnected")


def fuse(
    symbol: mx.sym.Symbol,
    parameters: dict[str, mx.nd.NDArray],
    shapes: Mapping[str, tuple[int, ...]],
) -> tuple[mx.sym.Symbol, dict[str, mx.nd.NDArray], int]:
    """The symbol and parameters after MXNet's fusion, and the number of fused nodes.

    As they were where this MXNet has no oneDNN, or its fusion fails.
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
    """The symbol with an identity behind outputs that several nodes read, or that leave the graph.

    MXNet's fusion forgets all but one reader of a convolution or a sum. It removes mere copies
    before, so the identity is BlockGrad.
    """
    nodes = Nodes(symbol_content(symbol))
    readers: collections.Counter = collections.Counter(nodes.heads)
    for number in nodes.needed():
        readers.update(nodes.nodes[number]["inputs"])
    is_read_inside = {place for number in nodes.needed() for place in nodes.nodes[number]["inputs"]}
    for place, count in readers.items():
        node = nodes.nodes[place.node]
        if count < 2 or node["op"] == "null":
            continue
        if node["op"] in _LAYERS or place in nodes.heads and place in is_read_inside:
            identity = nodes.add("BlockGrad", node["name"])
            nodes.redirect({place: identity})
            nodes.heads = [identity if head == place else head for head in nodes.heads]
            nodes.nodes[identity.node]["inputs"] = [place]
    return mx.sym.load_json(text(nodes.content()))


def _with_names(fused: mx.sym.Symbol, symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """The fused symbol with its variables once, and the names of the outputs.

    MXNet's fusion copies variables that several nodes read, and names nodes by a number.
    """
    nodes, before = Nodes(symbol_content(fused)), Nodes(symbol_content(symbol))
    variables: dict[str, Place] = {}
    copies = {}
    for number, node in enumerate(nodes.nodes):
        if node["op"] == "null":
            first = variables.setdefault(node["name"], Place(number, 0))
            copies[Place(number, 0)] = first
    nodes.redirect(copies)
    nodes.heads = [copies.get(head, head) for head in nodes.heads]
    for head, old in zip(nodes.heads, before.heads):
        if nodes.nodes[head.node]["op"].startswith(_FUSED):
            nodes.nodes[head.node]["name"] = before.nodes[old.node]["name"]
    return mx.sym.load_json(text(nodes.content()))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """MXNet prints what it fuses unless this variable is set."""
    name = "MXNET_SUBGRAPH_VERBOSE"
    before = os.environ.get(name)
    os.environ.setdefault(name, "0")
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
