# SPDX-License-Identifier: Apache-2.0
"""Chooses the layout of maps.

The operators of this package need NCHW, called MXNet's layout. MXNet's own Convolution computes in
the blocked layouts of oneDNN.
"""

from __future__ import annotations

import math
from typing import Collection, NamedTuple

from ..bridge.symbol_json import NodeEntry
from ..library import build_info
from . import gemm
from .graph import SUMS, InferenceGraph
from .layers import pools_maxima

#: Operators of MXNet that read and write the layouts of oneDNN as well. All others need MXNet's.
_ANY_LAYOUT_TEXT = """
Activation BatchNorm BlockGrad Concat Deconvolution Dropout LRN LeakyReLU Pooling _copy clip relu
"""
ANY_LAYOUT = frozenset(_ANY_LAYOUT_TEXT.split()).union(SUMS)


class _Costs(NamedTuple):
    """What the layouts cost on a processor. Only ratios of these numbers matter."""

    #: GFLOP/s of GemmConvolution and of oneDNN's convolution.
    gemm_speed: float
    onednn_speed: float
    #: DepthwiseConvolution: nanoseconds of a map, and more for each output; and oneDNN's time as a
    #: fraction of that.
    depthwise_map: float
    depthwise_output: float
    onednn_depthwise: float
    #: Nanoseconds of a number whose layout is changed; in maps of more numbers than `large_map`,
    #: by direction.
    change: float
    large_map: int
    large_to_onednns: float
    large_to_mxnets: float
    #: Extra nanoseconds per output element of an operator in MXNet's layout, compared with oneDNN's
    #: layouts; negative where MXNet's layout is faster. `_kind` returns the keys.
    slower: dict[str, float]


#: Of one core of an EPYC of Zen 4 with AVX-512, by python -m benchmarks.gemm; for SSE2 and NEON as
#: well. The ratio of the estimates was within a tenth of the measured one for ten of 11
#: classifiers, not for DenseNet. This package's Concat was not measured there; MXNet's was.
_COSTS = _Costs(
    gemm_speed=100,
    onednn_speed=107,
    depthwise_map=400,
    depthwise_output=1.0,
    onednn_depthwise=0.5,
    change=0.8,
    large_map=1 << 20,
    large_to_onednns=2.3,
    large_to_mxnets=2.3,
    slower={
        "Concat of this package": 1.5,
        "Concat": 1.5,
        "BatchNorm": 1.0,
        "Deconvolution": 1.6,
    },
)
#: Of one core of Zen 3 with AVX2, partly from networks that were converted in either way. By
#: python -m benchmarks.inference_zoo --layouts, 16 of 20 networks get the faster one
#: (docs/results/inference.md).
_COSTS_OF_AVX2 = _Costs(
    gemm_speed=72,
    onednn_speed=80,
    depthwise_map=500,
    depthwise_output=1.6,
    onednn_depthwise=0.45,
    change=0.75,
    large_map=1 << 22,
    large_to_onednns=0.6,
    large_to_mxnets=3.2,
    slower={
        "Concat of this package": -2.0,
        "Concat": 1.5,
        "BatchNorm": 2.1,
        "Deconvolution": 1.6,
        "max pooling of this package": -2.0,
        "Pooling": 25.0,
    },
)
#: GFLOP/s of oneDNN for a group of fewer channels than a register has lanes.
_ONEDNN_GROUPED_SPEED = 43
#: At ratios of the estimates this close, MXNet's layout is chosen: oneDNN keeps second copies of
#: weights and maps (Faster R-CNN FPN takes 1730 MiB with them, 1450 in MXNet's layout).
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
    MXNet's layout is taken, which suits large maps.
    """
    shapes = graph.shapes()
    if not shapes:
        return True
    nchw, onednn = estimates(graph, layers, shapes)
    return nchw <= _TIE * onednn


def estimates(
    graph: InferenceGraph, layers: Collection[int], shapes: dict[NodeEntry, tuple[int, ...]]
) -> tuple[float, float]:
    """Nanoseconds of the work that depends on the layout: in NCHW, and in the layouts of oneDNN."""
    costs = _COSTS_OF_AVX2 if build_info()["simd"] == "avx2" else _COSTS
    is_of_network = graph.is_of_network()
    sizes = {entry: math.prod(shape) for entry, shape in shapes.items()}

    def change(entry: NodeEntry, large: float) -> float:
        size = sizes.get(entry, 0)
        return size * (large if size > costs.large_map else costs.change)

    nchw = onednn = 0.0
    in_onednns = maps_of_onednn(graph, layers)
    for number in graph.needed():
        node, out = graph.nodes[number], NodeEntry(number, 0)
        if number in layers:
            data, weight = node["inputs"][:2]
            layer_nchw, layer_onednn = _times(shapes[data], shapes[weight], shapes[out], costs)
            nchw, onednn = nchw + layer_nchw, onednn + layer_onednn
            reads_any_layout = shapes[data][1] <= _FEW_CHANNELS
            if not reads_any_layout and data not in in_onednns:
                onednn += change(data, costs.large_to_onednns)
        elif out in in_onednns:
            nchw += sizes.get(out, 0) * costs.slower.get(_kind(graph, number, is_of_network), 0)
            changed = [entry for entry in node["inputs"] if entry not in in_onednns]
            onednn += sum(change(entry, costs.large_to_onednns) for entry in changed)
        else:
            changed = [entry for entry in node["inputs"] if entry in in_onednns]
            onednn += sum(change(entry, costs.large_to_mxnets) for entry in changed)
    return nchw, onednn


def _kind(graph: InferenceGraph, number: int, is_of_network: bool) -> str:
    """An operator's name in `_Costs.slower`, by what replaces it in MXNet's layout."""
    op = graph.nodes[number]["op"]
    if op == "Concat" and is_of_network:
        return "Concat of this package"
    return "max pooling of this package" if pools_maxima(graph, number) else op


def _times(
    data: tuple[int, ...],
    weight: tuple[int, ...],
    out: tuple[int, ...],
    costs: _Costs,
) -> tuple[float, float]:
    """Nanoseconds of a convolution of this package in NCHW, and of oneDNN in its own layout."""
    depth, groups = math.prod(weight[1:]), max(data[1] // max(weight[1], 1), 1)
    images, filters, outputs = out[0], out[1], math.prod(out[2:])
    products = images * filters * outputs * depth
    if weight[1] == 1 < groups:
        nchw = images * filters * (costs.depthwise_map + costs.depthwise_output * outputs)
        return nchw, nchw * costs.onednn_depthwise
    rows = groups * math.ceil(filters / groups / gemm.PANEL) * gemm.PANEL
    lanes = math.ceil(outputs / _LANES) * _LANES
    is_narrow = groups > 1 and weight[1] < _LANES
    # A product and its addition are two operations.
    return (
        images * rows * lanes * depth * 2 / costs.gemm_speed,
        products * 2 / (_ONEDNN_GROUPED_SPEED if is_narrow else costs.onednn_speed),
    )
