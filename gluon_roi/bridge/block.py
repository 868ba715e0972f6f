"""The base of the operators' blocks."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
from mxnet.gluon import HybridBlock

from .arrays import check_rows

_SPECIAL_MEMORY = ("cpu_pinned", "cpu_shared")


class RoiBlock(HybridBlock):
    """Keeps the parameters of a call; a subclass says which function they belong to."""

    function: Callable

    def __init__(self, parameters: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._parameters = parameters

    def forward(self, data: Any, rois: Any, *others: Any) -> Any:
        if not self._active:
            return super().forward(data, rois, *others)
        if mx.autograd.is_recording():
            data, rois = _in_plain_memory(data), _in_plain_memory(rois)
            others = tuple(map(_in_plain_memory, others))
        try:
            result = super().forward(data, rois, *others)
        except mx.MXNetError:
            self._clear_cached_op()  # it takes shapes that it refused for known afterwards
            raise
        if isinstance(result, mx.nd.NDArray):
            check_rows(type(self).function.__name__, rois, result)
        return result

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        return type(self).function(data, rois, rois_num=rois_num, **self._parameters)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._parameters.items())
        return f"{type(self).__name__}({shown})"


def _in_plain_memory(value: Any) -> Any:
    """A copy of an array that lies in pinned or shared memory of the CPU, for a recorded graph.

    MXNet gives such an array a gradient in plain memory, and then finds the graph's shapes in
    neither of the two contexts.
    """
    if isinstance(value, (list, tuple)):
        return [_in_plain_memory(one) for one in value]
    if isinstance(value, mx.nd.NDArray) and value.context.device_type in _SPECIAL_MEMORY:
        return value.as_in_context(mx.cpu(value.context.device_id))
    return value
