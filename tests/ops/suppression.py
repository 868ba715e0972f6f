# SPDX-License-Identifier: Apache-2.0
"""Inputs and the hidden output of BoxNMS and Proposal, as arrays of MXNet."""

from __future__ import annotations

import mxnet as mx
from support.suppressed import Suppressed

import gluon_roi


def arrays_of(call: Suppressed, dtype, ctx):
    return [mx.nd.array(a, ctx=ctx, dtype=dtype) for a in call.arrays(dtype)]


def record_of(data, **parameters):
    """The hidden second output, through a symbol."""
    symbol = gluon_roi.sym.BoxNMS(mx.sym.var("data"), name="n", **parameters)
    record = symbol.get_internals()["n_output1"]
    return record.bind(data.context, {"data": data}).forward()[0].asnumpy()
