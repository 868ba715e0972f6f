# SPDX-License-Identifier: Apache-2.0
"""Shapes and types of the tensors of a model, as MXNet infers them."""

from __future__ import annotations

import contextlib
import io
import itertools
import warnings
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from ..files import sentence

_FLOAT32 = np.dtype("float32")
#: Changes (factor, summand) of the sizes of all dynamic axes, of which a model needs to accept one.
#: Many networks need multiples of a power of two or of the size of a part of the map: a factor
#: keeps any multiple, + 64 keeps multiples of powers of two up to 64, and + 10080 keeps multiples
#: of 1 to 10, 16 and 32.
_CHANGES = ((2, 64), (2, 0), (3, 0), (4, 0), (1, 64), (1, 10080))
#: Maximum number of combinations of input dtypes to try.
_TYPE_TRIES = 64


class Source(NamedTuple):
    """A model to be translated."""

    symbol: Any
    arrays: dict[str, np.ndarray]  # parameters and auxiliary states
    shapes: dict[str, tuple]  # of the inputs, in their order
    types: dict[str, np.dtype]  # of the inputs, where given
    dynamic: dict[str, dict[int, str]]  # dynamic axes of the inputs, and their names in the file


class NodeOutput:
    """An output of an MXNet node, and its tensor in ONNX.

    Attributes
    ----------
    shape : tuple
    trials : sequence of tuple
        Shapes in the order of the trials, of which `shape` is the first.
    static_shape : tuple
        The shape, with None for sizes that differ between trials; None for all sizes if a dynamic
        axis has no other size in any trial.
    dtype : numpy.dtype
    tensor : Tensor
    """

    def __init__(self, trials: Sequence[tuple], are_complete: bool, dtype: Any) -> None:
        self.shape, self.trials, self.dtype = trials[0], trials, np.dtype(dtype)
        self.static_shape = tuple(
            sizes[0] if are_complete and len({*sizes}) == 1 else None for sizes in zip(*trials)
        )
        self.tensor: Any = None


def infer(internals: Any, nodes: list[dict], source: Source) -> list[NodeOutput]:
    """Shape and type of every output of every node, as MXNet infers them."""
    sizes = {**source.shapes, **{name: array.shape for name, array in source.arrays.items()}}
    shapes = infer_shapes(internals, sizes)
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
    trials, are_complete = _trials(internals, source, sizes, shapes)
    return [NodeOutput(shapes, are_complete, dtype) for shapes, dtype in zip(zip(*trials), dtypes)]


class _Trials:
    """Shapes of all outputs of nodes, for several sizes of the dynamic axes.

    Attributes
    ----------
    shapes : list
        The shapes; the first ones are those without a change.
    changed : set of (name, axis)
        The dynamic axes that have another size in one of them.
    """

    def __init__(self, internals: Any, sizes: dict, dynamic: set, shapes: list[tuple]) -> None:
        self._internals, self._sizes, self._dynamic = internals, sizes, dynamic
        self.shapes: list[list[tuple]] = [shapes]
        self.changed: set[tuple[str, int]] = set()

    def try_sizes(self, axes: set[tuple[str, int]], factor: int, summand: int) -> bool:
        """Add a trial with size factor * n + summand along each axis, if MXNet accepts it."""
        accepted = self._infer(_with_sizes(self._sizes, axes, factor, summand))
        if accepted is None:
            return False
        self.shapes.append(accepted)
        self.changed.update(axes)
        return True

    def try_sizes_of_others(self, name: str, factor: int, summand: int) -> None:
        """Change the axes of the other inputs; MXNet infers the shape of this one."""
        others = {(b, axis) for b, axis in self._dynamic if b != name}
        sizes = _with_sizes(self._sizes, others, factor, summand)
        accepted = self._infer({b: sizes[b] for b in sizes if b != name})
        if accepted is None:
            return
        before, after = sizes[name], accepted[self._internals.list_outputs().index(name)]
        differing = {(name, axis) for axis, (a, b) in enumerate(zip(before, after)) if a != b}
        if len(after) == len(before) and differing <= self._dynamic:
            self.shapes.append(accepted)
            self.changed |= others | differing

    def _infer(self, sizes: dict) -> list[tuple] | None:
        try:
            return infer_shapes(self._internals, sizes)
        except ValueError:
            return None


