# SPDX-License-Identifier: Apache-2.0
"""The base class of the operators' blocks."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import mxnet as mx
from mxnet.gluon import HybridBlock

from .. import gpu, library
from .arrays import check_rows
from .call import AnyFunction, binder

_SPECIAL_MEMORY = ("cpu_pinned", "cpu_shared")


def keeps_arguments(constructor: AnyFunction) -> AnyFunction:
    """Decorator: makes the constructor of an operator's block, without a body, keep its arguments.

    They are the operator's parameters, and `prefix` and `params` of the Gluon block.
    """
    name = constructor.__qualname__.partition(".")[0]
    signature = inspect.signature(constructor)
    _, *parameters = signature.parameters.values()
    bind = binder(name, signature.replace(parameters=parameters))

    @functools.wraps(constructor)
    def construct(self: OperatorBlock, *args: Any, **kwargs: Any) -> None:
        OperatorBlock.__init__(self, **bind(args, kwargs))

    return construct  # type: ignore[return-value]


class OperatorBlock(HybridBlock):
    """Keeps the parameters of a call; a subclass names the `function` that it calls."""

    function: Callable

    def __init__(self, prefix: str | None, params: Any, **parameters: Any) -> None:
        super().__init__(prefix, params)
        self._parameters = {name: parameters[name] for name in self._operator.parameters}

    @property
    def _operator(self) -> library.Declared:
        return library.operators()[type(self).function.__name__]

    def _named(self, inputs: tuple) -> dict[str, Any]:
        names = self._operator.input_names
        if len(inputs) > len(names):
            raise TypeError(
                f"{self._operator.name}: expected at most {len(names)} inputs "
                f"({', '.join(names)}), got {len(inputs)}"
            )
        return dict(zip(names, inputs))

    def forward(self, *inputs: Any) -> Any:
        if not self._active:
            return super().forward(*inputs)
        if mx.autograd.is_recording():
            inputs = tuple(map(_in_plain_memory, inputs))
        try:
            result = super().forward(*inputs)
        except mx.MXNetError:
            self._clear_cached_op()  # after an error, it takes the bad shapes for known
            raise
        if isinstance(result, mx.nd.NDArray):
            if gpu.HAS_GPUS:
                gpu.warn_unless_checked(result.context)
            check_rows(self._operator, self._named(inputs), result)
        return result

    def hybrid_forward(self, F: Any, *inputs: Any) -> Any:
        return type(self).function(**self._named(inputs), **self._parameters)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._parameters.items())
        return f"{type(self).__name__}({shown})"


def _in_plain_memory(value: Any) -> Any:
    """A copy of an array in pinned or shared CPU memory, for a recorded graph.

    MXNet gives such an array a gradient in plain memory, and then finds the graph's shapes in
    neither of the two contexts.
    """
    if isinstance(value, (list, tuple)):
        return [_in_plain_memory(one) for one in value]
    if isinstance(value, mx.nd.NDArray) and value.context.device_type in _SPECIAL_MEMORY:
        return value.as_in_context(mx.cpu(value.context.device_id))
    return value
