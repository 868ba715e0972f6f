# SPDX-License-Identifier: Apache-2.0
"""Prints the instruction set, and digests of WinogradConvolution's outputs with it, as JSON.

The environment sets the instruction set and the threads; a process reads it once. Sizes leave a
remainder of tiles, channels and outputs, and are large enough for several threads.
"""

from __future__ import annotations

import hashlib
import json

import mxnet as mx
import numpy as np

import gluon_roi
from gluon_roi.inference import winograd

rng = np.random.RandomState(0)
digests = {}
for images, channels, outputs, height, width in [
    (1, 40, 70, 37, 41),
    (9, 33, 48, 14, 14),
    (1, 64, 112, 90, 100),
    (2, 20, 17, 19, 25),
]:
    for dilate in (1, 2):
        for with_residual in (False, True):
            shapes = [(images, channels, height, width), (outputs, channels, 3, 3), (outputs,)]
            shapes += [(images, outputs, height, width)] if with_residual else []
            data, weight, *more = (rng.randn(*shape) for shape in shapes)
            inputs = map(mx.nd.array, (data, winograd.transform_weights(weight), *more))
            out = winograd.convolve(*inputs, num_filter=outputs, dilate=dilate, act_type="relu")
            key = f"{data.shape} to {outputs}, dilate {dilate}, residual {with_residual}"
            digests[key] = hashlib.sha256(out.asnumpy().tobytes()).hexdigest()
print(json.dumps({"level": gluon_roi.build_info()["simd"], "digests": digests}))
