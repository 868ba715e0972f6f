# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of export, which are given in the order of the inputs, or by their names."""

from __future__ import annotations

import reprlib
from typing import Any, Iterable, Iterator, Sequence

import numpy as np

#: Types of MXNet's arrays.
TYPES = {"float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"}
#: MXNet's sizes are 32-bit integers.
_MAX_SIZE = 2**31 - 1
#: Types of values that are quoted in error messages.
_PLAIN = (int, float, str, list, tuple, dict, set, range, type(None))


def short(value: Any) -> str:
    """A value as quoted in an error message."""
    return reprlib.repr(value) if isinstance(value, _PLAIN) else type(value).__name__


def check_dict(argument: str, given: Any, content: str) -> dict[str, Any]:
    if isinstance(given, dict) and all(isinstance(name, str) for name in given):
        return given
    raise ValueError(f"onnx.export: {argument}: expected a dict of {content}, got {short(given)}")


def duplicate(names: Sequence[str]) -> str | None:
    """A name that occurs more than once in a list, or None."""
    return next((name for number, name in enumerate(names) if name in names[:number]), None)


def by_input(argument: str, given: Any, names: Sequence[str]) -> dict[str, Any]:
    """Entries by the names of inputs, from a list with one for each input, or from a dict."""
    if isinstance(given, dict):
        for name in given:
            if name not in names:
                raise ValueError(
                    f"onnx.export: {argument}: the model has no input {name!r}, expected one of "
                    f"{_listed(names)}"
                )
        return given
    if len(_check_list(argument, given)) != len(names):
        raise ValueError(
            f"onnx.export: {argument} has {len(given)} entries, expected one for each of the "
            f"{len(names)} inputs"
        )
    return dict(zip(names, given))


def _check_list(argument: str, given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return given
    raise ValueError(
        f"onnx.export: {argument}: expected a list with an entry for each input, or a dict of "
        f"their names, got {short(given)}"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) < 9 else [*names[:8], "..."])


# ---- Shapes --------------------------------------------------------------------------------------


def check_shapes(given: Any) -> None:
    """Raise an error for what is neither a list of shapes nor a dict of them.

    A shape instead of a list of shapes is a common mistake.
    """
    is_list = isinstance(given, (list, tuple)) and len(given) > 0
    if is_list and all(isinstance(size, (int, np.integer)) for size in given):
        raise ValueError(
            "onnx.export: input_shapes: expected a list with a shape for each input, such as "
            f"[{tuple(int(size) for size in given)}], got {short(given)}"
        )
    if not isinstance(given, dict):
        _check_list("input_shapes", given)


def shapes_of(given: Any, names: Sequence[str]) -> dict[str, tuple]:
    """The shapes of the inputs of a symbol, whose names are given."""
    if isinstance(given, dict):
        by_input("input_shapes", given, names)
        for name in names:
            if name not in given:
                raise ValueError(
                    f"onnx.export: input_shapes: expected a shape for input {name}, got none"
                )
        return {name: shape(f"input_shapes: {name}", given[name]) for name in names}
    shapes = list(leaves(given))
    if len(names) != len(shapes):
        raise ValueError(
            f"onnx.export: the model has {len(names)} inputs without a value ({_listed(names)}), "
            f"but input_shapes has {len(shapes)} shapes"
        )
    return dict(zip(names, shapes))


def leaves(shapes: Iterable) -> Iterator[tuple[int, ...]]:
    """The shapes in nested lists."""
    for each in shapes:
        if isinstance(each, (list, tuple)) and each and isinstance(each[0], (list, tuple)):
            yield from leaves(each)
        else:
            yield shape("input_shapes", each)


def shape(argument: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, (list, tuple)) and all(
        isinstance(size, (int, np.integer)) and size >= 0 for size in given
    ):
        if max(given, default=0) > _MAX_SIZE:
            raise ValueError(
                f"onnx.export: {argument}: expected sizes up to {_MAX_SIZE}, got {short(given)}"
            )
        return tuple(int(size) for size in given)
    raise ValueError(f"onnx.export: {argument}: expected a shape of integers, got {short(given)}")


# ---- Types and dynamic axes ----------------------------------------------------------------------


def types_of(given: Any, names: Sequence[str]) -> dict[str, np.dtype]:
    """The dtypes of inputs, where given."""
    entries = {} if given is None else by_input("input_types", given, names)
    return {name: _type(name, entry) for name, entry in entries.items()}


def _type(name: str, given: Any) -> np.dtype:
    try:
        found = np.dtype(given)
    except TypeError:
        found = None
    if given is None or found is None or found.name not in TYPES:
        raise ValueError(f"onnx.export: input_types: {given} is not a dtype for input {name}")
    return found


def dynamic_axes_of(given: Any, shapes: dict[str, tuple]) -> dict[str, dict[int, str]]:
    """The dynamic axes of each input, and the names of these axes in the file."""
    entries = {} if given is None else by_input("dynamic", given, list(shapes))
    found = {name: _axes(name, axes, shapes[name]) for name, axes in entries.items()}
    conflict = conflicting_axes(found, shapes)
    if conflict is not None:
        label, size, other = conflict
        raise ValueError(
            f"onnx.export: dynamic: axes named {label!r} have the sizes {size} and {other}, "
            "expected one size"
        )
    return found


def conflicting_axes(
    dynamic: dict[str, dict[int, str]], shapes: dict[str, tuple]
) -> tuple[str, int, int] | None:
    """A name of dynamic axes that have two sizes, and these; None if each name has one."""
    sizes: dict[str, int] = {}
    for name, axes in dynamic.items():
        for axis, label in axes.items():
            size = shapes[name][axis]
            if sizes.setdefault(label, size) != size:
                return label, sizes[label], size
    return None


def _axes(name: str, axes: Any, shape: tuple) -> dict[int, str]:
    is_collection = isinstance(axes, (list, tuple, set, range, dict))
    if not is_collection or not all(
        isinstance(axis, (int, np.integer)) and axis in range(len(shape)) for axis in axes
    ):
        raise ValueError(
            f"onnx.export: dynamic={short(axes)} for input {name} of shape {shape}: expected a "
            f"list of axes from 0 to {len(shape) - 1}, or a dict of axes and their names"
        )
    labels = axes if isinstance(axes, dict) else {axis: f"{name}_{axis}" for axis in axes}
    for axis, label in labels.items():
        if not (isinstance(label, str) and label):
            raise ValueError(
                f"onnx.export: dynamic: expected a name for axis {axis} of input {name}, got "
                f"{short(label)}"
            )
    return {int(axis): label for axis, label in labels.items()}
