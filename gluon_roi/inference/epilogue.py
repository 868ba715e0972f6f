# SPDX-License-Identifier: Apache-2.0
"""Sums and activations behind a convolution, which its operator computes with the outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..bridge.symbol_json import NodeEntry
from .graph import OUTPUT, SUMS, InferenceGraph, Use, Uses

_ACTIVATIONS = ("Activation", "relu", "LeakyReLU", "clip")


class Epilogue(NamedTuple):
    """What the operator computes besides the convolution."""

    last: NodeEntry  # the output that it replaces
    residual: list[NodeEntry]  # the other summand, if there is a sum
    attributes: dict[str, Any]  # of its node


def find_epilogue(graph: InferenceGraph, uses: Uses, layer: NodeEntry) -> Epilogue:
    """The activation behind a layer, and the sum with another map before or behind that."""
    last, residual = _add(graph, uses, layer)
    last, attributes = find_activation(graph, uses, last)
    if attributes and not residual:
        last, residual = _add(graph, uses, last)
        attributes.update({"adds_last": True} if residual else {})
    attributes.update({"residual": True} if residual else {})
    return Epilogue(last, residual, attributes)


def find_activation(
    graph: InferenceGraph, uses: Uses, entry: NodeEntry
) -> tuple[NodeEntry, dict[str, Any]]:
    """The activation that alone reads an output, and its attributes; or the output and none."""
    use = only_reader(graph, uses, entry, _ACTIVATIONS)
    attributes = None if use is None else _activation(graph, use.node)
    if use is None or attributes is None:
        return entry, {}
    return NodeEntry(use.node, 0), attributes


def _add(graph: InferenceGraph, uses: Uses, entry: NodeEntry) -> tuple[NodeEntry, list[NodeEntry]]:
    """The sum that alone reads an output, and its other summand; or the output and nothing."""
    use = only_reader(graph, uses, entry, SUMS)
    inputs = [] if use is None else graph.nodes[use.node]["inputs"]
    if use is None or len(inputs) != 2:
        return entry, []
    return NodeEntry(use.node, 0), [inputs[1 - use.input]]


def only_reader(
    graph: InferenceGraph,
    uses: Uses,
    entry: NodeEntry,
    operators: tuple[str, ...],
) -> Use | None:
    """The node that alone reads an output, if it is of one of these operators."""
    found = uses.get(entry, [])
    if len(found) != 1 or found[0] == OUTPUT:
        return None
    return found[0] if graph.nodes[found[0].node]["op"] in operators else None


def _activation(graph: InferenceGraph, number: int) -> dict[str, Any] | None:
    """The attributes of an operator with the activation of a node; None if it has no such."""
    kind = "relu"
    if graph.nodes[number]["op"] == "clip":
        bounds = (float(graph.attribute(number, name, "0")) for name in ("a_min", "a_max"))
        kind = "relu6" if tuple(bounds) == (0, 6) else ""
    elif graph.nodes[number]["op"] == "Activation":
        kind = graph.attribute(number, "act_type", "")
    elif graph.nodes[number]["op"] == "LeakyReLU":
        kind = graph.attribute(number, "act_type", "leaky")
    if kind == "leaky":
        return {"act_type": kind, "slope": graph.attribute(number, "slope", "0.25")}
    return {"act_type": kind} if kind in ("relu", "relu6") else None
