# SPDX-License-Identifier: Apache-2.0
"""What is known of maps in every call, whatever the sizes, batches and types of its inputs."""

from __future__ import annotations

from typing import Hashable, NamedTuple

import numpy as np

from ..bridge.symbol_json import NodeEntry
from . import deformable, gemm, max_pooling, winograd
from .graph import InferenceGraph
from .layers import convolves_maps, has_maps, pair

#: Operators whose output has the shape of their first input, and is float32 if that is.
_ELEMENTWISE = """
Activation BatchNorm BlockGrad Dropout GroupNorm InstanceNorm L2Normalization LRN LeakyReLU
_contrib_BatchNormWithReLU _contrib_SyncBatchNorm _copy _div_scalar _maximum_scalar
_minimum_scalar _minus_scalar _mul_scalar _npi_add_scalar _npi_multiply_scalar
_npi_subtract_scalar _npi_true_divide_scalar _npx_relu _npx_sigmoid _plus_scalar _rminus_scalar
add_n clip elemwise_add elemwise_mul elemwise_sub hard_sigmoid relu sigmoid softsign tanh
"""
_ELEMENTWISE_NAMES = frozenset(_ELEMENTWISE.split())
#: Sums that repeat an array along axes where its size is 1; of arrays of any types in mx.np.
BROADCASTING_SUMS = ("broadcast_add", "_npi_add")


class SymbolicShape(NamedTuple):
    """Shape and type of an array. A size is a number, or a term; equal terms are equal sizes."""

    sizes: tuple[Hashable, ...]  # of the first four axes: N, C, H and W of a map
    is_float32: bool  # False if it may have another type


def symbolic_shapes(graph: InferenceGraph) -> dict[NodeEntry, SymbolicShape]:
    """The symbolic shapes of the first outputs of all nodes.

    Each axis of an array about which nothing is known is a term of its own.
    """
    types = graph.types() if graph.is_of_network() else {}
    found: dict[NodeEntry, SymbolicShape] = {}
    for number in graph.needed():
        inputs = [found.get(entry) or _unknown(entry) for entry in graph.nodes[number]["inputs"]]
        shape, entry = _shape_of(graph, number, inputs), NodeEntry(number, 0)
        is_float32 = shape.is_float32 or types.get(entry) == np.float32
        found[entry] = shape._replace(is_float32=is_float32)
    return found


def _unknown(entry: NodeEntry, is_float32: bool = False) -> SymbolicShape:
    return SymbolicShape(tuple((*entry, axis) for axis in range(4)), is_float32)


def _shape_of(graph: InferenceGraph, number: int, inputs: list[SymbolicShape]) -> SymbolicShape:
    """The shape of the first output of a node."""
    node, entry = graph.nodes[number], NodeEntry(number, 0)
    op = node["op"]
    if op == "null":
        return _unknown(entry, graph.type_of(node["name"]) == np.float32)
    if op in _ELEMENTWISE_NAMES or op in BROADCASTING_SUMS and inputs[0] == inputs[1]:
        return inputs[0]
    if op == winograd.OPERATOR:
        filters = graph.integer(number, "num_filter")
        return SymbolicShape((inputs[0].sizes[0], filters, *inputs[0].sizes[2:]), True)
    if op == "FullyConnected":
        return _unknown(entry, inputs[1].is_float32)
    own = (gemm.OPERATOR, gemm.DEPTHWISE, deformable.OPERATOR)
    if op in own or convolves_maps(graph, number):
        filters = graph.integer(number, "num_filter")
        cells = _windows(graph, number, inputs[0])
        is_float32 = op == deformable.OPERATOR or inputs[1].is_float32
        return SymbolicShape((inputs[0].sizes[0], filters, *cells), is_float32)
    if op in ("Pooling", max_pooling.OPERATOR) and _has_plain_windows(graph, number):
        cells = _windows(graph, number, inputs[0])
        return inputs[0]._replace(sizes=(*inputs[0].sizes[:2], *cells))
    if op == "UpSampling" and len(inputs) == 1:
        scale = graph.attribute(number, "scale", "")
        enlarged = (("times", size, scale) for size in inputs[0].sizes[2:])
        return inputs[0]._replace(sizes=(*inputs[0].sizes[:2], *enlarged))
    if op == "slice_like" and graph.sizes(number, "axes") in ((2, 3), (-1, -2), (-2, -1)):
        return inputs[0]._replace(sizes=(*inputs[0].sizes[:2], *inputs[1].sizes[2:]))
    return _unknown(entry)


def _has_plain_windows(graph: InferenceGraph, number: int) -> bool:
    return (
        has_maps(graph, number)
        and graph.attribute(number, "pooling_convention", "valid") == "valid"
        and not graph.flag(number, "global_pool")
    )


def _windows(graph: InferenceGraph, number: int, data: SymbolicShape) -> tuple[Hashable, Hashable]:
    """H and W of a convolution or pooling: floor((size + reach) / stride) + 1."""
    kernel, pad = graph.sizes(number, "kernel"), pair(graph, number, "pad", 0)
    stride, dilate = pair(graph, number, "stride", 1), pair(graph, number, "dilate", 1)

    def size(axis: int) -> Hashable:
        before = data.sizes[2 + axis]
        reach = 2 * pad[axis] - dilate[axis] * (kernel[axis] - 1) - 1
        is_same = reach == -1 and stride[axis] == 1
        return before if is_same else ("window", before, reach, stride[axis])

    return size(0), size(1)
