# SPDX-License-Identifier: Apache-2.0
"""Reads the values of a network's parameters while the network may be running.

MXNet's Deconvolution on oneDNN exchanges the first two axes of its weights in place while it runs,
and declares that it only reads them. So MXNet does not wait for it before the weights are read:
``weight.data().asnumpy()`` after a call that still runs returns exchanged weights. To wait for all
operators (``mx.nd.waitall()``) is not enough, because another thread may start the next one.

The operator ExclusiveCopy (src/ops/exclusive_copy.h) declares that it writes the array that it
copies, so MXNet's engine runs it when no other operator has the array.
"""

from __future__ import annotations

import functools
from typing import Callable

import mxnet as mx
import numpy as np

from .. import library


def values_of(array: mx.nd.NDArray) -> np.ndarray:
    """The values of a parameter, as ``array.asnumpy()`` should return them."""
    return stable(array).asnumpy()


def stable(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """An array with the values of a parameter that no running operator changes.

    It is a copy of weights that Deconvolution may have, and any other array itself.
    """
    is_dense = array.stype == "default"
    if not is_dense or array.dtype != np.float32 or array.ndim != 4 or array.size == 0:
        return array
    if array.context.device_type == "gpu":  # Deconvolution does not exchange weights there
        return array
    with mx.autograd.pause():
        return _exclusive_copy()(array.as_nd_ndarray())


@functools.lru_cache(maxsize=None)
def _exclusive_copy() -> Callable:
    return library.function_of("_gluon_roi_ExclusiveCopy", mx.nd.register._make_ndarray_function)
