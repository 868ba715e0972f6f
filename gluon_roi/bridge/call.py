# SPDX-License-Identifier: Apache-2.0
"""A call of an operator, on arrays or on symbols."""

from __future__ import annotations

import functools
import inspect
from numbers import Integral
from typing import Any, Callable, TypeVar, overload

from .. import library
from .arguments import KINDS, NumpyArray, NumpySymbol, Symbol, check_extras, check_kinds, kind_of
from .arrays import call_arrays
from .symbols import call_symbols

AnyFunction = TypeVar("AnyFunction", bound=Callable)  # editors keep its signature


def call(name: str, given: dict[str, Any], shown: int = 1) -> Any:
    """Call an operator on arrays or symbols of mx.nd, mx.sym or mx.np, and return their kind.

    Parameters
    ----------
    name : str
        Name of the operator.
    given : dict
        The ``locals()`` of its function: inputs (None for one that is left out, a list for several
        maps), parameters, `out` (the array for the result; arrays only), `name` (of the node;
        accepted and ignored for arrays, for the sake of ``hybrid_forward``) and `attr` (further
        attributes of the node; symbols only).
    shown : int
        How many of the first outputs to return; as a list if more than one.
    """
    operator = library.operators()[name]
    values = [given[parameter] for parameter in operator.parameters]
    out, node, attr = given["out"], given["name"], given["attr"]
    arrays: dict[str, Any] = {}
    for declared in operator.inputs:
        value = given[declared.name]
        if declared.several:
            arrays.update((f"{declared.name}{i}", one) for i, one in enumerate(value))
        elif value is not None or not declared.optional:
            arrays[declared.name] = value
    present = tuple(given[declared.name] is not None for declared in operator.inputs)
    first_name, first = next(iter(arrays.items()))
    kind = type(first)
    if kind not in KINDS:
        kind = kind_of(name, first_name, first)
    check_kinds(name, arrays, kind)
    symbolic = kind in (Symbol, NumpySymbol)
    check_extras(name, symbolic, out, attr)
    is_numpy = kind in (NumpyArray, NumpySymbol)
    if is_numpy:
        arrays = {key: value.as_nd_ndarray() for key, value in arrays.items()}
    if symbolic:
        symbol = call_symbols(operator, present, arrays, values, node, attr)
        if shown < len(operator.outputs):
            symbol = symbol[0] if shown == 1 else symbol[:shown]
        return symbol.as_np_ndarray() if is_numpy else symbol
    if out is None:
        results = call_arrays(operator, present, arrays, values)[:shown]
        results = [one.as_np_ndarray() for one in results] if is_numpy else results
    else:
        results = list(out) if isinstance(out, (list, tuple)) else [out]
        if len(results) != shown:
            raise TypeError(f"{name}: argument out: expected {shown}, got {len(results)} arrays")
        for one in results:
            check_kinds(name, {"out": one}, kind)
        targets = [one.as_nd_ndarray() for one in results] if is_numpy else results
        call_arrays(operator, present, arrays, values, targets)
    return results[0] if shown == 1 else results


@overload
def operator_function(name: str) -> Callable[[AnyFunction], AnyFunction]: ...
@overload
def operator_function(name: str, left_out: str) -> Callable[[Callable], Callable]: ...
def operator_function(name: str, left_out: str | None = None) -> Callable[[Callable], Callable]:
    """Decorator: names a function after its operator, and shows its signature in errors.

    The input `left_out` may be left out among positional arguments, too.
    """

    def rename(function: Callable) -> Callable:
        signature = inspect.signature(function)
        place = list(signature.parameters).index(left_out) if left_out else 0
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        expected = f"{name}{signature.replace(parameters=bare, return_annotation=signature.empty)}"

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if left_out and left_out not in kwargs:
                if len(args) < place:
                    kwargs[left_out] = None
                elif len(args) == place or isinstance(args[place], (Integral, tuple, list)):
                    args = (*args[:place], None, *args[place:])
            try:
                return function(*args, **kwargs)
            except TypeError:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as error:
                    raise TypeError(f"{name}: {error}; expected {expected}") from None
                raise

        checked.__name__ = checked.__qualname__ = name
        checked.__module__ = "gluon_roi.nd"
        checked.left_out = left_out  # type: ignore[attr-defined]
        return checked

    return rename
