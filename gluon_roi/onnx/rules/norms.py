# SPDX-License-Identifier: Apache-2.0
"""MXNet's normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Node, OnnxGraph, Tensor
from ..registry import rule


@rule("BatchNorm", "_contrib_SyncBatchNorm")
def _batch_norm(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("use_global_stats")  # always true outside of training
    attributes: dict[str, Any] = {"epsilon": float(node.get("eps", 1e-3))}
    momentum = float(node.get("momentum", 0.9))
    if momentum != 0.9:  # ONNX's default; only training reads it
        attributes["momentum"] = momentum
    node.ignore("ndev", "key")  # of SyncBatchNorm
    node.expect("output_mean_var", False)
    axis = node.axis("axis", 1)
    if node.rank < 2:
        raise node.refusal(f"data of shape {node.shapes[0]} have no translation, expected a batch")
    node.expect_equal_sizes(axis, 1, 2, 3, 4)
    data, gamma, beta, mean, variance = node.inputs
    if node.get("fix_gamma", True):
        gamma = g("Expand", np.array(1, node.dtypes[1]), gamma.shape())
    names = [gamma, beta, mean, variance]
    if axis == 1:
        return g("BatchNormalization", data, *names, **attributes)
    order = list(range(node.rank))
    order[1], order[axis] = axis, 1
    out = g("BatchNormalization", data.transpose(*order), *names, **attributes)
    return out.transpose(*order)


@rule("InstanceNorm")
def _instance_norm(g: OnnxGraph, node: Node) -> Tensor:
    node.expect_equal_sizes(1, 1, 2)
    return g("InstanceNormalization", *node.inputs, epsilon=float(node.get("eps", 1e-3)))


@rule("GroupNorm")
def _group_norm(g: OnnxGraph, node: Node) -> Tensor:
    """InstanceNormalization of groups of channels; gamma and beta also have a value per group."""
    node.expect("output_mean_var", False)
    data, gamma, beta = node.inputs
    groups = node.get("num_groups", 1)
    for shape in node.shapes[1:]:
        if shape != (groups,):
            raise node.refusal(f"gamma or beta has shape {shape}, expected ({groups},)")
    grouped = data.reshape(data.size(0), groups, -1)
    eps = float(node.get("eps", 1e-5))
    out = g("InstanceNormalization", grouped, gamma, beta, epsilon=eps)
    return out.reshape_exactly(data.shape())


@rule("LayerNorm")
def _layer_norm(g: OnnxGraph, node: Node) -> Tensor:
    """Normalise along one axis.

    ::

        data - its mean --+-> squares -> mean + eps -> Sqrt --+
                          +-----------------------------------+-> Div -> * gamma + beta
    """
    node.expect("output_mean_var", False)
    data, gamma, beta = node.inputs
    axis = node.axis("axis", -1)
    centred = data - g("ReduceMean", data, axes=[axis])
    variance = g("ReduceMean", centred * centred, axes=[axis])
    out = centred / (variance + node.get("eps", 1e-5)).sqrt()
    along = (-1, *[1] * (node.rank - 1 - axis))
    return out * gamma.reshape(*along) + beta.reshape(*along)


@rule("L2Normalization")
def _l2_normalization(g: OnnxGraph, node: Node) -> Tensor:
    node.expect("mode", "instance", "channel", "spatial")
    first, end = {"instance": (1, node.rank), "channel": (1, 2), "spatial": (2, node.rank)}[
        node.get("mode", "instance")
    ]
    total = node.inputs[0] * node.inputs[0]
    if first < end:  # the instances of a vector are its elements
        total = g("ReduceSum", total, np.arange(first, end), keepdims=1)
    return node.inputs[0] / (total + node.get("eps", 1e-10)).sqrt()


@rule("LRN")
def _local_response(g: OnnxGraph, node: Node) -> Tensor:
    size, data = node.get("nsize"), node.inputs[0]
    if size % 2 == 0:
        raise node.refusal(f"nsize={size} has no translation, expected an odd number")
    if node.rank not in (2, 4):
        raise node.refusal(f"data of rank {node.rank} have no translation, expected 2 or 4")
    is_matrix = node.rank == 2  # the runtimes need a map
    out = g(
        "LRN",
        data.unsqueeze(2, 3) if is_matrix else data,
        size=size,
        alpha=float(node.get("alpha", 1e-4)),
        beta=float(node.get("beta", 0.75)),
        bias=float(node.get("knorm", 2.0)),
    )
    return out.squeeze(2, 3) if is_matrix else out
