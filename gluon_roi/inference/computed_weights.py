# SPDX-License-Identifier: Apache-2.0
"""Computes the weights of layers in advance, where the graph computes them from parameters."""

from __future__ import annotations

import numpy as np

from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .layers import FUSABLE_LAYERS


def compute_weights(graph: InferenceGraph) -> int:
    """Make weights and biases of layers parameters, if they are the same in every call.

    MXNet's fused layers keep weights, so fusion takes only those that are parameters. Returns the
    number of arrays.
    """
    made: dict[NodeEntry, NodeEntry] = {}
    uses = graph.uses()
    for number in graph.needed():
        node = graph.nodes[number]
        if node["op"] not in FUSABLE_LAYERS:
            continue
        for entry in node["inputs"][1:]:
            source = graph.nodes[entry.node]
            if source["op"] == "null" or entry in made:
                continue
            value = graph.value(entry)
            if value is not None and value.dtype == np.float32:
                made[entry] = graph.constant(f"{source['name']}_value", value)
        data, *weights = node["inputs"]
        graph.set_inputs(number, [data, *(made.get(entry, entry) for entry in weights)], uses)
    return len(made)