def _trials(
    internals: Any, source: Source, sizes: dict, shapes: list[tuple]
) -> tuple[list[list[tuple]], bool]:
    """Shapes of all outputs of nodes, for several sizes of the dynamic axes.

    Axes are changed one by one, or together with others if the model requires equal sizes, and
    all together. Sizes that the model rejects are omitted.

    Returns
    -------
    list
        The shapes; the first ones are those without a change.
    bool
        Whether every dynamic axis has another size in one of them.

    Raises
    ------
    ValueError
        A dynamic axis is fixed by the graph or by another input.
    """
    dynamic = {(name, axis) for name in source.shapes for axis in source.dynamic.get(name, ())}
    # The label of a loss is no input of the file, but its variable has the shape of the call that
    # traced the block, which must change with the axes of the other inputs.
    found = dict(zip(internals.list_outputs(), shapes))
    for name, axes in source.dynamic.items():
        if axes and name not in sizes and name in found:
            sizes = {**sizes, name: found[name]}
            dynamic |= {(name, axis) for axis in axes}
    trials = _Trials(internals, sizes, dynamic, shapes)
    for name, axis in sorted(dynamic):
        size = sizes[name][axis]
        # Some layers map neighbouring sizes to the same size, and some clip large ones.
        smaller, larger = (1, 2, 3, 4, size // 2, size - 1), (size + 1, size + 2, size + 3)
        others = sorted({*smaller, *larger, 2 * size + 5} - {size, 0, -1})
        if any([trials.try_sizes({(name, axis)}, 0, other) for other in others]):
            continue
        equal = {(b, axis_b) for b, axis_b in dynamic if sizes[b][axis_b] == size}
        pairs: list[set] = [{(name, axis), other_axis} for other_axis in sorted(equal)]
        for together in [*pairs, equal]:
            for other in others:
                trials.try_sizes(together, 0, other)
    if dynamic and not any(trials.try_sizes(dynamic, *change) for change in _CHANGES):
        _check_dynamic(internals, source.shapes, sizes, dynamic)
    # The sizes of an input may be half of another one's, rounded up.
    for name in sorted({name for name, _ in dynamic - trials.changed}):
        for change in _CHANGES:
            trials.try_sizes_of_others(name, *change)
    # The rows of an input may be the product of two sizes of others.
    for entry in sorted(dynamic - trials.changed):
        for together in [*({entry, other} for other in sorted(dynamic)), dynamic - {entry}]:
            for change in _CHANGES:
                trials.try_sizes(together, *change)
    fixed = sorted(dynamic - trials.changed)
    # Sizes of several inputs may depend on each other in further ways, those of parameters do not.
    inputs = {name: sizes[name] for name in source.shapes}
    for name, axis in fixed:
        try:
            changed = _with_sizes(inputs, {(name, axis)}, 1, 1)
            call_inference(internals.infer_shape_partial, "shapes", **changed)
        except ValueError:  # another input or the graph
            continue
        raise ValueError(
            f"onnx.export: dynamic: axis {axis} of {name} cannot be dynamic, because the "
            "parameters fix its size"
        )
    return trials.shapes, not fixed


def infer_shapes(internals: Any, sizes: dict) -> list[tuple] | None:
    """Shapes of all outputs of nodes, for these shapes of variables; None if MXNet cannot tell.

    Some operators, such as BatchNorm, replace the given shapes of their parameters: those are
    returned as they were given.
    """
    _, shapes, _ = call_inference(internals.infer_shape, "shapes", **sizes)
    names = internals.list_outputs()
    return shapes and [sizes.get(name, shape) for name, shape in zip(names, shapes)]


def _with_sizes(sizes: dict, axes: set[tuple[str, int]], factor: int, summand: int) -> dict:
    """Shapes in which the size n of each of these axes is changed to factor * n + summand."""
    return {
        name: tuple(
            factor * n + summand if (name, axis) in axes else n for axis, n in enumerate(shape)
        )
        for name, shape in sizes.items()
    }


def _check_dynamic(
    internals: Any, shapes: dict, sizes: dict, dynamic: set[tuple[str, int]]
) -> None:
    """Raise ValueError if dynamic axes are fixed by another input or by the graph.

    The model has rejected all of _CHANGES along these axes, but may accept others: sizes of several
    inputs may depend on each other, or must be multiples of a number.

    Parameters
    ----------
    shapes, sizes : dict
        The shapes of the inputs, and of the inputs and the parameters.
    dynamic : set of (name, axis)
    """

    def rejection(axes: set[tuple[str, int]]) -> ValueError | None:
        """The error for all of _CHANGES along these axes, or None if the model accepts one."""
        found = None
        for change in _CHANGES:
            changed = _with_sizes(sizes, axes, *change)
            try:
                call_inference(internals.infer_shape, "shapes", **changed)
                return None
            except ValueError as error:
                found = found or error
        return found

    error = rejection(dynamic)
    if error is None:
        return
    needed = {
        (name, axis)
        for name, shape in shapes.items()
        for axis, size in enumerate(shape)
        if (name, axis) not in dynamic
        and any(axis == axis_b and size == shapes[b][axis] for b, axis_b in dynamic)
    }
    if needed and rejection(dynamic | needed) is None:
        for entry in sorted(needed):
            if rejection(dynamic | (needed - {entry})) is None:
                needed -= {entry}
        name, axis = min(needed)
        (a, *_) = sorted(b for b, axis_b in dynamic if axis_b == axis)
        raise ValueError(
            f"onnx.export: dynamic: axis {axis} of {a} cannot be dynamic alone, because the model "
            f"needs the same size along axis {axis} of {name}; make both dynamic, or neither"
        )
    reason = str(error).split(": ", 2)[2]
    # The batch axes alone, and with all first axes, which may have a number of rows per image.
    first = {(name, axis) for name, axis in dynamic if axis == 0}
    for name, _ in sorted(first):
        batch = shapes[name][0]
        same = {(b, 0) for b, _ in first if shapes[b][0] == batch}
        if len(shapes[name]) >= 4 and rejection(same) and rejection(first):
            raise ValueError(
                f"onnx.export: dynamic: axis 0 of {name} cannot be dynamic, because the graph "
                f"itself is made for a batch of {batch}: {reason}"
            )
    names = {name for name, _ in dynamic}
    if len(names) == 1:
        (name,) = names
        raise ValueError(
            f"onnx.export: dynamic: axes {sorted(axis for _, axis in dynamic)} of {name} cannot be "
            f"dynamic, because the model fixes their sizes: {reason}"
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


def call_inference(infer: Callable, quantity: str, **given: Any) -> Any:
    """Call MXNet's inference, without its messages and warnings."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return infer(**given)
    except mx.MXNetError as error:
        reason = sentence(str(error).strip().splitlines()[-1])
        raise ValueError(f"onnx.export: the {quantity} do not fit the model: {reason}") from None
