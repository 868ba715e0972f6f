# SPDX-License-Identifier: Apache-2.0
"""Gives convolutions that stay oneDNN's whole blocks of outputs."""

from __future__ import annotations

import numpy as np

from ..bridge.symbol_json import NodeEntry
from ..library import build_info
from .epilogue import find_epilogue
from .graph import InferenceGraph
from .layers import bias_of, is_plain_convolution

#: Outputs of a block of oneDNN's kernels for AVX2.
BLOCK = 8


def fill_blocks_of_outputs(graph: InferenceGraph) -> int:
    """Add outputs with weights of zeros up to a multiple of 8, which are cut off again.

    oneDNN's kernels for AVX2 compute blocks of 8 outputs, and it has slow ones for a rest. (A 3 x 3
    convolution of 512 to 18 maps of 38 x 50, the offsets of a deformable one, takes 16 ms, to 24
    maps 6 ms.) Layers with a sum or an activation behind them stay: the cut would keep MXNet from
    fusing these. Other instruction sets were not measured. Returns the number of convolutions.
    """
    if build_info()["simd"] != "avx2":
        return 0
    types, uses = graph.types(), graph.uses()
    made: dict[tuple[NodeEntry, ...], tuple[NodeEntry, NodeEntry]] = {}
    count = 0
    for number in graph.needed():
        node, out = graph.nodes[number], NodeEntry(number, 0)
        if not is_plain_convolution(graph, number):
            continue
        filters = graph.integer(number, "num_filter")
        if filters % BLOCK == 0:
            continue
        data, *layer = node["inputs"]
        if types.get(data) != np.float32 or find_epilogue(graph, uses, out).last != out:
            continue
        if tuple(layer) not in made:
            weight, bias = graph.value(layer[0]), bias_of(graph, number)
            if weight is None or bias is None or weight.dtype != np.float32:
                continue
            more = -filters % BLOCK
            made[tuple(layer)] = (
                graph.constant(f"{node['name']}_filled_weight", _filled(weight, more)),
                graph.constant(f"{node['name']}_filled_bias", _filled(bias, more)),
            )
        attributes = {**node["attrs"], "num_filter": filters + -filters % BLOCK, "no_bias": False}
        filled = graph.node(
            "Convolution", f"{node['name']}_filled", [data, *made[tuple(layer)]], **attributes
        )
        cut = graph.node("slice_axis", node["name"], [filled], axis=1, begin=0, end=filters)
        graph.replace(out, cut, uses, types)
        count += 1
    return count


def _filled(values: np.ndarray, more: int) -> np.ndarray:
    """With zeros behind the last output."""
    return np.concatenate([values, np.zeros((more, *values.shape[1:]), values.dtype)])
