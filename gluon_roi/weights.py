# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of a network while it may be running.

MXNet's Deconvolution exchanges the first two axes of its weights in place while it runs (in float32
on the CPU, where oneDNN computes it). For MXNet's engine it is a reader, and readers run at the
same time: ``asnumpy``, ``copy`` and any other operator may read exchanged weights, from a call of
this thread that has not ended as well as from another thread. Waiting first, ``mx.nd.waitall()``,
is not enough if another thread goes on calling the network.

The operator ExclusiveCopy (src/ops/exclusive_copy.h) declares that it writes the array that it
copies, so the engine runs it when no other operator has the array.
"""

from __future__ import annotations

import functools
from typing import Callable

import mxnet as mx
import numpy as np

from . import library


def values_of(array: mx.nd.NDArray) -> np.ndarray:
    """The values of a parameter."""
    return (copy_weights(array) if _may_be_exchanged(array) else array).asnumpy()


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
