"""Calls every operator on hostile boxes, drawn from SEED: prints "alive".

python hostile_calls.py SEED
"""

import sys
from pathlib import Path

import mxnet as mx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from operators import OPERATORS  # noqa: E402

values = [np.nan, np.inf, -np.inf, 1e20, -1e20, 3e38, 0, -0.0, 1e-45, 7.5, 2**31, -(2**31), 2**63]
rng = np.random.RandomState(int(sys.argv[1]))
for _ in range(60):
    for op in OPERATORS:
        rois = rng.choice(values, (6, op.coordinates + 1))
        if rng.rand() < 0.7:
            rois[:, 0] = rng.randint(-1, 2, 6)
        x = mx.nd.array(rng.randn(2, op.channels(2, (3, 3), {}), 5, 7))
        x.attach_grad()
        arguments = op.arguments[rng.randint(len(op.arguments))]
        if op.channels(1, (3, 3), arguments) != op.channels(1, (3, 3), {}):
            arguments = {}
        if op.rois_grad:
            arguments = {**arguments, "rois_grad": True}
        try:
            with mx.autograd.record():
                y = op.function(x, mx.nd.array(rois), (3, 3), 0.5, **arguments)
            y.backward()
            mx.nd.waitall()
        except mx.MXNetError as error:
            assert "has batch index" in str(error), error
print("alive")
