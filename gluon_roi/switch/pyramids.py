# SPDX-License-Identifier: Apache-2.0
"""Makes one PyramidROIAlign of added ROIAligns.

GluonCV's detectors have such sums: each map pools the boxes of its own level and has padding rows
for all others. Maps or boxes that several ROIAligns share stay as they are, because they would be
pooled in turns, without gain.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import mxnet as mx

from .. import nd
from ..bridge.symbol_json import Place
from .symbols import Graph, own_scope

_ALIGN = "_gluon_roi_ROIAlign"
_SUMS = ("add_n", "elemwise_add")
#: Including those of version 1.0.0, _identity_with_attr_like_rhs.
_GUARDS = "Dropout", "_copy", "elemwise_sub", "_npi_subtract", "_identity_with_attr_like_rhs"
_MAX_MAPS = 8  # GLUON_ROI_MOST_MAPS


def fuse_sums(content: dict, in_network: bool) -> dict:
    """Make the pyramids in a symbol's file one operator each; without one, it is returned as it is.

    The graph of a Gluon network (`in_network`) knows the shapes of its inputs.
    """
    if sum(node["op"] == _ALIGN for node in content["nodes"]) < 2:
        return content
    graph = Graph(content)
    sums = _largest_sums(graph)
    with own_scope(in_network):
        for number, aligns in sums.items():
            graph.replace(number, _pyramid(graph, number, aligns))
    return graph.content()


def _pyramid(graph: Graph, number: int, aligns: list[int]) -> mx.sym.Symbol:
    """The one operator in the place of a sum."""
    name = graph.nodes[number]["name"]
    maps, rois = ([graph.stand_in(_source(graph, align, i)) for align in aligns] for i in range(2))
    given = graph.attributes_of(aligns[0])
    hidden = {k: v for k, v in given.items() if k.startswith("__")}
    hidden.update((k, v) for k, v in graph.attributes_of(number).items() if k.startswith("__"))
    own: dict[str, Any] = {k: v for k, v in given.items() if k not in hidden}
    own["spatial_scale"] = [graph.attributes_of(align)["spatial_scale"] for align in aligns]
    lists = mx.sym.concat(*rois, dim=0, name=f"{name}_lists")
    return nd.PyramidROIAlign(maps, lists, **own, assignment="given", name=name, attr=hidden)


def _largest_sums(graph: Graph) -> dict[int, list[int]]:
    """The sums that one operator can replace, and the ROIAligns that they add, in their order."""
    users = Counter(place.node for node in graph.nodes for place in node["inputs"])
    users.update(place.node for place in graph.heads)
    forms = _forms(graph)
    added: dict[int, list[int]] = {}
    for number, node in enumerate(graph.nodes):
        if node["op"] == _ALIGN and len(node["inputs"]) == 2:
            added[number] = [number]
        elif node["op"] in _SUMS:
            aligns: list[int] = []
            for place in node["inputs"]:
                more = added.get(place.node, ()) if users[place.node] == 1 else ()
                aligns += more
                if not more or len(aligns) > _MAX_MAPS:
                    break
            else:
                if _are_alike(graph, aligns, forms):
                    added[number] = aligns
    largest: dict[int, list[int]] = {}
    inside: set[int] = set()
    for number in reversed(range(len(graph.nodes))):
        if graph.nodes[number]["op"] not in _SUMS:
            continue
        if number not in inside:
            aligns = added.get(number, [])
            groups = {graph.attributes_of(n).get("__ctx_group__") for n in (number, *aligns)}
            if len(aligns) < 2 or len(groups) > 1:
                continue
            largest[number] = aligns
        inside.update(place.node for place in graph.nodes[number]["inputs"])
    return largest


def _are_alike(graph: Graph, aligns: list[int], forms: list[int]) -> bool:
    """Whether one operator can pool for all, and each has a map and boxes of its own."""
    common = [
        {key: value for key, value in graph.attributes_of(align).items() if key != "spatial_scale"}
        for align in aligns
    ]
    sources = [_source(graph, align, i) for i in range(2) for align in aligns]
    # One operator takes boxes of one type and one form.
    rois = {(forms[place.node], place.output) for place in sources[len(aligns) :]}
    is_common = all(attributes == common[0] for attributes in common)
    return is_common and len(rois) == 1 and len({*sources}) == len(sources)


def _forms(graph: Graph) -> list[int]:
    """A number for each node; outputs of nodes with the same number are alike in type and shape.

    Such nodes compute the same of the same variables, except for numbers that they add, compare
    with and so on.
    """
    known: dict[tuple, int] = {}
    forms: list[int] = []
    for number, node in enumerate(graph.nodes):
        key: tuple = (number,)
        if node["op"] != "null" and "subgraphs" not in node:
            ignored = "scalar" if node["op"].endswith("_scalar") else ""
            given = sorted(graph.attributes_of(number).items())
            own = tuple((k, v) for k, v in given if k != ignored and not k.startswith("__"))
            inputs = tuple((forms[place.node], place.output) for place in node["inputs"])
            key = node["op"], own, inputs
        forms.append(known.setdefault(key, len(known)))
    return forms


def _source(graph: Graph, align: int, i: int) -> Place:
    """An input of a ROIAlign, without the guard."""
    place = graph.nodes[align]["inputs"][i]
    node = graph.nodes[place.node]
    name = f"{graph.nodes[align]['name']}_{('data', 'rois')[i]}"
    is_guard = node["op"] in _GUARDS and node["name"] == name
    return node["inputs"][0] if is_guard else place
