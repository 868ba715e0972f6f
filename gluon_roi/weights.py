# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of a network while it may be running, and makes new ones.

MXNet's Deconvolution exchanges the first two axes of its weights in place while it runs (in float32
on the CPU, where oneDNN computes it). For MXNet's engine it is a reader, and readers run at the
same time: ``asnumpy``, ``copy`` and any other operator may read exchanged weights, from a call of
this thread that has not ended as well as from another thread. Waiting first, ``mx.nd.waitall()``,
is not enough if another thread goes on calling the network.

The operator ExclusiveCopy (src/ops/exclusive_copy.h) declares that it writes the array that it
copies, so the engine runs it when no other operator has the array.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable, Sequence

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from . import library


def values_of(array: mx.nd.NDArray) -> np.ndarray:
    """The values of a parameter, in memory of their own."""
    return view_of(copy_weights(array)) if _may_be_exchanged(array) else array.asnumpy()


class _Memory:
    """Lets NumPy use the memory of an array of MXNet, and keeps that array alive."""

    def __init__(self, array: mx.nd.NDArray) -> None:
        array.wait_to_read()
        address = ctypes.c_void_p()
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
        self.array = array
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": array.shape,
            "typestr": np.dtype(array.dtype).str,
            "data": (address.value, False),
        }


def view_of(array: mx.nd.NDArray) -> np.ndarray:
    """A NumPy view of an array on the CPU that is not empty and that no operator writes.

    Writes to the view change the array.
    """
    return np.asarray(_Memory(array))


def new_weights(shape: Sequence[int]) -> np.ndarray:
    """An array of float32 with any values, of which `array_of` makes one of MXNet without a copy.

    Its memory is aligned to lines of the cache.
    """
    if 0 in shape:
        return np.empty(shape, np.float32)
    return view_of(mx.nd.empty(shape, mx.cpu()))


def array_of(values: np.ndarray) -> mx.nd.NDArray:
    """An array of MXNet with these values, in the same memory if `new_weights` made it."""
    memory = values.base
    if isinstance(memory, _Memory) and memory.array.shape == values.shape:
        return memory.array
    return mx.nd.array(values, mx.cpu(), dtype=values.dtype)


def copy_weights(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """A copy of a parameter."""
    array = array.as_nd_ndarray()
    with mx.autograd.pause():
        return _exclusive_copy()(array) if _may_be_exchanged(array) else array.copy()


def _may_be_exchanged(array: mx.nd.NDArray) -> bool:
    """Whether an array can be the weights of a Deconvolution that exchanges them."""
    is_dense = array.stype == "default" and array.size > 0
    is_computed_by_onednn = array.dtype == np.float32 and array.context.device_type != "gpu"
    return is_dense and is_computed_by_onednn and array.ndim in (3, 4, 5)


@functools.lru_cache(maxsize=None)
def _exclusive_copy() -> Callable:
    return library.function_of("_gluon_roi_ExclusiveCopy", mx.nd.register._make_ndarray_function)
