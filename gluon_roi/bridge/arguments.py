# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call: the type of arrays or symbols, and parameters as MXNet's attributes."""

from __future__ import annotations

from typing import Any, Iterable, TypeVar, Union

import mxnet as mx
import numpy as np

from ..library import Declared

Symbol, NumpySymbol = mx.sym.Symbol, mx.sym.numpy._Symbol
NDArray, NumpyArray = mx.nd.NDArray, mx.np.ndarray
# Types that a call accepts and returns. mx.np and sparse arrays are subclasses of NDArray.
TENSOR_TYPES = (NDArray, NumpyArray, Symbol, NumpySymbol)
#: In signatures: an array or symbol of any of these types. The result has the type of the inputs.
Tensor = TypeVar("Tensor", bound=Union[mx.nd.NDArray, mx.sym.Symbol])


def tensor_type(operator: str, name: str, value: Any) -> type:
    """The member of TENSOR_TYPES that an input is an instance of; TypeError if there is none."""
    found = _find_type(value)
    if found is None:
        raise TypeError(
            f"{operator}: argument {name}: expected an array of mx.nd or mx.np, or a symbol, "
            f"got {_type_name(type(value))}{_hint(name, value)}"
        )
    return found


def check_types(operator: str, inputs: dict[str, Any], expected: type) -> None:
    """Raise TypeError unless all inputs have this type."""
    for name, value in inputs.items():
        if type(value) is not expected and _find_type(value) is not expected:
            raise TypeError(
                f"{operator}: argument {name}: expected a {_type_name(expected)}, "
                f"got {_type_name(type(value))}{_hint(name, value)}"
            )


def _hint(name: str, value: Any) -> str:
    """A hint at the function that converts a value to an array, if there is one."""
    if isinstance(value, np.ndarray):
        return f"; mx.nd.array({name}) converts it"
    if name == "rois" and isinstance(value, (list, tuple)):
        return "; gluon_roi.rois.from_list converts a list with the boxes of each image"
    return ""


def check_extras(operator: str, symbolic: bool, out: Any, attr: Any) -> None:
    """Raise TypeError if `out` is given with symbols, or `attr` with arrays."""
    if symbolic and out is not None:
        raise TypeError(f"{operator}: argument out: expected None for symbols, got {type(out)}")
    if not symbolic and attr is not None:
        raise TypeError(f"{operator}: argument attr: expected None for arrays, got {attr!r}")


def check_out(operator: str, out: Any, expected: int, array_type: type) -> list:
    """The arrays of the argument `out`; TypeError unless there are as many, all of this type."""
    arrays = list(out) if isinstance(out, (list, tuple)) else [out]
    if len(arrays) != expected:
        raise TypeError(f"{operator}: argument out: expected {expected}, got {len(arrays)} arrays")
    for array in arrays:
        check_types(operator, {"out": array}, array_type)
    return arrays


def is_true(flag: Any) -> bool:
    """Whether a flag, or its text as MXNet writes it, is true."""
    return str(flag) in ("True", "true", "1")


def _find_type(value: Any) -> type | None:
    if type(value) in TENSOR_TYPES:
        return type(value)
    for cls in (NumpySymbol, Symbol, NumpyArray):
        if isinstance(value, cls):
            return cls
    is_array = isinstance(value, NDArray) and not isinstance(value, mx.nd.sparse.BaseSparseNDArray)
    return NDArray if is_array else None


def _type_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__name__}"


def text(value: Any) -> str:
    """The text of a parameter as an attribute; NumPy numbers are written like Python's."""
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, tuple) or (isinstance(value, np.ndarray) and value.ndim > 0):
        return f"({', '.join(map(text, value))})"
    return str(value)


def attributes(
    operator: Declared, inputs: Iterable[str], parameters: dict[str, Any]
) -> dict[str, str]:
    """The attributes of a node; `inputs` are the names of the given inputs.

    Parameters with default values are omitted, because MXNet parses each attribute of a call
    several times.
    """
    texts = {name: text(parameters[name]) for name in operator.parameters}
    chosen = {name: value for name, value in texts.items() if value != operator.parameters[name]}
    chosen.update((name, "True") for name in inputs if name in operator.optional_inputs)
    return chosen
