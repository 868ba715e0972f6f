# SPDX-License-Identifier: Apache-2.0
"""A call of an operator, on arrays or on symbols."""

from __future__ import annotations

import difflib
import functools
import inspect
from numbers import Integral
from typing import Any, Callable, Collection, Dict, Iterable, TypeVar, overload

from .. import library
from .arguments import KINDS, NumpyArray, NumpySymbol, Symbol, check_extras, check_kinds, kind_of
from .arrays import call_arrays
from .symbols import call_symbols

AnyFunction = TypeVar("AnyFunction", bound=Callable)  # editors keep its signature
#: Calls an operator, given its name and all arguments by name.
Caller = Callable[[str, Dict[str, Any]], Any]


def call(name: str, given: dict[str, Any], shown: int = 1) -> Any:
    """Call an operator on arrays or symbols of mx.nd, mx.sym or mx.np, and return their kind.

    Parameters
    ----------
    name : str
        Name of the operator.
    given : dict
        All arguments of its function. Inputs that are left out are None; several maps are a list.
        Arrays ignore the name of the node, for the sake of ``hybrid_forward``.
    shown : int
        How many of the first outputs to return; as a list if more than one.
    """
    operator = library.operators()[name]
    values = [given[parameter] for parameter in operator.parameters]
    out, node, attr = given["out"], given["name"], given["attr"]
    arrays: dict[str, Any] = {}
    for declared, _, _, optional, _, several in operator.inputs:
        value = given[declared]
        if several:
            arrays.update((f"{declared}{i}", one) for i, one in enumerate(value))
        elif value is not None or not optional:
            arrays[declared] = value
    present = tuple([given[declared] is not None for declared in operator.input_names])
    first_name, first = next(iter(arrays.items()))
    kind = type(first)
    if kind not in KINDS:
        kind = kind_of(name, first_name, first)
    check_kinds(name, arrays, kind)
    symbolic = kind in (Symbol, NumpySymbol)
    if out is not None or attr is not None:
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


def binder(
    name: str, signature: inspect.Signature, left_out: str | None = None
) -> Callable[[tuple, dict[str, Any]], dict[str, Any]]:
    """A function from positional and named arguments to all arguments by name.

    It does what ``signature.bind`` does in a tenth of the time, and its TypeErrors show the whole
    call. The input `left_out` may be left out among positional arguments, too.
    """
    parameters = signature.parameters.values()
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
    required = [p.name for p in parameters if p.default is p.empty]  # the first ones
    defaults = {p.name: None if p.default is p.empty else p.default for p in parameters}
    # By the number of positional arguments: names that are taken, and names that have to follow.
    taken = [frozenset(positional[:count]) for count in range(len(positional) + 1)]
    missing = [frozenset(required[count:]) for count in range(len(positional) + 1)]
    place = positional.index(left_out) if left_out else 0
    bare = [p.replace(annotation=p.empty) for p in parameters]
    expected = f"{name}{signature.replace(parameters=bare, return_annotation=signature.empty)}"

    def bind(args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
        if left_out and left_out not in kwargs:
            if len(args) < place:
                kwargs[left_out] = None
            elif len(args) == place or isinstance(args[place], (Integral, tuple, list)):
                args = (*args[:place], None, *args[place:])
        count, named = len(args), kwargs.keys()
        if count <= len(positional) and named >= missing[count] and named.isdisjoint(taken[count]):
            given = defaults.copy()
            given.update(zip(positional, args))
            given.update(kwargs)
            if len(given) == len(defaults):
                return given
        try:
            return signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            hint = _hint(kwargs, defaults)
            raise TypeError(f"{name}: {error}; expected {expected}{hint}") from None

    return bind


#: Names of arguments in torchvision, Paddle and MXNet.
_ELSEWHERE = {
    "output_size": "pooled_size",
    "boxes": "rois",
    "boxes_num": "rois_num",
    "input": "data",
    "sample_ratio": "sampling_ratio",
}


def _hint(given: Iterable[str], known: Collection[str]) -> str:
    """The arguments that unknown names may stand for."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = _ELSEWHERE.get(name, close[0] if close else None)
            if meant in known:
                return f"; did you mean {meant}?"
    return ""


@overload
def operator_function(name: str, caller: Caller = call) -> Callable[[AnyFunction], AnyFunction]: ...
@overload
def operator_function(name: str, *, left_out: str) -> Callable[[Callable], Callable]: ...
def operator_function(
    name: str, caller: Caller = call, left_out: str | None = None
) -> Callable[[Callable], Callable]:
    """Decorator: gives a signature without a body what it stands for, a call of an operator.

    The function gets the name of the operator. The input `left_out` may be left out among
    positional arguments, too.
    """

    def decorate(function: Callable) -> Callable:
        bind = binder(name, inspect.signature(function), left_out)

        @functools.wraps(function)
        def operator(*args: Any, **kwargs: Any) -> Any:
            return caller(name, bind(args, kwargs))

        operator.__name__ = operator.__qualname__ = name
        operator.__module__ = "gluon_roi.nd"
        return operator

    return decorate
