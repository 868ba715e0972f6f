# SPDX-License-Identifier: Apache-2.0
"""Arguments of a call: the kind of arrays or symbols, and parameters as MXNet's attributes."""

from __future__ import annotations

from typing import Any, Iterable, TypeVar, Union

import mxnet as mx
import numpy as np

from ..library import Declared

Symbol, NumpySymbol = mx.sym.Symbol, mx.sym.numpy._Symbol
NDArray, NumpyArray = mx.nd.NDArray, mx.np.ndarray
# Kinds that a call takes and returns. Arrays of mx.np and sparse arrays are NDArrays by class too.
KINDS = (NDArray, NumpyArray, Symbol, NumpySymbol)
#: In signatures: an array or symbol of any kind. The result has the kind of the inputs.
Tensor = TypeVar("Tensor", bound=Union[mx.nd.NDArray, mx.sym.Symbol])


def kind_of(operator: str, name: str, value: Any) -> type:
    """The member of KINDS that the first input is; raises TypeError if it is none of them."""
    kind = _kind(value)
    if kind is None:
        raise TypeError(
            f"{operator}: argument {name}: expected an array of mx.nd or mx.np, or a symbol, "
            f"got {_type_name(type(value))}{_hint(name, value)}"
        )
    return kind


def check_kinds(operator: str, inputs: dict[str, Any], kind: type) -> None:
    """Raise TypeError unless all inputs are of this kind."""
    for name, value in inputs.items():
        if type(value) is not kind and _kind(value) is not kind:
            raise TypeError(
                f"{operator}: argument {name}: expected a {_type_name(kind)}, "
                f"got {_type_name(type(value))}{_hint(name, value)}"
            )


def _hint(name: str, value: Any) -> str:
    """The function that converts a value to an array, if there is one."""
    if isinstance(value, np.ndarray):
        return f"; mx.nd.array({name}) converts it"
    if name == "rois" and isinstance(value, (list, tuple)):
        return "; gluon_roi.rois.from_list converts a list with the boxes of each image"
    return ""


def check_extras(operator: str, symbolic: bool, out: Any, attr: Any) -> None:
    """Raise TypeError for an `out` of symbols or an `attr` of arrays."""
    if symbolic and out is not None:
        raise TypeError(f"{operator}: argument out: expected None for symbols, got {type(out)}")
    if not symbolic and attr is not None:
        raise TypeError(f"{operator}: argument attr: expected None for arrays, got {attr!r}")


def is_true(flag: Any) -> bool:
    """Whether a flag, or the text of one as MXNet writes it, says so."""
    return str(flag) in ("True", "true", "1")


def _kind(value: Any) -> type | None:
    if type(value) in KINDS:
        return type(value)
    for kind in (NumpySymbol, Symbol, NumpyArray):
        if isinstance(value, kind):
            return kind
    is_array = isinstance(value, NDArray) and not isinstance(value, mx.nd.sparse.BaseSparseNDArray)
    return NDArray if is_array else None


def _type_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def text(value: Any) -> str:
    """A parameter as the text of an attribute; numbers of NumPy look like those of Python."""
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    if isinstance(value, tuple) or (isinstance(value, np.ndarray) and value.ndim > 0):
        return f"({', '.join(map(text, value))})"
    return str(value)


def attributes(
    operator: Declared, inputs: Iterable[str], parameters: dict[str, Any]
) -> dict[str, str]:
    """The attributes of a node, whose `inputs` are those that are given.

    Parameters with their default value are left out, because MXNet parses each attribute of a call
    repeatedly.
    """
    texts = {name: text(parameters[name]) for name in operator.parameters}
    chosen = {name: value for name, value in texts.items() if value != operator.parameters[name]}
    chosen.update((name, "True") for name in inputs if name in operator.optional_inputs)
    return chosen
