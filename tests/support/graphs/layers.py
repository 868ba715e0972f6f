# SPDX-License-Identifier: Apache-2.0
"""Layers of networks."""

from __future__ import annotations

import numpy as np

from .growth import Call, Graph, Tensor, maker


@maker("FullyConnected")
def _fully_connected(g: Graph, x: Tensor) -> Call | None:
    flatten, hidden, bias = g.coin(), g.size(), g.coin()
    width = int(np.prod(x.shape[1:])) if flatten else x.shape[-1]
    weights = [g.input(hidden, width, dtype=x.dtype), *[g.input(hidden, dtype=x.dtype)] * bias]
    return [x, *weights], {"num_hidden": hidden, "flatten": flatten, "no_bias": not bias}


def windows(g: Graph, x: Tensor) -> dict | None:
    """Kernel, stride and padding for the spatial axes of x; those of 1 may be left out."""
    axes = x.rank - 2
    if axes not in (1, 2, 3):
        return None
    kernel = tuple(g.size(1, 3) for _ in range(axes))
    found = {"kernel": kernel}
    if g.coin():
        found["stride"] = tuple(g.size(1, 3) for _ in range(axes))
    if g.coin():
        found["pad"] = tuple(g.size(0, size - 1) for size in kernel)
    return found


@maker("Convolution")
def _convolution(g: Graph, x: Tensor) -> Call | None:
    attributes = windows(g, x)
    if attributes is None or not x.is_float:
        return None
    channels, bias = x.shape[1], g.coin()
    groups = g.among(d for d in range(1, channels + 1) if channels % d == 0)
    filters = groups * g.size(1, 2)
    if g.coin(0.3):
        attributes["dilate"] = tuple(g.size(1, 2) for _ in attributes["kernel"])
        if g.coin():  # a map that such a kernel fits into
            x = g.input(*x.shape[:2], *(g.size(5, 7) for _ in x.shape[2:]), dtype=x.dtype)
    weight = g.input(filters, channels // groups, *attributes["kernel"], dtype=x.dtype)
    attributes.update(num_filter=filters, num_group=groups, no_bias=not bias)
    return [x, weight, *[g.input(filters, dtype=x.dtype)] * bias], attributes


@maker("Deconvolution")
def _deconvolution(g: Graph, x: Tensor) -> Call | None:
    attributes = windows(g, x)
    if attributes is None or not x.is_float:  # MXNet writes beyond arrays of integers
        return None
    channels, bias = x.shape[1], g.coin()
    groups = g.among(d for d in range(1, channels + 1) if channels % d == 0)
    each = g.size(1, 2)
    if g.coin(0.3):
        strides = attributes.get("stride", (1,) * len(attributes["kernel"]))
        attributes["adj"] = tuple(g.size(0, stride - 1) for stride in strides)
    weight = g.input(channels, each, *attributes["kernel"], dtype=x.dtype)
    attributes.update(num_filter=each * groups, num_group=groups, no_bias=not bias)
    return [x, weight, *[g.input(each * groups, dtype=x.dtype)] * bias], attributes


@maker("BatchNorm", "_contrib_SyncBatchNorm")
def _batch_norm(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 2 or x.dtype != "float32":
        return None
    axis = g.among([1, g.axis(x.rank)])
    size = x.shape[axis]
    states = [g.input(size, low=-24 if number < 3 else 1) for number in range(4)]
    return [x, *states], {
        "axis": axis,
        "eps": g.among([1e-3, 1e-5, 1e-7]),
        "fix_gamma": g.coin(),
        "use_global_stats": g.coin(),
    }


@maker("GroupNorm")
def _group_norm(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 3 or x.dtype != "float32":
        return None
    groups = g.among(d for d in range(1, x.shape[1] + 1) if x.shape[1] % d == 0)
    return [x, g.input(groups), g.input(groups)], {
        "num_groups": groups,
        "eps": g.among([1e-3, 1e-1]),
    }


@maker("InstanceNorm")
def _instance_norm(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 3 or x.dtype != "float32":
        return None
    return [x, g.input(x.shape[1]), g.input(x.shape[1])], {"eps": g.among([1e-3, 1e-1])}


@maker("LayerNorm")
def _layer_norm(g: Graph, x: Tensor) -> Call | None:
    if x.dtype != "float32":
        return None
    axis = g.axis(x.rank)
    size = x.shape[axis]
    return [x, g.input(size), g.input(size)], {"axis": axis, "eps": g.among([1e-5, 1e-1])}


@maker("L2Normalization")
def _l2_normalization(g: Graph, x: Tensor) -> Call | None:
    if not x.is_float:
        return None
    mode = g.among(["instance", "channel", "spatial"] if x.rank > 2 else ["instance"])
    return [x], {"mode": mode, "eps": g.among([1e-10, 1e-2])}


@maker("LRN")
def _local_response(g: Graph, x: Tensor) -> Call | None:
    if x.dtype != "float32":
        return None
    return [x], {"nsize": g.among([1, 3, 5]), "alpha": 0.5, "beta": 0.75, "knorm": 2.0}


@maker("Activation")
def _activation(g: Graph, x: Tensor) -> Call | None:
    return [x], {"act_type": g.among(["relu", "sigmoid", "tanh", "softrelu", "softsign"])}


@maker("LeakyReLU")
def _leaky_relu(g: Graph, x: Tensor) -> Call | None:
    kind = g.among(["leaky", "elu", "prelu", "selu", "gelu"])
    gamma = [g.input(g.among([1, x.shape[min(1, x.rank - 1)]]))] if kind == "prelu" else []
    return [x, *gamma], {"act_type": kind, "slope": g.among([0.25, 0.5])}


@maker("Pooling")
def _pooling(g: Graph, x: Tensor) -> Call | None:
    if g.coin():  # a map that is larger than the windows
        sizes = [g.size(4, 7) for _ in range(g.among([1, 2, 2, 2, 3]))]
        x = g.input(g.size(1, 2), g.size(1, 2), *sizes)
    attributes = windows(g, x)
    if attributes is None:
        return None
    attributes["pool_type"] = g.among(["max", "avg"])
    if g.coin(0.2):
        attributes["global_pool"] = True
    elif g.coin(0.2):
        attributes["pool_type"] = "sum"
    if g.coin():
        attributes["pooling_convention"] = "full"
    if x.rank == 3 and g.coin(0.3):
        attributes.update(pooling_convention="same", pad=(0, 0, 0))  # MXNet reads three
    if g.coin(0.3):
        attributes["count_include_pad"] = g.coin()
    return [x], attributes
