# SPDX-License-Identifier: Apache-2.0
"""Shapes and types of the tensors of a model, as MXNet infers them."""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from typing import Any, Callable, Iterator, NamedTuple

import mxnet as mx
import numpy as np

from ..files import sentence

_FLOAT32 = np.dtype("float32")
#: Changes (factor, summand) of the sizes of dynamic axes.
_CHANGES = ((2, 64), (2, 0), (3, 0), (4, 0), (1, 64), (1, 10080))
#: Maximum number of combinations of input dtypes to try.
_TYPE_TRIES = 64


class Source(NamedTuple):
    """A model to be translated."""

    symbol: Any
    arrays: dict[str, np.ndarray]  # parameters and auxiliary states
    shapes: dict[str, tuple]  # of the inputs, in their order
    types: dict[str, np.dtype]  # of the inputs, where given
    free: dict[str, tuple]  # dynamic axes of the inputs


class Entry:
    """An output of an MXNet node: its shape, its type and its tensor in ONNX."""

    def __init__(self, shape: tuple, known: tuple, dtype: Any) -> None:
        self.shape, self.known, self.dtype = shape, known, np.dtype(dtype)
        self.tensor: Any = None


def infer(internals: Any, nodes: list[dict], source: Source) -> list[Entry]:
    """Shape and type of every output of every node, as MXNet infers them."""
    sizes = {**source.shapes, **{name: array.shape for name, array in source.arrays.items()}}
    _, shapes, _ = call_inference(internals.infer_shape, "shapes", **sizes)
    if shapes is None:
        raise ValueError(
            "onnx.export: the shapes of the model cannot be inferred from input_shapes"
        )
    known = {name: array.dtype for name, array in source.arrays.items()}
    known.update((name, source.types[name]) for name in source.shapes if name in source.types)
    for name in _counts(nodes):
        if name in source.shapes:
            known.setdefault(name, np.dtype("int32"))
    dtypes = _types(internals, known, [name for name in source.shapes if name not in known])
    known_sizes = _known_sizes(internals, source, sizes, shapes)
    return [Entry(*values) for values in zip(shapes, known_sizes, dtypes)]


def _known_sizes(internals: Any, source: Source, sizes: dict, shapes: list) -> list[tuple]:
    """The shapes, with None for sizes that depend on dynamic axes."""
    if not any(source.free.values()):
        return [tuple(shape) for shape in shapes]
    free = {(name, axis) for name in source.shapes for axis in source.free.get(name, ())}
    # A removed label has the shape of the call that traced a block.
    found = dict(zip(internals.list_outputs(), shapes))
    for name, axes in source.free.items():
        if axes and name not in sizes and name in found:
            sizes = {**sizes, name: found[name]}
            free |= {(name, axis) for axis in axes}
    changed = _with_sizes(sizes, free, 2, 64)
    try:
        _, others, _ = call_inference(internals.infer_shape, "shapes", **changed)
    except ValueError:  # the model rejects these sizes, so any size may be dynamic
        others = None
        _check_may_vary(internals, source.shapes, sizes, free)
    if others is None:
        return [(None,) * len(shape) for shape in shapes]
    return [
        tuple(size if size == other else None for size, other in zip(*pair))
        for pair in zip(shapes, others)
    ]


def _with_sizes(sizes: dict, axes: set[tuple[str, int]], factor: int, more: int) -> dict:
    """Shapes in which the size n of each of these axes is changed to factor * n + more."""
    return {
        name: tuple(
            factor * n + more if (name, axis) in axes else n for axis, n in enumerate(shape)
        )
        for name, shape in sizes.items()
    }


