# SPDX-License-Identifier: Apache-2.0
"""Sizes of zeros, ones and full that MXNet infers, as tensors of the graph."""

from __future__ import annotations

from typing import Any

from .shape_inference import Entry, Source, call_inference

#: Operators without an input, whose shape may have unknown sizes.
CREATIONS = {"_zeros", "_ones", "_full"}


def creations_last(nodes: list[dict]) -> list[int]:
    """Indices of the nodes, sorted so that constants and the nodes that depend on them come last.

    Tensors that sizes are read from then exist before they are needed.
    """
    late: set[int] = set()
    for number, node in enumerate(nodes):
        if node["op"] in CREATIONS or any(entry[0] in late for entry in node["inputs"]):
            late.add(number)
    return sorted(range(len(nodes)), key=lambda number: number in late)


def shape_trials(internals: Any, source: Source) -> list[list[tuple]]:
    """Shapes of all outputs of nodes, for several sizes of the dynamic axes.

    Axes are changed one by one, or together with others if the model requires equal sizes, and
    finally all together. Sizes that the model rejects are omitted.
    """
    fixed = {name: array.shape for name, array in source.arrays.items()}
    axes = [(name, axis) for name in source.shapes for axis in source.free.get(name, ())]
    base = {(name, axis): source.shapes[name][axis] for name, axis in axes}

    def shapes(sizes: dict[tuple[str, int], int]) -> list[tuple] | None:
        given = {name: list(shape) for name, shape in source.shapes.items()}
        for (name, axis), size in sizes.items():
            given[name][axis] = size
        known = {**fixed, **{name: tuple(shape) for name, shape in given.items()}}
        try:
            return call_inference(internals.infer_shape, "shapes", **known)[1]
        except ValueError:
            return None

    trials = [shapes({})]
    for axis, size in base.items():
        # Some layers map neighbouring sizes to the same size.
        values = (size + 1, size + 2, size + 3, 2 * size + 5)
        alone = [shapes({axis: value}) for value in values]
        trials += alone
        if not any(alone):
            equal = [other for other in axes if base[other] == size]
            for other in equal:
                trials += [shapes({axis: value, other: value}) for value in values]
            trials += [shapes(dict.fromkeys(equal, value)) for value in values]
    trials += [shapes({axis: 2 * size + 64 for axis, size in base.items()})]
    return [trial for trial in trials if trial is not None]


def creation_sizes(number: int, entries: list[Entry], trials: list[list[tuple]]) -> list[Any]:
    """Output sizes of an operator in CREATIONS: int, vector of one element, or None if unknown."""
    sizes: list[Any] = []
    for axis, size in enumerate(entries[number].shape):
        of_trials = [shapes[number][axis] for shapes in trials]
        is_fixed = len(set(of_trials)) <= 1
        sizes.append(int(size) if is_fixed else _equal_size(of_trials, entries, trials))
    return sizes


def _equal_size(sizes: list[int], entries: list[Entry], trials: list[list[tuple]]) -> Any:
    """A tensor's size that equals these sizes in all trials; None if there is none."""
    for number, entry in enumerate(entries):
        for axis in range(len(entry.shape) if entry.tensor is not None else 0):
            if [shapes[number][axis] for shapes in trials] == sizes:
                return entry.tensor.size(axis)
    return None
