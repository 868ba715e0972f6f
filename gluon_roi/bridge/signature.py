# SPDX-License-Identifier: Apache-2.0
"""What a wrong call of a public function or constructor raises."""

from __future__ import annotations

import difflib
import functools
import inspect
from numbers import Integral
from typing import Any, Callable, Collection, Iterable, NoReturn, TypeVar

AnyFunction = TypeVar("AnyFunction", bound=Callable)  # editors keep its signature

#: Names of arguments in torchvision, Paddle and MXNet.
_ELSEWHERE = {
    "output_size": "pooled_size",
    "boxes": "rois",
    "boxes_num": "rois_num",
    "input": "data",
    "sample_ratio": "sampling_ratio",
}


def public_name(name: str) -> Callable[[AnyFunction], AnyFunction]:
    """Decorator: the function has the operator's name, in help() and in errors of wrong calls.

    If Python rejects a call, the TypeError shows the signature, and the argument that a name of
    another library or a misspelled one may stand for. Of a constructor, pass the block's name.
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


def optional_input(name: str) -> Callable[[Callable], Callable]:
    """Decorator: an input may be left out, and the arguments behind it follow by position.

    ``DeformablePSROIPool(data, rois, 7, 1 / 16)`` is ``DeformablePSROIPool(data, rois, None, 7,
    1 / 16)``, where `name` is trans. Parameters are numbers, tuples or lists; inputs never are.
    """

    def decorate(function: Callable) -> Callable:
        place = list(inspect.signature(function).parameters).index(name)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name not in kwargs:
                if len(args) < place:
                    kwargs[name] = None
                elif len(args) == place or isinstance(args[place], (Integral, tuple, list)):
                    args = (*args[:place], None, *args[place:])
            return function(*args, **kwargs)

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
    """The argument that the first unknown name may stand for."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = _ELSEWHERE.get(name, close[0] if close else None)
            if meant in known:
                return f"; did you mean {meant}?"
    return ""
