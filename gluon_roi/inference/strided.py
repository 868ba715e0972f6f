# SPDX-License-Identifier: Apache-2.0
"""Computes strided 1 x 1 convolutions on the cells that they read."""

from __future__ import annotations

from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .layers import is_plain_convolution, pair


def take_strides_first(graph: InferenceGraph) -> int:
    """Replace strided 1 x 1 convolutions with a strided slice and a 1 x 1 convolution of stride 1.

    Returns the number of convolutions. Those of one map share the slice.
    """
    slices: dict[tuple, NodeEntry] = {}
    count = 0
    for number in graph.needed():
        if not is_plain_convolution(graph, number) or graph.sizes(number, "kernel") != (1, 1):
            continue
        stride = pair(graph, number, "stride", 1)
        if stride == (1, 1) or pair(graph, number, "pad", 0) != (0, 0):
            continue
        node = graph.nodes[number]
        key = (node["inputs"][0], stride)
        if key not in slices:
            slices[key] = graph.node(
                "slice",
                f"{node['name']}_cells",
                [node["inputs"][0]],
                begin=("None",) * 4,
                end=("None",) * 4,
                step=(1, 1, *stride),
            )
        node["inputs"] = [slices[key], *node["inputs"][1:]]
        node["attrs"] = {**node["attrs"], "stride": "(1, 1)"}
        count += 1
    return count
