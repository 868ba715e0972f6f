# SPDX-License-Identifier: Apache-2.0
"""Reads the parameters of a network while it may be running."""

from __future__ import annotations

import mxnet as mx
import numpy as np


def copy_weights(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """A copy of a parameter, with the value that it has between two calls of operators.

    MXNet's Deconvolution exchanges the first two axes of its weights in place while it runs (in
    float32 on the CPU, where oneDNN computes it). For MXNet's engine it is a reader, and readers
    run at the same time: ``asnumpy``, ``copy`` and any other operator may read exchanged weights,
    from a call of this thread that has not ended as well as from another thread. Waiting first is
    not enough if another thread goes on calling the network. An operator that writes an array has
    it to itself, so this one writes the array's own value.
    """
    array = array.as_nd_ndarray()
    is_exchanged = array.dtype == np.float32 and array.context.device_type == "cpu"
    with mx.autograd.pause():
        if not is_exchanged or array.stype != "default" or array.ndim < 3 or array.size == 0:
            return array.copy()
        copied = mx.nd.empty(array.shape, ctx=array.context)
        mx.nd.amp_multicast(array, array, num_outputs=2, out=[array, copied])
    return copied
