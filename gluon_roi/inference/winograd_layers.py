# SPDX-License-Identifier: Apache-2.0
"""Computes 3 x 3 convolutions by Winograd's algorithm, with the sum and activation after them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..bridge.symbol_json import NodeEntry
from . import winograd
from .epilogue import find_epilogue
from .graph import InferenceGraph
from .layers import bias_of, is_plain_convolution, pair

#: Height and width of a map where they are not known: of an image of 600 x 800 at stride 16.
USUAL_SIZE = (38, 50)


def use_winograd(graph: InferenceGraph) -> int:
    """Replace each convolution for which Winograd's algorithm pays; return how many.

    A layer that is applied several times, such as the RPN's on the levels of a pyramid, is replaced
    from the first application for which it pays: its transformed weights exist from then on.
    """
    shapes, types, uses = graph.shapes(), graph.types(), graph.uses()
    largest = _largest_applications(graph, shapes)
    transformed: dict[tuple[NodeEntry, ...], tuple[NodeEntry, NodeEntry]] = {}
    count = 0
    for number in graph.needed():
        node = graph.nodes[number]
        if not _is_supported(graph, number) or types.get(node["inputs"][0]) != np.float32:
            continue
        data, *weights = node["inputs"]
        layer = tuple(weights)
        if layer not in transformed:
            parts = _transformed(graph, number, largest[layer], shapes)
            if parts is None:
                continue
            transformed[layer] = (
                graph.constant(f"{node['name']}_winograd", parts[0]),
                graph.constant(f"{node['name']}_winograd_bias", parts[1]),
            )
        inputs = [data, *transformed[layer]]
        attributes: dict[str, Any] = {"num_filter": graph.integer(number, "num_filter")}
        dilate = pair(graph, number, "dilate", 1)[0]
        if dilate != 1:
            attributes["dilate"] = dilate
        epilogue = find_epilogue(graph, uses, NodeEntry(number, 0))
        new = graph.node(
            winograd.OPERATOR,
            node["name"],
            [*inputs, *epilogue.residual],
            **attributes,
            **epilogue.attributes,
        )
        graph.replace(epilogue.last, new, uses, shapes, types)
        count += 1
    return count


def _largest_applications(
    graph: InferenceGraph, shapes: dict[NodeEntry, tuple[int, ...]]
) -> dict[tuple[NodeEntry, ...], int]:
    """For each pair of weights and bias, the convolution that reads the largest map."""

    def size(number: int) -> int:
        return math.prod(shapes.get(graph.nodes[number]["inputs"][0], (0,)))

    found: dict[tuple[NodeEntry, ...], int] = {}
    for number in graph.needed():
        if _is_supported(graph, number):
            layer = tuple(graph.nodes[number]["inputs"][1:])
            found[layer] = max(found.get(layer, number), number, key=size)
    return found


def _transformed(
    graph: InferenceGraph,
    number: int,
    largest: int,
    shapes: dict[NodeEntry, tuple[int, ...]],
) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights and bias for Winograd's algorithm; None if it does not pay, or is not accurate.

    It has to pay for the node `number`; the node `largest` decides the size of the tiles.
    """
    weight, bias = graph.value(graph.nodes[number]["inputs"][1]), bias_of(graph, number)
    if weight is None or bias is None or weight.dtype != np.float32:
        return None

    def sizes(node: int) -> tuple[tuple[int, ...], int, int]:
        unknown = (1, weight.shape[1], *USUAL_SIZE)
        shape = shapes.get(graph.nodes[node]["inputs"][0], unknown)
        return shape, len(weight), pair(graph, node, "dilate", 1)[0]

    if not winograd.pays(*sizes(number)):
        return None
    tile = winograd.tile_size(*sizes(largest))
    if not winograd.has_error_bound(weight, tile):
        return None
    return winograd.transform_weights(weight, tile), bias


def _is_supported(graph: InferenceGraph, number: int) -> bool:
    """Whether a node is a convolution of 3 x 3 that keeps the size of its map."""
    if not is_plain_convolution(graph, number) or graph.sizes(number, "kernel") != (3, 3):
        return False
    dilate = pair(graph, number, "dilate", 1)
    is_same = pair(graph, number, "pad", 0) == dilate and dilate[0] == dilate[1]
    return is_same and pair(graph, number, "stride", 1) == (1, 1)
