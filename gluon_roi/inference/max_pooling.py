# SPDX-License-Identifier: Apache-2.0
"""Computes max pooling by an operator of this package, which reads maps in MXNet's layout."""

from __future__ import annotations

import numpy as np

from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .layers import has_maps, pair
from .layouts import maps_of_onednn, mxnets_layers

#: The operator's name in MXNet and in symbol files (src/ops/max_pooling.h).
OPERATOR = "_gluon_roi_MaxPooling"


def use_max_pooling(graph: InferenceGraph) -> int:
    """Replace max pooling of maps in MXNet's layout; return how many.

    In the layouts of oneDNN, MXNet's own Pooling is fast.
    """
    types, uses = graph.types(), graph.uses()
    onednns = maps_of_onednn(graph, mxnets_layers(graph))
    count = 0
    for number in graph.needed():
        data = graph.nodes[number]["inputs"][:1]
        if not _is_supported(graph, number) or types.get(data[0]) != np.float32:
            continue
        if data[0] in onednns:
            continue
        new = graph.node(
            OPERATOR,
            "",
            data,
            kernel=graph.sizes(number, "kernel"),
            stride=pair(graph, number, "stride", 1),
            pad=pair(graph, number, "pad", 0),
            pooling_convention=graph.attribute(number, "pooling_convention", "valid"),
        )
        graph.replace(NodeEntry(number, 0), new, uses, types)
        count += 1
    return count


def _is_supported(graph: InferenceGraph, number: int) -> bool:
    return (
        graph.nodes[number]["op"] == "Pooling"
        and graph.attribute(number, "pool_type", "max") == "max"
        and has_maps(graph, number)
        and not graph.flag(number, "global_pool")
        and graph.attribute(number, "pooling_convention", "valid") in ("valid", "full")
    )
