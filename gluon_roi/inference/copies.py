# SPDX-License-Identifier: Apache-2.0
"""Copies numbers by operators of this package: Concat, transpose and repeat of arrays of any rank.

MXNet's own find the place of each number anew, and take several times as long as the memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .layouts import maps_of_onednn, mxnets_layers

#: The operators' names in MXNet and in symbol files (src/ops/concat.h, transpose.h, repeat.h).
CONCAT, TRANSPOSE, REPEAT = (f"_gluon_roi_{name}" for name in ("Concat", "Transpose", "Repeat"))
#: For fewer numbers, MXNet's are as fast: to call an operator takes longer than the copy.
SMALL = 1 << 10
#: How many axes Transpose is used for. With fewer, MXNet's transpose is oneDNN's, and as fast; more
#: it does not take.
_AXES = range(5, 9)


def use_copies(graph: InferenceGraph) -> int:
    """Replace Concat, transpose and repeat of float32 in MXNet's layout; return how many.

    Only in networks. Files may be loaded without the shapes of their inputs, and if the shapes of
    many inputs of a library's operator are not known, MXNet writes past the end of a buffer.
    """
    if graph.is_dynamic or not graph.is_of_network():
        return 0
    types, shapes, uses = graph.types(), graph.shapes(), graph.uses()
    onednns = maps_of_onednn(graph, mxnets_layers(graph))
    count = 0
    for number in graph.needed():
        old = NodeEntry(number, 0)
        copy = _copy(graph, number)
        if copy is None or types.get(old) != np.float32:
            continue
        inputs = graph.nodes[number]["inputs"]
        if not onednns.isdisjoint(inputs) or math.prod(shapes.get(old, (SMALL,))) < SMALL:
            continue
        operator, attributes = copy
        new = graph.node(operator, "", inputs, **attributes)
        graph.replace(old, new, uses, types, shapes)
        count += 1
    return count


def _copy(graph: InferenceGraph, number: int) -> tuple[str, dict[str, Any]] | None:
    """The operator and attributes that copy as a node does; None if no operator does."""
    node = graph.nodes[number]
    if node["op"] == "Concat" and len(node["inputs"]) > 1:
        dim = graph.integer(number, "dim", 1)
        return CONCAT, {"num_args": len(node["inputs"]), "dim": dim}
    if node["op"] == "transpose":
        axes = graph.sizes(number, "axes")
        if len(axes) in _AXES:
            return TRANSPOSE, {"axes": tuple(axis % len(axes) for axis in axes)}
    if node["op"] == "repeat" and graph.attribute(number, "axis", "None") != "None":
        repeats = graph.integer(number, "repeats")
        if repeats > 0:
            return REPEAT, {"repeats": repeats, "axis": graph.integer(number, "axis")}
    return None
