# SPDX-License-Identifier: Apache-2.0
"""What the passes ask of a layer with weights."""

from __future__ import annotations

import mxnet as mx
import numpy as np

from .graph import InferenceGraph

#: Layers that MXNet's fusion can fuse with what follows.
FUSABLE_LAYERS = ("Convolution", "FullyConnected")
#: Whether this MXNet forgets the bias of a Deconvolution, see gluon_roi/switch/deconvolution.py.
FORGETS_BIAS = mx.__version__ < "1.9"
#: Layers into which BatchNorm is folded.
FOLDABLE_LAYERS = FUSABLE_LAYERS if FORGETS_BIAS else (*FUSABLE_LAYERS, "Deconvolution")


def bias_of(graph: InferenceGraph, layer: int) -> np.ndarray | None:
    """The bias of a Convolution, Deconvolution or FullyConnected, zeros if it has none.

    None if it is not a parameter.
    """
    inputs = graph.nodes[layer]["inputs"]
    if len(inputs) > 2:
        return graph.value(inputs[2])
    outputs = graph.integer(layer, "num_filter", graph.integer(layer, "num_hidden"))
    return np.zeros(outputs, np.float32)


def has_maps(graph: InferenceGraph, number: int) -> bool:
    """Whether a layer with a kernel has two spatial axes, channels first."""
    is_channels_first = graph.attribute(number, "layout", "None") in ("None", "NCHW")
    return is_channels_first and len(graph.sizes(number, "kernel")) == 2


def convolves_maps(graph: InferenceGraph, number: int) -> bool:
    """Whether a node is a Convolution of two spatial axes, channels first."""
    return graph.nodes[number]["op"] == "Convolution" and has_maps(graph, number)


def pools_maxima(graph: InferenceGraph, number: int) -> bool:
    """Whether a node is a max Pooling that MaxPooling can replace."""
    return (
        graph.nodes[number]["op"] == "Pooling"
        and graph.attribute(number, "pool_type", "max") == "max"
        and has_maps(graph, number)
        and not graph.flag(number, "global_pool")
        and graph.attribute(number, "pooling_convention", "valid") in ("valid", "full")
    )


def is_plain_convolution(graph: InferenceGraph, number: int) -> bool:
    """Whether a node is a Convolution of two spatial axes, channels first, in one group."""
    return convolves_maps(graph, number) and graph.integer(number, "num_group", 1) == 1


def pair(graph: InferenceGraph, number: int, name: str, default: int) -> tuple[int, ...]:
    """stride, pad or dilate of a layer of two axes; an empty tuple stands for the default."""
    return graph.sizes(number, name) or (default, default)
