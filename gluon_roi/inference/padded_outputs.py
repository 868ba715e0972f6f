# SPDX-License-Identifier: Apache-2.0
"""Pads the outputs of oneDNN's convolutions to blocks of 8."""

from __future__ import annotations

import numpy as np

from ..bridge.symbol_json import NodeEntry
from ..library import build_info
from .graph import OUTPUT, InferenceGraph
from .layers import bias_of, is_plain_convolution
from .layouts import ANY_LAYOUT

#: Outputs of a block of oneDNN's kernels for AVX2.
BLOCK = 8
#: Readers of a map that profit from oneDNN's layout. Copies do not.
_KEEP_LAYOUT = ANY_LAYOUT.union(["Convolution"]) - {"BlockGrad", "Dropout", "_copy"}


def pad_outputs(graph: InferenceGraph) -> int:
    """Add outputs with weights of zeros up to a multiple of 8, and slice the result.

    oneDNN's kernels for AVX2 compute blocks of 8 outputs, and it has slow kernels for layers whose
    last block is not full. (A 3 x 3 convolution of 512 to 18 maps of 38 x 50, the offsets of a
    deformable one, takes 16 ms, to 24 maps 6 ms. 16 layers with 1 to 1029 outputs take .24 to 1.01
    of the time.) A map stays as it is if oneDNN's layers read it, or what MXNet fuses with them:
    the slice gives it MXNet's layout. Other instruction sets were not measured. Returns the number
    of convolutions.
    """
    if build_info()["simd"] != "avx2":
        return 0
    types, uses = graph.types(), graph.uses()
    padded: dict[tuple[NodeEntry, ...], tuple[NodeEntry, NodeEntry]] = {}
    count = 0
    for number in graph.needed():
        node, out = graph.nodes[number], NodeEntry(number, 0)
        if not is_plain_convolution(graph, number):
            continue
        filters = graph.integer(number, "num_filter")
        more = -filters % BLOCK
        readers = {graph.nodes[use.node]["op"] for use in uses.get(out, []) if use != OUTPUT}
        if more == 0 or readers & _KEEP_LAYOUT:
            continue
        data, *weights = node["inputs"]
        layer = tuple(weights)
        if layer not in padded:
            weight, bias = graph.value(layer[0]), bias_of(graph, number)
            if types.get(data) != np.float32 or weight is None or bias is None:
                continue
            padded[layer] = (
                graph.constant(f"{node['name']}_padded_weight", _padded(weight, more)),
                graph.constant(f"{node['name']}_padded_bias", _padded(bias, more)),
            )
        attributes = {**node["attrs"], "num_filter": filters + more, "no_bias": False}
        wide = graph.node(
            "Convolution", f"{node['name']}_padded", [data, *padded[layer]], **attributes
        )
        part = graph.node("slice_axis", node["name"], [wide], axis=1, begin=0, end=filters)
        graph.replace(out, part, uses, types)
        count += 1
    return count


def _padded(values: np.ndarray, more: int) -> np.ndarray:
    """With zeros behind the last output."""
    return np.concatenate([values, np.zeros((more, *values.shape[1:]), values.dtype)])
