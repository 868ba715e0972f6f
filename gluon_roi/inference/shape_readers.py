# SPDX-License-Identifier: Apache-2.0
"""Lets operators that read only a shape read it from the map itself.

GluonCV multiplies a map by 0 and gives the product to slice_like.
"""

from __future__ import annotations

from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .symbolic_shapes import symbolic_shapes

#: Operators that read of their second input no more than its shape.
_READERS = ("slice_like", "broadcast_like", "reshape_like")
#: Operators of one input whose output has its shape and, if that is float32, its type.
_SAME_SHAPE = ("_mul_scalar", "zeros_like")


def read_shapes_of_maps(graph: InferenceGraph) -> int:
    """Let operators that need a shape read a map itself, not a multiple of it; return how many."""
    known, uses = symbolic_shapes(graph), graph.uses()
    count = 0
    for number in graph.needed():
        node = graph.nodes[number]
        if node["op"] not in _READERS:
            continue
        like: NodeEntry = node["inputs"][1]
        # Only where the multiple is not needed otherwise, because the map may have to be laid out
        # for each operator that reads it.
        if not graph.is_node(like, *_SAME_SHAPE) or len(uses.get(like, ())) > 1:
            continue
        (source,) = graph.nodes[like.node]["inputs"]
        if source in known and known[source].is_float32:
            graph.set_inputs(number, [node["inputs"][0], source, *node["inputs"][2:]], uses)
            count += 1
    return count
