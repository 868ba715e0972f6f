# SPDX-License-Identifier: Apache-2.0
"""A call of an operator, on arrays or on symbols."""

from __future__ import annotations

from typing import Any

from .. import library
from .arguments import (
    TENSOR_TYPES,
    NumpyArray,
    NumpySymbol,
    Symbol,
    check_extras,
    check_out,
    check_types,
    tensor_type,
)
from .arrays import call_arrays
from .symbols import call_symbols


def call_operator(
    operator_name: str,
    inputs: dict[str, Any],
    parameters: dict[str, Any],
    out: Any = None,
    name: str | None = None,
    attr: dict[str, str] | None = None,
    num_outputs: int = 1,
    in_place: str | None = None,
) -> Any:
    """Call an operator on arrays or symbols of mx.nd, mx.sym or mx.np; return the same type.

    Parameters
    ----------
    operator_name : str
        Public name, such as 'PSROIPool'.
    inputs : dict
        Name -> array or symbol; None for an input that is not given; a list for a pyramid's maps.
    parameters : dict
        Name -> value, for all parameters of the operator.
    out, name, attr
        Arrays to write to; name and attributes of the symbol's node. Calls on arrays ignore the
        name, because ``hybrid_forward`` passes it to both.
    num_outputs : int
        Number of outputs to return, from the first; the result is a list if more than one.
    in_place : str, optional
        Name of the only input that `out` may share memory with.
    """
    operator = library.operators()[operator_name]
    arrays: dict[str, Any] = {}
    for declared in operator.inputs:
        value = inputs[declared.name]
        if declared.several:
            arrays.update((f"{declared.name}{i}", each) for i, each in enumerate(value))
        elif value is not None or not declared.optional:
            arrays[declared.name] = value
    first_name, first = next(iter(arrays.items()))
    input_type = type(first)
    if input_type not in TENSOR_TYPES:
        input_type = tensor_type(operator_name, first_name, first)
    check_types(operator_name, arrays, input_type)
    symbolic = input_type in (Symbol, NumpySymbol)
    if out is not None or attr is not None:
        check_extras(operator_name, symbolic, out, attr)
    is_numpy = input_type in (NumpyArray, NumpySymbol)
    if is_numpy:
        arrays = {key: value.as_nd_ndarray() for key, value in arrays.items()}
    if symbolic:
        symbol = call_symbols(operator, arrays, parameters, name, attr)
        if num_outputs < len(operator.outputs):
            symbol = symbol[0] if num_outputs == 1 else symbol[:num_outputs]
        return symbol.as_np_ndarray() if is_numpy else symbol
    if out is None:
        results = call_arrays(operator, arrays, parameters)[:num_outputs]
        if is_numpy:
            results = [result.as_np_ndarray() for result in results]
    else:
        results = check_out(operator_name, out, num_outputs, input_type)
        targets = [result.as_nd_ndarray() for result in results] if is_numpy else results
        call_arrays(operator, arrays, parameters, targets, in_place)
    return results[0] if num_outputs == 1 else results
