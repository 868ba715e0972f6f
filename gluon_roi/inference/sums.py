# SPDX-License-Identifier: Apache-2.0
"""Writes sums that may broadcast as sums of equal shapes, where the shapes are always equal."""

from __future__ import annotations

from .graph import InferenceGraph
from .symbolic_shapes import BROADCASTING_SUMS, symbolic_shapes


def use_elementwise_sums(graph: InferenceGraph) -> int:
    """Replace broadcast_add of float32 maps whose shapes are equal in every call; return how many.

    Other passes then take a sum for one of equal shapes by its operator, and not because the shapes
    of one call are equal: a map of positions (1, C, H, W), for instance, is as large as the other
    map only in a batch of 1.
    """
    known = symbolic_shapes(graph)
    count = 0
    for number in graph.needed():
        node = graph.nodes[number]
        if node["op"] in BROADCASTING_SUMS:
            first, second = (known.get(entry) for entry in node["inputs"])
            if first and first == second and first.is_float32:
                node["op"] = "elemwise_add"
                count += 1
    return count
