# SPDX-License-Identifier: Apache-2.0
"""Calls of the operators that only converted graphs have, on arrays and symbols.

Each takes ``name`` and ``attr`` of the node of a symbol, and ``out`` of arrays.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

import mxnet as mx

from gluon_roi import library
from gluon_roi.inference import winograd
from gluon_roi.inference.upsample_add import OPERATOR as UPSAMPLE_ADD


def function_for(operator: str, data: Any) -> Callable:
    """The function of an operator for arrays or for symbols, whichever `data` is."""
    return _function(operator, isinstance(data, mx.sym.Symbol))


@functools.lru_cache(maxsize=None)
def _function(operator: str, symbolic: bool) -> Callable:
    register = mx.sym.register if symbolic else mx.nd.register
    make = register._make_symbol_function if symbolic else register._make_ndarray_function
    return library.function_of(operator, make)


def winograd_convolution(
    data: Any,
    weight: Any,
    bias: Any,
    residual: Any = None,
    *,
    num_filter: int,
    dilate: int = 1,
    act_type: str = "",
    **naming: Any,
) -> Any:
    """A 3 x 3 convolution with weights of `winograd.transform_weights`."""
    attributes = {"num_filter": num_filter, "dilate": dilate, "act_type": act_type}
    inputs = [data, weight, bias]
    if residual is not None:
        inputs.append(residual)
        attributes["residual"] = True
    return function_for(winograd.OPERATOR, data)(*inputs, **attributes, **naming)


def upsample_add(low: Any, high: Any, **naming: Any) -> Any:
    """``high[..., y, x] + low[..., y // 2, x // 2]``."""
    return function_for(UPSAMPLE_ADD, low)(low, high, **naming)
