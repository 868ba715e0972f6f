# SPDX-License-Identifier: Apache-2.0
"""Calls every operator on hostile boxes, offsets, scores and sizes of images: prints "alive".

python hostile_calls.py SEED ROUNDS
"""

import sys
from pathlib import Path

import mxnet as mx
import numpy as np

import gluon_roi

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from operators import OPERATORS  # noqa: E402
from support.deformed import CALLS as DEFORMED  # noqa: E402
from support.overlapped import CALLS as OVERLAPPED  # noqa: E402
from support.suppressed import CALLS as SUPPRESSED  # noqa: E402

values = [np.nan, np.inf, -np.inf, 1e20, -1e20, 3e38, 0, -0.0, 1e-45, 7.5, 2**31, -(2**31), 2**63]
rng = np.random.RandomState(int(sys.argv[1]))


def call(function, inputs, refusal, **arguments):
    """Forward and backward, or an error that says why not."""
    inputs = [mx.nd.array(one) for one in inputs]
    inputs[0].attach_grad()
    try:
        with mx.autograd.record():
            y = function(*inputs, **arguments)
        y.backward()
        mx.nd.waitall()
    except mx.MXNetError as error:
        assert refusal in str(error), error


def spoiled(arrays):
    """Arrays of which some numbers are hostile, many or few."""
    share = rng.choice([0.01, 0.3, 1])
    return [np.where(rng.rand(*a.shape) < share, rng.choice(values, a.shape), a) for a in arrays]


for _ in range(int(sys.argv[2])):
    for op in OPERATORS:
        rois = rng.choice(values, (6, op.coordinates + 1))
        if rng.rand() < 0.7:
            rois[:, 0] = rng.randint(-1, 2, 6)
        x = rng.randn(2, op.channels(2, (3, 3), {}), 5, 7)
        arguments = op.arguments[rng.randint(len(op.arguments))]
        if op.channels(1, (3, 3), arguments) != op.channels(1, (3, 3), {}):
            arguments = {}
        if op.rois_grad:
            arguments = {**arguments, "rois_grad": True}
        arguments = {"pooled_size": (3, 3), "spatial_scale": 0.5, **arguments}
        call(op.function, [x, rois], "has batch index", **arguments)
        if op.name == "DeformableROIAlign":
            shifts = spoiled([rng.randn(6, 2, 3, 3), rng.rand(6, 1, 3, 3)])
            arguments["gamma"] = rng.choice([0.1, -1.0, 1e9, 1e300])
            call(op.function, [x, rois, *shifts], "has batch index", **arguments)
            call(op.function, [x, rois, shifts[0]], "has batch index", **arguments)
        if op.name == "ROIAlign":
            arguments["mode"] = "max"
            call(op.function, [*spoiled([x]), rois], "has batch index", **arguments)
    for name in DEFORMED:
        first, *others = DEFORMED[name].arrays("float32")
        sample = gluon_roi.nd.DeformableSampling
        call(sample, [first, *spoiled(others)], "no error", **DEFORMED[name].parameters)
        if not DEFORMED[name].mask:
            arrays = DEFORMED[name].weighted()[0]
            convolve = gluon_roi.nd.DeformableConvolution
            call(convolve, spoiled(arrays), "no error", **DEFORMED[name].parameters)
    for name in SUPPRESSED:
        one = SUPPRESSED[name]
        if one.op == "box_nms":
            call(gluon_roi.nd.BoxNMS, spoiled(one.arrays("float32")), "no error", **one.parameters)
        else:
            *maps, sizes = one.arrays("float32")
            info = [sizes] if rng.rand() < 0.7 else spoiled([sizes])
            call(gluon_roi.nd.Proposal, [*spoiled(maps), *info], "im_info", **one.parameters)
    for name in OVERLAPPED:
        boxes = spoiled(OVERLAPPED[name].arrays("float32"))
        call(gluon_roi.nd.BoxIoU, boxes, "no error", **OVERLAPPED[name].parameters)
called = {op.name for op in OPERATORS} | {"DeformableSampling", "BoxNMS", "Proposal", "BoxIoU"}
assert called == {block.__name__ for block in gluon_roi.OPERATORS}
print("alive")
