# SPDX-License-Identifier: Apache-2.0
"""Calls of operators on arrays."""

from __future__ import annotations

import functools
import re
from typing import Any

import mxnet as mx

from .. import gpu
from ..library import Declared
from .arguments import attributes, text
from .guard import guarded_array
from .outputs import check_like, check_own_memory, shared_with, sizes_of

_PLAIN = (int, float, bool, str, type(None))


class _Calls:
    """State shared by all calls of an operator with the same parameters.

    MXNet parses the attributes of a CachedOp once, and infers shapes only when they change.
    Creating a CachedOp takes as long as four calls without it, so it is created at the second call.

    Threads cannot share a CachedOp: its first call does not lock what it writes, and a call that is
    refused leaves bad shapes in it. So each call takes one from `idle`, and puts it back unless it
    fails. There are as many as calls that have run at the same time (19 KB each).
    """

    __slots__ = ("seen", "idle")

    def __init__(self) -> None:
        self.seen = False
        self.idle: list[mx.nd.CachedOp] = []

    def take(self) -> mx.nd.CachedOp | None:
        """A CachedOp that no other call uses, or None."""
        try:
            return self.idle.pop()  # other threads may have emptied the list since any check
        except IndexError:
            return None


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
    in_place: str | None = None,
) -> list[mx.nd.NDArray]:
    """Call an operator on NDArrays of mx.nd; `inputs` holds the given inputs only.

    The first outputs are written to `out`, which may hold fewer arrays than the operator has
    outputs. They may share memory with the input named `in_place`, and with no other.
    """
    arrays = list(inputs.values())
    if gpu.HAS_GPUS:
        gpu.warn_unless_checked(arrays[0].context)
    shared = [] if out is None else shared_with(inputs, out)
    targets = None  # what the operator writes to; its results are copied to out if that differs
    if out is not None and len(out) == len(operator.outputs):
        targets = out
        if shared:
            targets = [mx.nd.empty(array.shape, array.context, array.dtype) for array in out]
    if mx.autograd.is_recording():
        arrays = [guarded_array(array) for array in arrays]
    try:
        if targets is None:
            results = _call_compiled(operator, inputs, arrays, parameters)
        else:
            function = getattr(mx.nd._internal, f"_gluon_roi_{operator.name}")
            results = function(*arrays, out=targets, **attributes(operator, inputs, parameters))
    except mx.MXNetError as error:
        if "has dtype bfloat16" in str(error):
            # AMP in bfloat16 casts the inputs of an identity to float32; so do we.
            cast = {key: mx.nd.identity(array) for key, array in inputs.items()}
            if any(cast[key].dtype != inputs[key].dtype for key in cast):
                return call_arrays(operator, cast, parameters, out, in_place)
        reason = str(error).replace("MXNetError: ", "")
        reason = re.sub(rf"Error in operator \S*{operator.name}: ", "", reason)
        if out is not None and "inconsistent" in reason:
            reason = f"{operator.name}: argument out: {reason}"
        raise mx.MXNetError(reason) from None
    if out is not None and results is not out:
        for result, target in zip(results, out):
            check_like(operator.name, result.shape, result.dtype, target)
        check_own_memory(operator.name, [name for name in shared if name != in_place])
        for result, target in zip(results, out):
            result.copyto(target)
    check_rows(operator, inputs, results[0])
    return results


def _call_compiled(
    operator: Declared,
    inputs: dict[str, Any],
    arrays: list[mx.nd.NDArray],
    parameters: dict[str, Any],
) -> list[mx.nd.NDArray]:
    """Call an operator on arrays, through a CachedOp from the second call on.

    A CachedOp does not check the shape of `out`, and would write past its end.
    """
    # Other values are compared as text: (7, 7) and (7.0, 7.0) would be the same key.
    values = parameters.values()
    plain = [value if type(value) in _PLAIN else text(value) for value in values]
    calls = _calls(operator, tuple(inputs), *plain)
    compiled = calls.take()
    if compiled is None and calls.seen:
        compiled = _compile(operator, len(arrays), attributes(operator, inputs, parameters))
    if compiled is None:
        calls.seen = True
        function = getattr(mx.nd._internal, f"_gluon_roi_{operator.name}")
        result = function(*arrays, **attributes(operator, inputs, parameters))
    else:
        result = compiled(*arrays)
        calls.idle.append(compiled)
    return result if isinstance(result, list) else [result]


def check_rows(operator: Declared, inputs: dict[str, Any], result: mx.nd.NDArray) -> None:
    """Raise an error for a call with no RoIs, unless MXNet can represent the empty result.

    Outside of np_shape, MXNet's operators treat a size of 0 as unknown. Graphs are not affected,
    because the shapes of all their nodes are inferred.
    """
    rois = operator.rois_name
    if rois is None or sizes_of(result)[0] != 0 or mx.util.is_np_shape():
        return
    raise mx.MXNetError(
        f"{operator.name}: {rois} has shape {inputs[rois].shape}, expected at least one row, "
        "or a call inside mx.util.np_shape(), where the output is empty"
    )
