# SPDX-License-Identifier: Apache-2.0
"""Names and error messages of the public functions and constructors."""

from __future__ import annotations

import difflib
import functools
import inspect
from numbers import Integral
from typing import Any, Callable, Collection, Iterable, NoReturn, TypeVar

AnyFunction = TypeVar("AnyFunction", bound=Callable)  # keeps the signature for editors

#: Names of arguments in torchvision, Paddle and MXNet.
_ALIASES = {
    "output_size": "pooled_size",
    "boxes": "rois",
    "boxes_num": "rois_num",
    "input": "data",
    "sample_ratio": "sampling_ratio",
}


def public_name(name: str) -> Callable[[AnyFunction], AnyFunction]:
    """Decorator: give a function the operator's name, in help() and in errors of wrong calls.

    If Python rejects a call, the TypeError contains the signature, and a suggestion if an argument
    is misspelled or has the name that another library uses. For a constructor, pass the block's
    name.
    """

    def decorate(function: AnyFunction) -> AnyFunction:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as error:
                    _raise_wrong_call(name, signature, kwargs, error)
                raise

        if function.__name__ != "__init__":
            call.__name__ = call.__qualname__ = name
            call.__module__ = "gluon_roi.nd"
        return call  # type: ignore[return-value]

    return decorate


def optional_input(*names: str) -> Callable[[Callable], Callable]:
    """Decorator: inputs may be omitted among positional arguments, or given by name.

    ``DeformablePSROIPool(data, rois, 7, 1 / 16)`` is ``DeformablePSROIPool(data, rois, None, 7,
    1 / 16)``, where the name is trans. Parameters are numbers, tuples or lists; inputs never are.
    The names follow each other in the signature.
    """

    def decorate(function: Callable) -> Callable:
        position = list(inspect.signature(function).parameters).index(names[0])

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) < position:
                return function(*args, **{**dict.fromkeys(names), **kwargs})
            inputs, rest = list(args[:position]), list(args[position:])
            for name in names:
                is_next = bool(rest) and not isinstance(rest[0], (Integral, tuple, list))
                if name in kwargs and not is_next:
                    inputs.append(kwargs.pop(name))
                else:  # one that is given twice is an error of the function
                    inputs.append(rest.pop(0) if is_next else None)
            return function(*inputs, *rest, **kwargs)

        return call

    return decorate


def _raise_wrong_call(
    name: str, signature: inspect.Signature, given: Iterable[str], error: TypeError
) -> NoReturn:
    parameters = [
        parameter.replace(annotation=parameter.empty)
        for parameter in signature.parameters.values()
        if parameter.name != "self"
    ]
    expected = signature.replace(parameters=parameters, return_annotation=signature.empty)
    hint = _hint(given, signature.parameters)
    raise TypeError(f"{name}: {error}; expected {name}{expected}{hint}") from None


def _hint(given: Iterable[str], known: Collection[str]) -> str:
    """A suggestion for the first unknown name."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            suggestion = _ALIASES.get(name, close[0] if close else None)
            if suggestion in known:
                return f"; did you mean {suggestion}?"
    return ""
