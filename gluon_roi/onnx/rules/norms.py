# SPDX-License-Identifier: Apache-2.0
"""MXNet's normalisations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Graph, Node
from ..registry import rule


@rule("BatchNorm", "_contrib_SyncBatchNorm")
def _batch_norm(g: Graph, node: Node) -> str:
    node.accept("use_global_stats")  # always so outside of training
    node.accept("ndev", "key")  # of SyncBatchNorm
    node.expect("output_mean_var", False)
    axis = node.axis("axis", 1)
    data, gamma, beta, mean, variance = node.inputs
    if node.get("fix_gamma", True):
        gamma = g.constant(np.ones(node.shapes[1], node.dtypes[1]))
    names = [gamma, beta, mean, variance]
    eps = float(node.get("eps", 1e-3))
    if axis == 1:
        return g("BatchNormalization", data, *names, epsilon=eps)
    front = list(range(node.rank))
    front[1], front[axis] = axis, 1
    out = g("BatchNormalization", g("Transpose", data, perm=front), *names, epsilon=eps)
    return g("Transpose", out, perm=front)


@rule("InstanceNorm")
def _instance_norm(g: Graph, node: Node) -> str:
    return g("InstanceNormalization", *node.inputs, epsilon=float(node.get("eps", 1e-3)))


@rule("GroupNorm")
def _group_norm(g: Graph, node: Node) -> str:
    """InstanceNormalization of groups of channels; gamma and beta are of groups, too."""
    node.expect("output_mean_var", False)
    data, gamma, beta = node.inputs
    apart = g.reshape(data, g.size(data, 0), node.get("num_groups", 1), -1)
    eps = float(node.get("eps", 1e-5))
    return g("Reshape", g("InstanceNormalization", apart, gamma, beta, epsilon=eps), g.shape(data))


@rule("LayerNorm")
def _layer_norm(g: Graph, node: Node) -> str:
    """Normalises along one axis.

    ::

        data - its mean --+-> squares -> mean + eps -> Sqrt --+
                          +-----------------------------------+-> Div -> * gamma + beta
    """
    node.expect("output_mean_var", False)
    data, gamma, beta = node.inputs
    axis = node.axis("axis", -1)
    centred = g("Sub", data, g("ReduceMean", data, axes=[axis]))
    variance = g("ReduceMean", g("Mul", centred, centred), axes=[axis])
    out = g("Div", centred, _root(g, variance, node.get("eps", 1e-5), node.dtype))
    along = (-1, *[1] * (node.rank - 1 - axis))
    return g("Add", g("Mul", out, g.reshape(gamma, *along)), g.reshape(beta, *along))


@rule("L2Normalization")
def _l2_normalization(g: Graph, node: Node) -> str:
    node.expect("mode", "instance", "channel", "spatial")
    first, end = {"instance": (1, node.rank), "channel": (1, 2), "spatial": (2, node.rank)}[
        node.get("mode", "instance")
    ]
    squares = g("Mul", node.inputs[0], node.inputs[0])
    total = g("ReduceSum", squares, np.arange(first, end), keepdims=1)
    return g("Div", node.inputs[0], _root(g, total, node.get("eps", 1e-10), node.dtype))


def _root(g: Graph, value: str, eps: Any, dtype: Any) -> str:
    return g("Sqrt", g("Add", value, np.array(eps, dtype)))


@rule("LRN")
def _local_response(g: Graph, node: Node) -> str:
    return g(
        "LRN",
        node.inputs[0],
        size=node.get("nsize"),
        alpha=float(node.get("alpha", 1e-4)),
        beta=float(node.get("beta", 0.75)),
        bias=float(node.get("knorm", 2.0)),
    )
