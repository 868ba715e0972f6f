# SPDX-License-Identifier: Apache-2.0
"""Writes x + x as 2 * x."""

from __future__ import annotations

from .graph import SUMS, InferenceGraph


def multiply_instead_of_doubling(graph: InferenceGraph) -> int:
    """Replace x + x with 2 * x, the same number, where x is a convolution; return how many.

    MXNet's fusion of a convolution and a sum fails if both summands are that convolution.
    """
    count = 0
    for number in graph.needed():
        node = graph.nodes[number]
        if node["op"] in SUMS and len(node["inputs"]) == 2:
            first, second = node["inputs"]
            if first == second and graph.is_node(first, "Convolution"):
                node.update(op="_mul_scalar", inputs=[first], attrs={"scalar": "2"})
                count += 1
    return count
