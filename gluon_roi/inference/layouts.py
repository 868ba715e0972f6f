# SPDX-License-Identifier: Apache-2.0
"""Chooses the layout of maps.

The operators of this package need NCHW, called MXNet's layout. MXNet's own Convolution computes in
the blocked layouts of oneDNN.
"""

from __future__ import annotations

import math
from typing import Collection

from ..bridge.symbol_json import NodeEntry
from ..library import build_info
from . import gemm
from .graph import SUMS, InferenceGraph

#: Operators of MXNet that read and write the layouts of oneDNN as well. All others need MXNet's.
_ANY_LAYOUT_TEXT = """
Activation BatchNorm BlockGrad Concat Deconvolution Dropout LRN LeakyReLU Pooling _copy clip relu
"""
ANY_LAYOUT = frozenset(_ANY_LAYOUT_TEXT.split()).union(SUMS)

# Measured by python -m benchmarks.gemm on one core of an EPYC of Zen 4 with AVX-512, and the speeds
# of AVX2 on one core of Zen 3. Only ratios of these numbers matter.
#: GFLOP/s of GemmConvolution and of oneDNN's convolution, also for SSE2 and NEON.
_SPEEDS = (100, 107)
#: GFLOP/s of both with AVX2.
_SPEEDS_OF_AVX2 = (72, 80)
#: GFLOP/s of oneDNN for a group of fewer channels than a register has lanes.
_ONEDNN_GROUPED_SPEED = 43
# Nanoseconds:
#: Of a depthwise map, and of an output of it. oneDNN takes half of that.
_DEPTHWISE_MAP, _DEPTHWISE_OUTPUT = 400.0, 1.0
#: Of a number whose layout is changed; above, if the map does not fit into the cache.
_CHANGE, _LARGE_CHANGE, _LARGE = 0.8, 2.3, 1 << 20
#: By how much longer MXNet's operators take for a number in MXNet's layout.
_SLOWER_IN_MXNETS_LAYOUT = {"Concat": 1.5, "BatchNorm": 1.0, "Deconvolution": 1.6}
#: On AVX-512 the ratio of the estimates was within a tenth of the measured one for ten of 11
#: classifiers, not for DenseNet. At ratios this close, MXNet's layout is chosen: it spares second
#: copies.
_TIE = 1.05
#: Lanes of a block of GemmConvolution.
_LANES = 16
#: The first layer of a network reads its image in any layout.
_FEW_CHANNELS = 4


def mxnets_layers(graph: InferenceGraph) -> set[int]:
    """The convolutions that are still operators of MXNet, which oneDNN computes."""
    layers = ("Convolution", "Deconvolution")
    return {number for number in graph.needed() if graph.nodes[number]["op"] in layers}


def maps_of_onednn(graph: InferenceGraph, layers: Collection[int]) -> set[NodeEntry]:
    """The maps that have a layout of oneDNN, if these nodes are layers of oneDNN."""
    found: set[NodeEntry] = set()
    for number in graph.needed():
        node = graph.nodes[number]
        passes_on = node["op"] in ANY_LAYOUT and not found.isdisjoint(node["inputs"])
        if number in layers or passes_on:
            found.add(NodeEntry(number, 0))
    return found


def mxnets_layout_pays(graph: InferenceGraph, layers: Collection[int]) -> bool:
    """Whether a graph is faster if all of these convolutions keep MXNet's layout.

    One by one, the convolutions of oneDNN are a little faster in their own layouts, and much faster
    on small maps. But between them and operators that need MXNet's layout, such as those of this
    package, maps are laid out anew. Both are estimated for the sizes of the example. Without these
    it is taken for a detector of large maps, which MXNet's layout suits.
    """
    shapes = graph.shapes()
    if not shapes:
        return True
    nchw, onednn = _estimates(graph, layers, shapes)
    return nchw <= _TIE * onednn


def _estimates(
    graph: InferenceGraph, layers: Collection[int], shapes: dict[NodeEntry, tuple[int, ...]]
) -> tuple[float, float]:
    """Nanoseconds of the work that depends on the layout: in NCHW, and in the layouts of oneDNN."""
    speeds = _SPEEDS_OF_AVX2 if build_info()["simd"] == "avx2" else _SPEEDS
    sizes = {entry: math.prod(shape) for entry, shape in shapes.items()}

    def change(entry: NodeEntry) -> float:
        size = sizes.get(entry, 0)
        return size * (_LARGE_CHANGE if size > _LARGE else _CHANGE)

    nchw = onednn = 0.0
    in_onednns = maps_of_onednn(graph, layers)
    for number in graph.needed():
        node, out = graph.nodes[number], NodeEntry(number, 0)
        if number in layers:
            data, weight = node["inputs"][:2]
            layer_nchw, layer_onednn = _times(shapes[data], shapes[weight], shapes[out], speeds)
            nchw, onednn = nchw + layer_nchw, onednn + layer_onednn
            reads_any_layout = shapes[data][1] <= _FEW_CHANNELS
            changed = [] if reads_any_layout or data in in_onednns else [data]
        elif out in in_onednns:
            nchw += sizes.get(out, 0) * _SLOWER_IN_MXNETS_LAYOUT.get(node["op"], 0)
            changed = [entry for entry in node["inputs"] if entry not in in_onednns]
        else:
            changed = [entry for entry in node["inputs"] if entry in in_onednns]
        onednn += sum(map(change, changed))
    return nchw, onednn


def _times(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    out: tuple[int, ...],
    speeds: tuple[float, float],
) -> tuple[float, float]:
    """Nanoseconds of a convolution of this package in NCHW, and of oneDNN in its own layout."""
    depth, groups = math.prod(weight[1:]), max(data[1] // max(weight[1], 1), 1)
    images, filters, outputs = out[0], out[1], math.prod(out[2:])
    products = images * filters * outputs * depth
    if weight[1] == 1 < groups:
        nchw = images * filters * (_DEPTHWISE_MAP + _DEPTHWISE_OUTPUT * outputs)
        return nchw, nchw / 2
    rows = groups * math.ceil(filters / groups / gemm.PANEL) * gemm.PANEL
    lanes = math.ceil(outputs / _LANES) * _LANES
    is_narrow = groups > 1 and weight[1] < _LANES
    # A product and its addition are two operations.
    nchw_speed, onednn_speed = speeds
    return (
        images * rows * lanes * depth * 2 / nchw_speed,
        products * 2 / (_ONEDNN_GROUPED_SPEED if is_narrow else onednn_speed),
    )
