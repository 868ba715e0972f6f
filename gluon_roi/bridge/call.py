"""One call of an operator, whatever it is given."""

from __future__ import annotations

import functools
import inspect
from numbers import Integral
from typing import Any, Callable, Sequence

from .. import library
from .arguments import KINDS, NumpyArray, NumpySymbol, Symbol, check_kinds, kind_of
from .arrays import call_arrays
from .symbols import call_symbols


def call(
    name: str,
    inputs: Sequence[Any],
    values: Sequence[Any],
    out: Any = None,
    node: Any = None,
    attr: Any = None,
) -> Any:
    """Call an operator on arrays or symbols of mx.nd, mx.sym or mx.np; gives back their kind.

    Parameters
    ----------
    name : str
        Of the operator.
    inputs : sequence
        Its inputs in the order declared; None for one that is left out. Several maps are a list.
    values : sequence
        Its parameters in the order declared.
    out : array, optional
        Where the result goes; arrays only.
    node : str, optional
        Name of the node; arrays have none, and take it for the sake of ``hybrid_forward``.
    attr : dict, optional
        Further attributes of the node; symbols only.
    """
    operator = library.operators()[name]
    given: dict[str, Any] = {}
    for declared, value in zip(operator.inputs, inputs):
        if declared.role == "maps" and operator.several_maps:
            given.update((f"{declared.name}{i}", one) for i, one in enumerate(value))
        elif value is not None or not declared.optional:
            given[declared.name] = value
    present = tuple(value is not None for value in inputs)
    first_name, first = next(iter(given.items()))
    kind = type(first)
    if kind not in KINDS:
        kind = kind_of(name, first_name, first)
    check_kinds(name, given, kind)
    symbolic = kind in (Symbol, NumpySymbol)
    if symbolic and out is not None:
        raise TypeError(f"{name}: argument out: expected None for symbols, got {type(out)}")
    if not symbolic and attr is not None:
        raise TypeError(f"{name}: argument attr: expected None for arrays, got {attr!r}")
    if out is not None:
        out = out[0] if isinstance(out, (list, tuple)) and len(out) == 1 else out
        check_kinds(name, {"out": out}, kind)

    if kind in (NumpyArray, NumpySymbol):
        given = {key: value.as_nd_ndarray() for key, value in given.items()}
        if out is not None:
            call_arrays(operator, present, given, values, out.as_nd_ndarray())
            return out
    if symbolic:
        result = call_symbols(operator, present, given, values, node, attr)
    else:
        result = call_arrays(operator, present, given, values, out)
    return result.as_np_ndarray() if kind in (NumpyArray, NumpySymbol) else result


def operator_function(name: str, left_out: str | None = None) -> Callable[[Callable], Callable]:
    """Give a function the name of its operator; wrong arguments get the whole signature.

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
        return checked

    return rename
