# SPDX-License-Identifier: Apache-2.0
"""Calls MXNet's RoI functions, replaced and not, under its automatic mixed precision.

AMP cannot be switched off again in a process.
"""

import mxnet as mx
import numpy as np
from mxnet.contrib import amp

import gluon_roi

amp.init()
DATA, ROIS = mx.nd.ones((1, 4, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])
CALLS = (
    lambda F, x, r: F.ROIPooling(x, r, (2, 2), 1),
    lambda F, x, r: F.contrib.ROIAlign(x, r, (2, 2), spatial_scale=1),
    lambda F, x, r: F.contrib.PSROIPooling(x, r, 1, 1, 2),
    lambda F, x, r: F.contrib.DeformablePSROIPooling(
        x, r, spatial_scale=1, output_dim=1, group_size=2, pooled_size=2, no_trans=True
    ),
)


def both_ways(call):
    symbol = call(mx.sym, mx.sym.var("data"), mx.sym.var("rois"))
    executor = symbol.bind(mx.cpu(), {"data": DATA, "rois": ROIS})
    return symbol, call(mx.nd, DATA, ROIS).asnumpy(), executor.forward()[0].asnumpy()


for call in CALLS:
    _, *expected = both_ways(call)
    replaced = gluon_roi.replace_builtins()
    symbol, *actual = both_ways(call)
    replaced.close()
    for theirs, ours in zip(expected, actual):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    used = [name for name, uses in gluon_roi.count(symbol).items() if uses]
    assert len(used) == 1 and used[0].startswith("_gluon_roi_"), used
    _, *after = both_ways(call)
    for theirs, ours in zip(expected, after):
        np.testing.assert_array_equal(ours, theirs)
