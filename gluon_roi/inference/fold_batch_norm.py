# SPDX-License-Identifier: Apache-2.0
"""Folds BatchNorm into the weights of the layer before it."""

from __future__ import annotations

import numpy as np

from ..batch_norm import fold
from ..bridge.symbol_json import NodeEntry
from .graph import InferenceGraph
from .layers import FOLDABLE_LAYERS, bias_of

_EPSILON = "0.001"  # MXNet's default


def fold_batch_norms(graph: InferenceGraph) -> int:
    """Fold each BatchNorm that is the only reader of a layer; return how many.

    In inference BatchNorm multiplies each channel by a constant and adds another, which the layer
    before it, a Convolution, Deconvolution or FullyConnected, can do with its weights and its bias.
    """
    uses, types = graph.uses(), graph.types()
    # A layer that is applied several times shares its folded weights.
    folded: dict[tuple, tuple[NodeEntry, NodeEntry]] = {}
    count = 0
    for number in graph.needed():
        node = graph.nodes[number]
        if node["op"] != "BatchNorm" or graph.integer(number, "axis", 1) != 1:
            continue
        if any(entry.node == number and entry.output > 0 for entry in uses):
            continue  # its mean and variance are read
        source = node["inputs"][0]
        layer = graph.nodes[source.node]
        if not graph.is_node(source, *FOLDABLE_LAYERS):
            continue
        if len(uses.get(source, ())) != 1 or types.get(source) != np.float32:
            continue
        if not _has_channels_first(graph, source.node):
            continue
        epsilon = float(graph.attribute(number, "eps", _EPSILON))
        fix_gamma = graph.flag(number, "fix_gamma", True)
        key = (layer["op"], *layer["inputs"][1:], *node["inputs"][1:], epsilon, fix_gamma)
        # The folded weights of a layer may have been folded again, and dropped.
        if key not in folded or not all(map(graph.has_value, folded[key])):
            parts = _folded(graph, number, source.node)
            if parts is None:
                continue
            weight, bias = parts
            folded[key] = (
                graph.constant(f"{node['name']}_folded_weight", weight),
                graph.constant(f"{node['name']}_folded_bias", bias),
            )
        graph.set_inputs(source.node, [layer["inputs"][0], *folded[key]], uses)
        layer["attrs"] = {**layer.get("attrs", {}), "no_bias": "False"}
        graph.replace(NodeEntry(number, 0), source, uses)
        count += 1
    return count


def _has_channels_first(graph: InferenceGraph, number: int) -> bool:
    if graph.nodes[number]["op"] == "FullyConnected":
        return graph.flag(number, "flatten", True)
    return graph.attribute(number, "layout", "None") in ("None", "NCW", "NCHW", "NCDHW")


def _folded(graph: InferenceGraph, norm: int, layer: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Weight and bias of a layer with its BatchNorm; None if it depends on inputs or is inexact."""
    weight = graph.value(graph.nodes[layer]["inputs"][1])
    bias = bias_of(graph, layer)
    values = [graph.value(entry) for entry in graph.nodes[norm]["inputs"][1:5]]
    if weight is None or bias is None or any(value is None for value in values):
        return None
    gamma, beta, mean, variance = (np.asarray(value) for value in values)
    if graph.flag(norm, "fix_gamma", True):
        gamma = np.ones_like(gamma)
    epsilon = float(graph.attribute(norm, "eps", _EPSILON))
    # As `fold` expects: (groups, inputs, outputs of a group, cells).
    if graph.nodes[layer]["op"] == "Deconvolution":
        groups = graph.integer(layer, "num_group", 1)
        grouped = weight.reshape(groups, -1, weight.shape[1], int(np.prod(weight.shape[2:])))
    else:  # a group for each output
        grouped = weight.reshape(len(weight), 1, 1, -1)
    parts = fold(grouped, bias, gamma, beta, mean, variance, epsilon)
    return parts and (parts[0].reshape(weight.shape), parts[1])
