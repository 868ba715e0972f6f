# SPDX-License-Identifier: Apache-2.0
"""Replaces a sum of ROIAligns with one PyramidROIAlign.

GluonCV's detectors have such sums: on each map the boxes of its level are pooled, and the boxes of
other levels are padding rows. Sums whose ROIAligns share maps or boxes are kept, because
PyramidROIAlign would not be faster.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import mxnet as mx

from .. import nd
from ..bridge.guard import RANK_INPUT
from ..bridge.symbol_json import NodeEntry
from .symbols import SymbolGraph, own_scope

_ALIGN = "_gluon_roi_ROIAlign"
_SUMS = ("add_n", "elemwise_add")
#: Operators of guards; version 1.0.0 used _identity_with_attr_like_rhs.
_GUARDS = "Dropout", "_copy", "elemwise_sub", "_npi_subtract", "_identity_with_attr_like_rhs"
_MAX_MAPS = 8  # GLUON_ROI_MAX_MAPS


def fuse_sums(content: dict, in_network: bool) -> dict:
    """Replace each pyramid in the content of a symbol file with one operator.

    `in_network`: whether it is the graph of a Gluon network, in which the input shapes are known.
    """
    if sum(node["op"] == _ALIGN for node in content["nodes"]) < 2:
        return content
    graph = SymbolGraph(content)
    sums = _largest_sums(graph)
    with own_scope(in_network):
        for index, aligns in sums.items():
            graph.replace(index, _pyramid(graph, index, aligns))
    return graph.content()


def _pyramid(graph: SymbolGraph, index: int, aligns: list[int]) -> mx.sym.Symbol:
    """The operator that replaces a sum."""
    name = graph.nodes[index]["name"]
    maps, rois = ([graph.stand_in(_source(graph, align, i)) for align in aligns] for i in range(2))
    given = graph.attributes_of(aligns[0])
    hidden = {k: v for k, v in given.items() if k.startswith("__")}
    hidden.update((k, v) for k, v in graph.attributes_of(index).items() if k.startswith("__"))
    visible: dict[str, Any] = {k: v for k, v in given.items() if k not in hidden}
    hidden.pop(RANK_INPUT, None)
    visible.pop("mode", None)
    visible["spatial_scale"] = [graph.attributes_of(align)["spatial_scale"] for align in aligns]
    lists = mx.sym.concat(*rois, dim=0, name=f"{name}_lists")
    return nd.PyramidROIAlign(maps, lists, **visible, assignment="given", name=name, attr=hidden)


def _largest_sums(graph: SymbolGraph) -> dict[int, list[int]]:
    """The largest sums that one operator can replace, each with its ROIAligns in order."""
    consumers = Counter(entry.node for node in graph.nodes for entry in node["inputs"])
    consumers.update(entry.node for entry in graph.heads)
    classes = _classes(graph)
    added: dict[int, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        # Without rois_num. The third input may be one that provides a rank.
        if (
            node["op"] == _ALIGN
            and graph.attributes_of(index).get("mode", "avg") == "avg"
            and len(node["inputs"]) - (RANK_INPUT in graph.attributes_of(index)) == 2
        ):
            added[index] = [index]
        elif node["op"] in _SUMS:
            aligns: list[int] = []
            for entry in node["inputs"]:
                more = added.get(entry.node, ()) if consumers[entry.node] == 1 else ()
                aligns += more
                if not more or len(aligns) > _MAX_MAPS:
                    break
            else:
                if _are_alike(graph, aligns, classes):
                    added[index] = aligns
    largest: dict[int, list[int]] = {}
    inside: set[int] = set()
    for index in reversed(range(len(graph.nodes))):
        if graph.nodes[index]["op"] not in _SUMS:
            continue
        if index not in inside:
            aligns = added.get(index, [])
            groups = {graph.attributes_of(n).get("__ctx_group__") for n in (index, *aligns)}
            if len(aligns) < 2 or len(groups) > 1:
                continue
            largest[index] = aligns
        inside.update(entry.node for entry in graph.nodes[index]["inputs"])
    return largest


def _are_alike(graph: SymbolGraph, aligns: list[int], classes: list[int]) -> bool:
    """Whether one operator can replace all, and no map or list of boxes is used twice."""
    shared = [
        {key: value for key, value in graph.attributes_of(align).items() if key != "spatial_scale"}
        for align in aligns
    ]
    sources = [_source(graph, align, i) for i in range(2) for align in aligns]
    # The boxes of one operator have one dtype and one layout.
    rois = {(classes[entry.node], entry.output) for entry in sources[len(aligns) :]}
    are_shared = all(attributes == shared[0] for attributes in shared)
    return are_shared and len(rois) == 1 and len({*sources}) == len(sources)


def _classes(graph: SymbolGraph) -> list[int]:
    """A number for each node; nodes with the same number have outputs of the same dtype and shape.

    Such nodes apply the same operators to the same variables, except for scalar operands.
    """
    numbers: dict[tuple, int] = {}
    classes: list[int] = []
    for index, node in enumerate(graph.nodes):
        key: tuple = (index,)
        if node["op"] != "null" and "subgraphs" not in node:
            ignored = "scalar" if node["op"].endswith("_scalar") else ""
            given = sorted(graph.attributes_of(index).items())
            visible = tuple((k, v) for k, v in given if k != ignored and not k.startswith("__"))
            inputs = tuple((classes[entry.node], entry.output) for entry in node["inputs"])
            key = node["op"], visible, inputs
        classes.append(numbers.setdefault(key, len(numbers)))
    return classes


def _source(graph: SymbolGraph, align: int, i: int) -> NodeEntry:
    """An input of a ROIAlign, before its guard."""
    entry = graph.nodes[align]["inputs"][i]
    node = graph.nodes[entry.node]
    name = f"{graph.nodes[align]['name']}_{('data', 'rois')[i]}"
    is_guard = node["op"] in _GUARDS and node["name"] == name
    return node["inputs"][0] if is_guard else entry
