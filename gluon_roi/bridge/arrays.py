# SPDX-License-Identifier: Apache-2.0
"""Calls of operators on arrays."""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Any

import mxnet as mx
from mxnet import base

from .. import gpu
from ..library import Declared
from .arguments import attributes, text
from .guard import guarded_array

_Sizes = ctypes.POINTER(ctypes.c_int64)
_PLAIN = (int, float, bool, str, type(None))


class _Calls:
    """State shared by all calls of an operator with the same parameters.

    MXNet parses the attributes of a CachedOp once, and infers shapes only when they change.
    Creating a CachedOp takes as long as four calls without it, so it is created at the second call.
    """

    __slots__ = ("seen", "compiled")

    def __init__(self) -> None:
        self.seen = False
        self.compiled: mx.nd.CachedOp | None = None


@functools.lru_cache(maxsize=256, typed=True)
def _calls(operator: Declared, inputs: tuple[str, ...], *values: Any) -> _Calls:
    return _Calls()


def _compile(operator: Declared, inputs: int, chosen: dict[str, Any]) -> mx.nd.CachedOp:
    function = getattr(mx.sym._internal, f"_gluon_roi_{operator.name}")
    variables = [mx.sym.var(f"input{i}") for i in range(inputs)]
    return mx.nd.CachedOp(function(*variables, name=operator.name, **chosen))


def call_arrays(
    operator: Declared,
    inputs: dict[str, Any],
    parameters: dict[str, Any],
    out: list[mx.nd.NDArray] | None = None,
) -> list[mx.nd.NDArray]:
    """Call an operator on NDArrays of mx.nd; `inputs` holds the given inputs only.

    The first outputs are written to `out`, which may hold fewer arrays than the operator has
    outputs.
    """
    arrays = list(inputs.values())
    if gpu.HAS_GPUS:
        gpu.warn_unless_checked(arrays[0].context)
    if mx.autograd.is_recording():
        arrays = [guarded_array(array) for array in arrays]
    calls = None
    try:
        if out is None or len(out) < len(operator.outputs):
            # Other values are compared as text: (7, 7) and (7.0, 7.0) would be the same key.
            values = parameters.values()
            plain = [value if type(value) in _PLAIN else text(value) for value in values]
            calls = _calls(operator, tuple(inputs), *plain)
            if calls.seen and calls.compiled is None:
                chosen = attributes(operator, inputs, parameters)
                calls.compiled = _compile(operator, len(arrays), chosen)
            calls.seen = True
        # A CachedOp does not check the shape of out, and would write past its end.
        compiled = calls.compiled if calls else None
        if compiled is None:
            function = getattr(mx.nd._internal, f"_gluon_roi_{operator.name}")
            function_out = None if calls else out
            result = function(*arrays, out=function_out, **attributes(operator, inputs, parameters))
        else:
            result = compiled(*arrays)
        results = result if isinstance(result, list) else [result]
        if calls and out is not None:
            for value, target in zip(results, out):
                if value.shape != target.shape:
                    raise mx.MXNetError(
                        f"{operator.name}: argument out: expected shape {value.shape}, "
                        f"got {target.shape}"
                    )
                value.copyto(target)
    except mx.MXNetError as error:
        if calls:
            calls.compiled = None  # after an error, a CachedOp keeps the bad shapes
        if "has dtype bfloat16" in str(error):
            # AMP in bfloat16 casts the inputs of an identity to float32; so do we.
            cast = {key: mx.nd.identity(array) for key, array in inputs.items()}
            if any(cast[key].dtype != inputs[key].dtype for key in cast):
                return call_arrays(operator, cast, parameters, out)
        reason = str(error).replace("MXNetError: ", "")
        reason = re.sub(rf"Error in operator \S*{operator.name}: ", "", reason)
        if out is not None and "inconsistent" in reason:
            reason = f"{operator.name}: argument out: {reason}"
        raise mx.MXNetError(reason) from None
    check_rows(operator, inputs, results[0])
    return results


def check_rows(operator: Declared, inputs: dict[str, Any], result: mx.nd.NDArray) -> None:
    """Raise an error for a call with no RoIs, unless MXNet can represent the empty result.

    Outside of np_shape, MXNet's operators treat a size of 0 as unknown. Graphs are not affected,
    because the shapes of all their nodes are inferred.
    """
    rois = operator.rois_name
    if rois is None or _length(result) != 0 or mx.util.is_np_shape():
        return
    raise mx.MXNetError(
        f"{operator.name}: {rois} has shape {inputs[rois].shape}, expected at least one row, "
        "or a call inside mx.util.np_shape(), where the output is empty"
    )


def _length(array: mx.nd.NDArray) -> int:
    """``array.shape[0]`` through MXNet's C interface, in a third of the time."""
    dimensions, shape = ctypes.c_int(), _Sizes()
    base.check_call(
        base._LIB.MXNDArrayGetShapeEx64(array.handle, ctypes.byref(dimensions), ctypes.byref(shape))
    )
    return shape[0]
