# SPDX-License-Identifier: Apache-2.0
"""The pass that folds batch normalisation into the layer before it."""

from __future__ import annotations

import collections
import re

import numpy as np
import onnx
from onnx import helper

from ...batch_norm import fold
from ..graph import OnnxGraph

#: Operators with a weight and a bias that a BatchNormalization can be folded into.
_LAYERS = {"Conv", "ConvTranspose", "Gemm"}


def fold_batch_norms(graph: OnnxGraph, outputs: list[str]) -> None:
    """Fold each BatchNormalization into the weights of a layer that has no other consumer."""
    consumers = collections.Counter(outputs)
    for node in graph.nodes:
        consumers.update(node.input)
    producers = {name: node for node in graph.nodes for name in node.output}
    kept = []
    for node in graph.nodes:
        layer = producers.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        parts = (
            _fold_parameters(graph, layer, node)
            if layer and consumers[layer.output[0]] == 1
            else None
        )
        if layer is None or parts is None:
            kept.append(node)
            continue
        if len(layer.input) == 2:
            bias = re.sub("(_weight)?$", "_bias", layer.input[1], count=1)
            layer.input.append(graph.constant(parts[1], bias).name)
            consumers[layer.input[2]] = 1
        layer.input[1:] = [
            _set_constant(graph, name, value, consumers)
            for name, value in zip(layer.input[1:], parts)
        ]
        layer.output[0] = node.output[0]
        producers[node.output[0]] = layer
    graph.nodes = kept


def _set_constant(
    graph: OnnxGraph, name: str, value: np.ndarray, consumers: collections.Counter
) -> str:
    """Give a layer's constant a new value, and return its name.

    A constant that other nodes read as well keeps its value; the layer gets a new one.
    """
    if consumers[name] != 1:
        name = graph.constant(value, name).name
        consumers[name] = 1
    graph.constants[name] = value
    return name


def _fold_parameters(
    graph: OnnxGraph, layer: onnx.NodeProto, norm: onnx.NodeProto
) -> tuple[np.ndarray, np.ndarray] | None:
    """Weight and bias of a layer with its normalisation.

    None if it is another operator, its weights are computed, or the result would be inexact.
    """
    names = [*layer.input[1:], *norm.input[1:]]
    if layer.op_type not in _LAYERS or not graph.constants.keys() >= set(names):
        return None
    weight, *bias = (graph.constants[name] for name in layer.input[1:])
    gamma, beta, mean, variance = (graph.constants[name] for name in norm.input[1:])
    # As `fold` expects: (groups, inputs, outputs of a group, kernel cells). The first axis of
    # a Conv or Gemm counts outputs, and each output is a group here. In a ConvTranspose it counts
    # the inputs of all groups.
    grouped_shape = (len(weight), 1, 1, weight[0].size)
    if layer.op_type == "ConvTranspose":
        groups = helper.get_node_attr_value(layer, "group")
        grouped_shape = (groups, len(weight) // groups, weight.shape[1], weight[0, 0].size)
    epsilon = helper.get_node_attr_value(norm, "epsilon")
    grouped, old_bias = weight.reshape(grouped_shape), bias[0] if bias else 0
    parts = fold(grouped, old_bias, gamma, beta, mean, variance, epsilon)
    return parts and (parts[0].reshape(weight.shape), parts[1])
