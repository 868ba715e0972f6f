# SPDX-License-Identifier: Apache-2.0
"""Deformable convolutions as one operator, which never writes the samples to memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bridge.guard import RANK_INPUT
from ..bridge.symbol_json import NodeEntry
from .epilogue import find_activation
from .gemm_layers import Layer, shared_layer
from .graph import InferenceGraph
from .layers import is_plain_convolution, pair

#: The operator's name in MXNet and in symbol files (src/ops/deformable_gemm_convolution.h).
OPERATOR = "_gluon_roi_DeformableGemmConvolution"
_SAMPLING = "_gluon_roi_DeformableSampling"
#: Attributes that both operators have. Sizes are a number for both axes, or a pair.
_SIZES = ("kernel", "stride", "dilate", "pad")
_OTHERS = ("num_deformable_group", "convention", "mask", RANK_INPUT)


def use_deformable_gemm(graph: InferenceGraph) -> int:
    """Replace samples and the 1 x 1 convolution that alone reads them; return how many.

    With the activation behind it. Convolutions in groups are left.
    """
    numbers = [number for number in graph.needed() if _multiplies_samples(graph, number)]
    if not numbers:
        return 0
    types, uses = graph.types(), graph.uses()
    layers: dict[tuple[NodeEntry, ...], Layer | None] = {}
    count = 0
    for number in numbers:
        node = graph.nodes[number]
        samples = node["inputs"][0]
        if types.get(NodeEntry(number, 0)) != np.float32 or len(uses.get(samples, ())) != 1:
            continue
        layer = shared_layer(graph, number, layers)
        if layer is None:
            continue
        sampled = graph.nodes[samples.node]["inputs"]
        # With RANK_INPUT, one more input follows.
        arrays = 3 if graph.flag(samples.node, "mask") else 2
        last, activation = find_activation(graph, uses, NodeEntry(number, 0))
        new = graph.node(
            OPERATOR,
            node["name"],
            [*sampled[:arrays], layer.weight, layer.bias, *sampled[arrays:]],
            num_filter=graph.attribute(number, "num_filter", "0"),
            **_sampling_attributes(graph, samples.node),
            **activation,
        )
        graph.replace(last, new, uses, types)
        count += 1
    return count


def _sampling_attributes(graph: InferenceGraph, number: int) -> dict[str, Any]:
    given = graph.nodes[number].get("attrs", {})
    attributes: dict[str, Any] = {name: given[name] for name in _OTHERS if name in given}
    for name in _SIZES:
        if name in given:
            size = graph.sizes(number, name)
            attributes[name] = size if len(size) == 2 else size * 2
    return attributes


def _multiplies_samples(graph: InferenceGraph, number: int) -> bool:
    """Whether a node multiplies the samples of a deformable convolution by a matrix."""
    if not is_plain_convolution(graph, number):
        return False
    samples = graph.nodes[number]["inputs"][0]
    return (
        graph.sizes(number, "kernel") == (1, 1)
        and pair(graph, number, "stride", 1) == (1, 1)
        and pair(graph, number, "pad", 0) == (0, 0)
        and graph.is_node(samples, _SAMPLING)
        and graph.attribute(samples.node, "layout", "map") == "columns"
    )
