# SPDX-License-Identifier: Apache-2.0
"""Sizes of zeros, ones and full that MXNet infers, as tensors of the graph.

MXNet does not say which size such a size equals, so it is found by experiment: MXNet infers the
shapes of the model for several sizes of its dynamic axes (the trials of shape_inference.py), and a
tensor that has the same size in all of them has the size that is needed.
"""

from __future__ import annotations

from typing import Any

from .shape_inference import NodeOutput

#: Operators without an input, whose shape may have unknown sizes.
CREATIONS = {"_zeros", "_ones", "_full"}


def creations_last(nodes: list[dict]) -> list[int]:
    """Indices of the nodes, sorted so that creations and what depends on them come last.

    Tensors that sizes are read from then exist before they are needed.
    """
    late: set[int] = set()
    for number, node in enumerate(nodes):
        if node["op"] in CREATIONS or any(entry[0] in late for entry in node["inputs"]):
            late.add(number)
    return sorted(range(len(nodes)), key=lambda number: number in late)


def creation_sizes(given: tuple, entry: NodeOutput, entries: list[NodeOutput]) -> list[Any]:
    """Output sizes of an operator in CREATIONS: int, vector of one element, or None if unknown.

    Positive sizes of its attribute `shape` are fixed; MXNet infers the others from other nodes.
    """
    sizes: list[Any] = []
    for axis, static in enumerate(entry.static_shape):
        size = given[axis] if axis < len(given) and given[axis] > 0 else static
        trials = [shape[axis] for shape in entry.trials]
        sizes.append(_equal_size(trials, entries) if size is None else int(size))
    return sizes


def _equal_size(sizes: list[int], entries: list[NodeOutput]) -> Any:
    """A tensor's size that equals these sizes in all trials; None if there is none."""
    for entry in entries:
        for axis in range(len(entry.shape) if entry.tensor is not None else 0):
            if [shape[axis] for shape in entry.trials] == sizes:
                return entry.tensor.size(axis)
    return None
