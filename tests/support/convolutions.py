# SPDX-License-Identifier: Apache-2.0
"""Inputs of MXNet's deformable convolutions, and both passes of their samples."""

from __future__ import annotations

import mxnet as mx
import numpy as np
from mxnet import autograd
from support.deformed import Sampled

import gluon_roi

#: channels, filters, num_group, num_deformable_group, stride, dilate, pad
CONVOLUTIONS = {
    "plain": (8, 6, 1, 1, 1, 1, 1),
    "groups": (8, 6, 2, 2, 2, 1, 1),
    "deformable_groups": (12, 4, 1, 4, 1, 2, 2),
    "no_pad": (4, 8, 4, 1, 2, 2, 0),
}


def convolution_inputs(name, ctx, dtype="float32"):
    """data, offset, weight, bias, and the arguments of MXNet's function."""
    channels, filters, groups, deformable, stride, dilate, pad = CONVOLUTIONS[name]
    call = Sampled(
        channels,
        (10, 13),
        {
            "kernel": 3,
            "stride": stride,
            "dilate": dilate,
            "pad": pad,
            "num_deformable_group": deformable,
        },
        False,
    )
    rng = np.random.RandomState(4)
    arrays = [*call.arrays(dtype), rng.randn(filters, channels // groups, 3, 3), rng.randn(filters)]
    arguments = {
        **{key: (value, value) for key, value in call.parameters.items() if "group" not in key},
        "num_filter": filters,
        "num_group": groups,
        "num_deformable_group": deformable,
    }
    return [mx.nd.array(a, ctx=ctx, dtype=dtype) for a in arrays], arguments


def run_samples(call, arrays, d_out, ctx, **changed):
    """Output and gradients, as NumPy arrays."""
    inputs = [mx.nd.array(a, ctx=ctx, dtype=a.dtype) for a in arrays]
    for array in inputs:
        array.attach_grad()
        array.grad[:] = 99  # what the operator leaves untouched shows
    with autograd.record():
        out = gluon_roi.nd.DeformableSampling(*inputs, **{**call.parameters, **changed})
    out.backward(mx.nd.array(d_out, ctx=ctx, dtype=d_out.dtype))
    return [out.asnumpy(), *(array.grad.asnumpy() for array in inputs)]
