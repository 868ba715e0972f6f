# SPDX-License-Identifier: Apache-2.0
"""Computes the sum of a level of a pyramid and the level above it, upsampled, at once."""

from __future__ import annotations

from ..bridge.symbol_json import NodeEntry
from .graph import SUMS, InferenceGraph
from .symbolic_shapes import symbolic_shapes

#: The operator's name in MXNet and in symbol files.
OPERATOR = "_gluon_roi_UpsampleAdd"


def join_upsampling_and_sum(graph: InferenceGraph) -> int:
    """Replace UpSampling by 2, slice_like and the sum with the larger map; return how many."""
    known, uses = symbolic_shapes(graph), graph.uses()
    count = 0
    for number in graph.needed():
        node = graph.nodes[number]
        if node["op"] not in SUMS or len(node["inputs"]) != 2:
            continue
        for high, cut in (node["inputs"], node["inputs"][::-1]):
            low = _upsampled(graph, cut, high)
            if low is None or len(uses.get(cut, ())) != 1:
                continue
            # Both have one type, because the sum does not convert them.
            if not any(entry in known and known[entry].is_float32 for entry in (low, high)):
                continue
            new = graph.node(OPERATOR, "", [low, high])
            graph.replace(NodeEntry(number, 0), new, uses, known)
            count += 1
            break
    return count


def _upsampled(graph: InferenceGraph, cut: NodeEntry, high: NodeEntry) -> NodeEntry | None:
    """The map whose upsampled copy, cropped to the size of `high`, is `cut`; or None."""
    if not graph.is_node(cut, "slice_like"):
        return None
    large, like = graph.nodes[cut.node]["inputs"]
    if like != high or graph.sizes(cut.node, "axes") not in ((2, 3), (-1, -2), (-2, -1)):
        return None
    if not graph.is_node(large, "UpSampling"):
        return None
    is_nearest = graph.attribute(large.node, "sample_type", "") == "nearest"
    if not is_nearest or graph.integer(large.node, "scale") != 2:
        return None
    inputs = graph.nodes[large.node]["inputs"]
    return inputs[0] if len(inputs) == 1 else None