def _check_may_vary(internals: Any, shapes: dict, sizes: dict, free: set[tuple[str, int]]) -> None:
    """Raise ValueError if dynamic axes are fixed by another input or by the graph.

    The model has rejected one choice of sizes, but may accept others: sizes of several inputs may
    depend on each other, or must be multiples of a number.

    Parameters
    ----------
    shapes, sizes : dict
        The shapes of the inputs, and of the inputs and the parameters.
    free : set of (name, axis)
    """

    def rejection(axes: set[tuple[str, int]]) -> ValueError | None:
        """The error for all of _CHANGES along these axes, or None if the model accepts one."""
        found = None
        for change in _CHANGES:
            try:
                call_inference(internals.infer_shape, "shapes", **_with_sizes(sizes, axes, *change))
                return None
            except ValueError as error:
                found = found or error
        return found

    error = rejection(free)
    if error is None:
        return
    needed = {
        (name, axis)
        for name, shape in shapes.items()
        for axis, size in enumerate(shape)
        if (name, axis) not in free
        and any(axis == axis_b and size == shapes[b][axis] for b, axis_b in free)
    }
    if needed and rejection(free | needed) is None:
        for entry in sorted(needed):
            if rejection(free | (needed - {entry})) is None:
                needed -= {entry}
        name, axis = min(needed)
        (a, *_) = sorted(b for b, axis_b in free if axis_b == axis)
        raise ValueError(
            f"onnx.export: dynamic: axis {axis} of {a} cannot vary alone, because the model needs "
            f"the same size along axis {axis} of {name}; let both vary, or neither"
        )
    reason = str(error).split(": ", 2)[2]
    # The batch axes alone, and with all first axes, which may have a number of rows per image.
    first = {(name, axis) for name, axis in free if axis == 0}
    for name, _ in sorted(first):
        batch = shapes[name][0]
        same = {(b, 0) for b, _ in first if shapes[b][0] == batch}
        if len(shapes[name]) >= 4 and rejection(same) and rejection(first):
            raise ValueError(
                f"onnx.export: dynamic: axis 0 of {name} cannot vary, because the graph itself is "
                f"made for a batch of {batch}: {reason}"
            )
    names = {name for name, _ in free}
    if len(names) == 1:
        (name,) = names
        raise ValueError(
            f"onnx.export: dynamic: axes {sorted(axis for _, axis in free)} of {name} cannot vary, "
            f"because the model fixes their sizes: {reason}"
        )


def _types(internals: Any, known: dict[str, np.dtype], unknown: list[str]) -> list:
    """Dtypes of all outputs; inputs match the parameters, and are float32 where possible."""
    try:
        arguments, _, _ = internals.infer_type_partial(**known)
    except mx.MXNetError:  # raised by an operator that needs the dtype of an input
        arguments = None
    for name, found in zip(internals.list_arguments(), arguments or ()):
        if name in unknown and found is not None:
            known.setdefault(name, np.dtype(found))
    unknown = [name for name in unknown if name not in known]
    others = sorted({dtype for dtype in known.values() if dtype.kind == "f"} - {_FLOAT32})
    refused = None
    for dtypes in itertools.islice(
        itertools.product([_FLOAT32, *others], repeat=len(unknown)), _TYPE_TRIES
    ):
        tried = {**known, **dict(zip(unknown, dtypes))}
        try:
            _, found_dtypes, _ = call_inference(internals.infer_type, "types", **tried)
        except ValueError as error:
            refused = refused or error
        else:
            if found_dtypes is not None:
                return found_dtypes
    raise refused or ValueError(
        "onnx.export: the types of the model cannot be inferred from its parameters; "
        "give input_types"
    )


def _counts(nodes: list[dict]) -> Iterator[str]:
    """The variables that are the rois_num of an operator of gluon_roi."""
    for node in nodes:
        if node["op"].startswith("_gluon_roi_") and node.get("attrs", {}).get("rois_num") == "True":
            source = nodes[node["inputs"][-1][0]]
            while source["inputs"]:
                source = nodes[source["inputs"][0][0]]
            yield source["name"]


def call_inference(infer: Callable, quantity: str, **known: Any) -> Any:
    """Call MXNet's inference, without its messages and warnings."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return infer(**known)
    except mx.MXNetError as error:
        reason = sentence(str(error).strip().splitlines()[-1])
        raise ValueError(f"onnx.export: the {quantity} do not fit the model: {reason}") from None
