# SPDX-License-Identifier: Apache-2.0
"""The base class of the operators' blocks."""

from __future__ import annotations

import os
import threading
from typing import Any

import mxnet as mx
from mxnet.gluon import HybridBlock

from .. import gpu, library
from .arrays import check_rows

_SPECIAL_MEMORY = ("cpu_pinned", "cpu_shared")
#: Held while a hybridized block builds its graph or calls it, because a graph is removed after an
#: error, which another thread must not see. MXNet computes the result outside of it. It belongs to
#: no block, so that blocks can be copied and pickled.
_graph_lock = threading.RLock()


def _renew_lock() -> None:
    """In a forked child: the thread that held the lock may not exist there."""
    global _graph_lock
    _graph_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class OperatorBlock(HybridBlock):
    """A block that calls one operator with fixed parameters."""

    operator_name: str

    def __init__(
        self, prefix: str | None, params: mx.gluon.ParameterDict | None, **parameters: Any
    ) -> None:
        super().__init__(prefix, params)
        self._parameters = parameters

    @property
    def _operator(self) -> library.Declared:
        return library.operators()[self.operator_name]

    def _check_inputs(self, inputs: tuple) -> None:
        declared = self._operator.inputs
        if len(inputs) > len(declared):
            raise TypeError(
                f"{self.operator_name}: expected at most {len(declared)} inputs "
                f"({', '.join(item.name for item in declared)}), got {len(inputs)}"
            )
        for missing in declared[len(inputs) :]:
            if not missing.optional:
                raise TypeError(f"{self.operator_name}: missing a required input: {missing.name!r}")

    def forward(self, *inputs: Any) -> Any:
        self._check_inputs(inputs)
        if not self._active:
            return super().forward(*inputs)
        if mx.autograd.is_recording():
            inputs = tuple(map(_in_plain_memory, inputs))
        with _graph_lock:
            try:
                result = super().forward(*inputs)
            except mx.MXNetError:
                self._clear_cached_op()  # after an error, it keeps the bad shapes
                raise
        if isinstance(result, mx.nd.NDArray):
            if gpu.HAS_GPUS:
                gpu.warn_unless_checked(result.context)
            check_rows(self._operator, dict(zip(self._operator.input_names, inputs)), result)
        return result

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self._parameters.items())
        return f"{type(self).__name__}({arguments})"


def _in_plain_memory(value: Any) -> Any:
    """A copy of an array in pinned or shared CPU memory, for a recorded graph.

    MXNet allocates the gradient of such an array in plain memory, and then cannot infer the graph's
    shapes, because the two contexts differ.
    """
    if isinstance(value, (list, tuple)):
        return [_in_plain_memory(item) for item in value]
    if isinstance(value, mx.nd.NDArray) and value.context.device_type in _SPECIAL_MEMORY:
        return value.as_in_context(mx.cpu(value.context.device_id))
    return value
