# SPDX-License-Identifier: Apache-2.0
"""Prints a digest of the results of every row of the tests, forward and backward."""

import sys
from hashlib import sha256
from pathlib import Path

import mxnet as mx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from operators import ROWS  # noqa: E402

digest = sha256()
rng = np.random.RandomState(0)
low = rng.uniform(-20, 300, (200, 2))
# One image has nearly all RoIs: the threads that have the other help.
rois = np.hstack([rng.rand(200, 1) < 0.9, low, low + rng.uniform(1, 200, (200, 2))])
for dtype in ("float32", "float64", "float16"):
    for op, arguments in ROWS:
        x = mx.nd.array(rng.randn(2, op.channels(35, (3, 3), arguments), 30, 40), dtype=dtype)
        r = mx.nd.array(op.rois(rois))
        x.attach_grad()
        r.attach_grad()
        more = {"rois_grad": True} if op.rois_grad else {}
        with mx.autograd.record():
            y = op.function(x, r, (3, 3), 0.1, **arguments, **more)
        y.backward(mx.nd.array(rng.randn(*y.shape), dtype=dtype))
        for array in (y, x.grad, r.grad):
            digest.update(array.asnumpy().tobytes())
print(digest.hexdigest())
