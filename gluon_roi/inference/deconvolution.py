# SPDX-License-Identifier: Apache-2.0
"""Computes deconvolutions whose kernels do not overlap as 1 x 1 convolutions."""

from __future__ import annotations

import numpy as np

from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .layers import bias_of, pair


def replace_deconvolutions(graph: InferenceGraph) -> int:
    """Replace each Deconvolution whose kernel is as large as its stride; return how many.

    Each cell of its input makes kernel x kernel cells of the output, to which no other cell adds. A
    1 x 1 convolution computes them as channels, and depth_to_space arranges these channels.
    """
    made: dict[tuple, tuple[NodeEntry, NodeEntry]] = {}
    count = 0
    for number in graph.needed():
        node = graph.nodes[number]
        if node["op"] != "Deconvolution" or not _tiles_its_output(graph, number):
            continue
        side = graph.sizes(number, "kernel")[0]
        layer = tuple(node["inputs"][1:])
        if layer not in made:
            weight, bias = graph.value(layer[0]), bias_of(graph, number)
            if weight is None or bias is None or weight.dtype != np.float32:
                continue
            # (inputs, outputs, side, side) -> (side * side * outputs, inputs, 1, 1)
            rows = weight.transpose(2, 3, 1, 0).reshape(-1, len(weight), 1, 1)
            made[layer] = (
                graph.constant(f"{node['name']}_cells_weight", np.ascontiguousarray(rows)),
                graph.constant(f"{node['name']}_cells_bias", np.tile(bias, side * side)),
            )
        filters = graph.integer(number, "num_filter") * side * side
        cells = graph.node(
            "Convolution",
            f"{node['name']}_cells",
            [node["inputs"][0], *made[layer]],
            kernel=(1, 1),
            num_filter=filters,
            no_bias=False,
        )
        graph.replace(
            NodeEntry(number, 0), graph.node("depth_to_space", "", [cells], block_size=side)
        )
        count += 1
    return count


def _tiles_its_output(graph: InferenceGraph, number: int) -> bool:
    """Whether a Deconvolution's kernels touch but do not overlap."""
    kernel = graph.sizes(number, "kernel")
    return (
        len(kernel) == 2
        and kernel[0] == kernel[1]
        and kernel == pair(graph, number, "stride", 1)
        and pair(graph, number, "pad", 0) == (0, 0)
        and pair(graph, number, "adj", 0) == (0, 0)
        and pair(graph, number, "dilate", 1) == (1, 1)
        and not any(graph.sizes(number, "target_shape"))
        and graph.integer(number, "num_group", 1) == 1
        and graph.attribute(number, "layout", "None") in ("None", "NCHW")
    )
