# SPDX-License-Identifier: Apache-2.0
"""Computes max pooling by an operator of this package, which reads maps in MXNet's layout.

The same operator keeps the local maxima of a map, and makes the rest zero.
"""

from __future__ import annotations

import numpy as np

from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .layers import pair, pools_maxima
from .layouts import maps_of_onednn, mxnets_layers

#: The operator's name in MXNet and in symbol files (src/ops/max_pooling.h).
OPERATOR = "_gluon_roi_MaxPooling"
_COMPARISONS = ("broadcast_equal", "_equal")
_PRODUCTS = ("broadcast_mul", "elemwise_mul")


def use_max_pooling(graph: InferenceGraph) -> int:
    """Replace max pooling of maps in MXNet's layout; return how many.

    In the layouts of oneDNN, MXNet's own Pooling is fast.
    """
    types, uses = graph.types(), graph.uses()
    onednns = maps_of_onednn(graph, mxnets_layers(graph))
    count = 0
    for number in graph.needed():
        data = graph.nodes[number]["inputs"][:1]
        if not pools_maxima(graph, number) or types.get(data[0]) != np.float32:
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


def join_local_maxima(graph: InferenceGraph) -> int:
    """Replace data * (data == max pooling of data) by one operator; return how many.

    CenterNet finds the peaks of its heatmaps so. MXNet's comparison and product take several times
    as long as reading and writing the maps, and run on one thread.
    """
    types, uses = graph.types(), graph.uses()
    count = 0
    for number in graph.needed():
        if graph.nodes[number]["op"] not in _PRODUCTS:
            continue
        factors = graph.nodes[number]["inputs"]
        for data, mask in (factors, factors[::-1]):
            pooling = _pooling_of_mask(graph, data, mask)
            if pooling is None or types.get(data) != np.float32:
                continue
            if len(uses.get(mask, ())) != 1 or len(uses.get(pooling, ())) != 1:
                continue
            new = graph.node(
                OPERATOR,
                "",
                [data],
                kernel=graph.sizes(pooling.node, "kernel"),
                pad=pair(graph, pooling.node, "pad", 0),
                keep_maxima=True,
            )
            graph.replace(NodeEntry(number, 0), new, uses, types)
            count += 1
            break
    return count


def _pooling_of_mask(graph: InferenceGraph, data: NodeEntry, mask: NodeEntry) -> NodeEntry | None:
    """The max pooling of data with which a mask compares data, cell by cell; or None."""
    if not graph.is_node(mask, *_COMPARISONS):
        return None
    compared = graph.nodes[mask.node]["inputs"]
    for one, pooling in (compared, compared[::-1]):
        if one != data or not graph.is_node(pooling, "Pooling"):
            continue
        number = pooling.node
        kernel, pad = graph.sizes(number, "kernel"), pair(graph, number, "pad", 0)
        if (
            graph.nodes[number]["inputs"][0] == data
            and pools_maxima(graph, number)
            and pair(graph, number, "stride", 1) == (1, 1)
            and kernel == tuple(2 * cells + 1 for cells in pad)
        ):
            return pooling
    return None
