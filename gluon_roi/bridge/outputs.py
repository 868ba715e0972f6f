# SPDX-License-Identifier: Apache-2.0
"""Checks of the arrays that a call writes to, its argument out."""

from __future__ import annotations

import ctypes
import itertools
import math
from typing import Any, Mapping, Sequence

import mxnet as mx
import numpy as np
from mxnet import base

_Sizes = ctypes.POINTER(ctypes.c_int64)


def sizes_of(array: mx.nd.NDArray) -> list[int]:
    """``list(array.shape)`` through MXNet's C interface, in a third of the time."""
    dimensions, sizes = ctypes.c_int(), _Sizes()
    base.check_call(
        base._LIB.MXNDArrayGetShapeEx64(array.handle, ctypes.byref(dimensions), ctypes.byref(sizes))
    )
    return sizes[: dimensions.value]


def _memory(array: mx.nd.NDArray) -> tuple[int, int]:
    """The address of an array's first byte, and that behind its last one.

    It waits for the array, because MXNet may replace the memory of one that is being computed.
    """
    array.wait_to_read()
    address = ctypes.c_void_p()
    base.check_call(base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    begin = address.value or 0
    return begin, begin + math.prod(sizes_of(array)) * np.dtype(array.dtype).itemsize


def shared_with(inputs: Mapping[str, mx.nd.NDArray], out: Sequence[mx.nd.NDArray]) -> list[str]:
    """The names of all arrays that share memory with an output.

    Views share the memory of their array.
    """
    outputs = [_memory(array) for array in out]
    names = []
    for name, array in inputs.items():
        memory = _memory(array)
        if any(_overlap(memory, other) for other in outputs):
            names.append(name)
    if any(_overlap(*pair) for pair in itertools.combinations(outputs, 2)):
        names.append("another array of out")
    return names


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def check_own_memory(operator: str, shared: Sequence[str]) -> None:
    """Raise MXNetError for the first array that shares memory with an output."""
    for name in shared:
        raise mx.MXNetError(
            f"{operator}: argument out: expected memory of its own, got some that is shared with "
            f"{name}"
        )


def check_like(operator: str, shape: tuple[int, ...], dtype: Any, array: mx.nd.NDArray) -> None:
    """Raise MXNetError unless an output has the shape and dtype of the result."""
    for what, expected, got in (
        ("shape", shape, array.shape),
        ("dtype", np.dtype(dtype).name, np.dtype(array.dtype).name),
    ):
        if got != expected:
            raise mx.MXNetError(f"{operator}: argument out: expected {what} {expected}, got {got}")
