# SPDX-License-Identifier: Apache-2.0
"""Joins convolutions of one map that have few outputs."""

from __future__ import annotations

import collections

import numpy as np

from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .layers import bias_of, is_plain_convolution

#: Convolutions with fewer outputs are joined: to read and pack the map takes as long as these.
FEW = 16
_GEOMETRY = ("kernel", "stride", "pad", "dilate")


def join_narrow_convolutions(graph: InferenceGraph) -> int:
    """Compute convolutions of one map that have fewer than 16 outputs each as one convolution.

    The scores and offsets of a region proposal network, for instance. Returns the number of
    convolutions that were joined.
    """
    groups: dict[tuple, list[int]] = collections.defaultdict(list)
    types, uses = graph.types(), graph.uses()
    for number in graph.needed():
        if not is_plain_convolution(graph, number):
            continue
        data = graph.nodes[number]["inputs"][0]
        filters = graph.integer(number, "num_filter")
        if types.get(data) == np.float32 and filters < FEW:
            shape = (graph.attribute(number, name, "()") for name in _GEOMETRY)
            groups[(data, *shape)].append(number)
    # Layers that are applied several times share their weights.
    made: dict[tuple, tuple[NodeEntry, NodeEntry]] = {}
    count = 0
    for members in groups.values():
        if len(members) == 1:
            continue
        layers = tuple(tuple(graph.nodes[number]["inputs"][1:]) for number in members)
        name = graph.nodes[members[0]]["name"]
        if layers not in made:
            weight = _joined([graph.value(layer[0]) for layer in layers])
            bias = _joined([bias_of(graph, number) for number in members])
            if weight is None or bias is None:
                continue
            made[layers] = (
                graph.constant(f"{name}_joined_weight", weight),
                graph.constant(f"{name}_joined_bias", bias),
            )
        sizes = [graph.integer(number, "num_filter") for number in members]
        attributes = {
            **graph.nodes[members[0]]["attrs"],
            "num_filter": str(sum(sizes)),
            "no_bias": "False",
        }
        data = graph.nodes[members[0]]["inputs"][0]
        joined = graph.node("Convolution", f"{name}_joined", [data, *made[layers]], **attributes)
        begin = 0
        for number, size in zip(members, sizes):
            part = graph.node(
                "slice_axis", f"{name}_part", [joined], axis=1, begin=begin, end=begin + size
            )
            graph.replace(NodeEntry(number, 0), part, uses)
            begin += size
        count += len(members)
    return count


def _joined(values: list[np.ndarray | None]) -> np.ndarray | None:
    """Parameters one after the other; None if one is missing or not float32."""
    parts = [value for value in values if value is not None and value.dtype == np.float32]
    return np.concatenate(parts) if len(parts) == len(values) else None
