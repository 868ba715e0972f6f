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
#: How many combinations of input types are tried.
_TYPE_TRIES = 64


class Source(NamedTuple):
    """A model to be translated."""

    symbol: Any
    arrays: dict[str, np.ndarray]  # parameters and auxiliary states
    shapes: dict[str, tuple]  # of the inputs, in their order
    types: dict[str, np.dtype]  # of the inputs, where given
    free: dict[str, tuple]  # axes of the inputs whose sizes may vary


class Entry:
    """An output of an MXNet node: its shape, its type and its tensor in ONNX."""

    def __init__(self, shape: tuple, known: tuple, dtype: Any) -> None:
        self.shape, self.known, self.dtype = shape, known, np.dtype(dtype)
        self.tensor: Any = None


def infer(internals: Any, nodes: list[dict], source: Source) -> list[Entry]:
    """Shape and type of every output of every node, as MXNet infers them."""
    sizes = {**source.shapes, **{name: array.shape for name, array in source.arrays.items()}}
    _, shapes, _ = inferred(internals.infer_shape, "shapes", **sizes)
    if shapes is None:
        raise ValueError("onnx.export: the shapes of the model do not follow from those given")
    known = {name: array.dtype for name, array in source.arrays.items()}
    known.update((name, source.types[name]) for name in source.shapes if name in source.types)
    for name in _counts(nodes):
        if name in source.shapes:
            known.setdefault(name, np.dtype("int32"))
    dtypes = _types(internals, known, [name for name in source.shapes if name not in known])
    known_sizes = _known_sizes(internals, source, sizes, shapes)
    return [Entry(*described) for described in zip(shapes, known_sizes, dtypes)]


def _known_sizes(internals: Any, source: Source, sizes: dict, shapes: list) -> list[tuple]:
    """The shapes, with None for sizes that vary with those of the free axes."""
    if not any(source.free.values()):
        return [tuple(shape) for shape in shapes]
    changed = {
        name: tuple(2 * n + 64 if axis in axes else n for axis, n in enumerate(sizes[name]))
        for name, axes in source.free.items()
        if name in source.shapes
    }
    try:
        _, others, _ = inferred(internals.infer_shape, "shapes", **{**sizes, **changed})
    except ValueError:  # the model does not take these sizes, so any size may vary
        others = None
    if others is None:
        return [(None,) * len(shape) for shape in shapes]
    return [
        tuple(size if size == other else None for size, other in zip(*pair))
        for pair in zip(shapes, others)
    ]


def _types(internals: Any, known: dict[str, np.dtype], unknown: list[str]) -> list:
    """Types of all outputs; those of the inputs fit the parameters, float32 where possible."""
    try:
        arguments, _, _ = internals.infer_type_partial(**known)
    except mx.MXNetError:  # from an operator that needs the type of an input
        arguments = None
    for name, found in zip(internals.list_arguments(), arguments or ()):
        if name in unknown and found is not None:
            known.setdefault(name, np.dtype(found))
    unknown = [name for name in unknown if name not in known]
    others = sorted({dtype for dtype in known.values() if dtype.kind == "f"} - {_FLOAT32})
    refused = None
    for kinds in itertools.islice(
        itertools.product([_FLOAT32, *others], repeat=len(unknown)), _TYPE_TRIES
    ):
        tried = {**known, **dict(zip(unknown, kinds))}
        try:
            _, dtypes, _ = inferred(internals.infer_type, "types", **tried)
        except ValueError as error:
            refused = refused or error
        else:
            if dtypes is not None:
                return dtypes
    raise refused or ValueError(
        "onnx.export: the types of the model do not follow from its parameters; give input_types"
    )


def _counts(nodes: list[dict]) -> Iterator[str]:
    """The variables that are the rois_num of one of our operators."""
    for node in nodes:
        if node["op"].startswith("_gluon_roi_") and node.get("attrs", {}).get("rois_num") == "True":
            source = nodes[node["inputs"][-1][0]]
            while source["inputs"]:
                source = nodes[source["inputs"][0][0]]
            yield source["name"]


def inferred(infer: Callable, what: str, **known: Any) -> Any:
    """Let MXNet infer, without its messages and warnings."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return infer(**known)
    except mx.MXNetError as error:
        reason = sentence(str(error).strip().splitlines()[-1])
        raise ValueError(f"onnx.export: the {what} do not fit the model: {reason}") from None
