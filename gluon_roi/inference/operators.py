# SPDX-License-Identifier: Apache-2.0
"""MXNet's functions for the operators that only graphs for inference have."""

from __future__ import annotations

import functools
from typing import Any, Callable

import mxnet as mx

from .. import library


def function_for(operator: str, data: Any) -> Callable:
    """The function of an operator for arrays or for symbols, whichever `data` is."""
    return _function(operator, isinstance(data, mx.sym.Symbol))


@functools.lru_cache(maxsize=None)
def _function(operator: str, symbolic: bool) -> Callable:
    register = mx.sym.register if symbolic else mx.nd.register
    make = register._make_symbol_function if symbolic else register._make_ndarray_function
    return library.function_of(operator, make)
