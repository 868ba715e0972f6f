# SPDX-License-Identifier: Apache-2.0
"""Calls operators in every way, with AMP started before or after the import and the switch.

    python amp_orders.py TYPE ORDER...

ORDER has the words import, switch and amp; without amp the numbers are those to compare with.
Prints the numbers of each way as JSON. In float16, which is for GPUs, it prints the types that
MXNet infers. AMP cannot be switched off again in a process.
"""

import json
import sys

import mxnet as mx
import numpy as np
from mxnet.contrib import amp

dtype, *order = sys.argv[1:]
INPUTS = (
    mx.nd.array(np.random.RandomState(0).randn(1, 3, 8, 8)),
    mx.nd.array([[0, 0, 0, 6, 6], [0, 1, 1, 5, 7], [-1, 0, 0, 0, 0]]),
)
CONVOLUTION = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 2, "no_bias": True}


class Net(mx.gluon.HybridBlock):
    """A convolution, which AMP computes in 16 bits, and an operator behind it."""

    def __init__(self, operator):
        super().__init__(prefix="")
        self.operator = operator
        mx.random.seed(0)
        with self.name_scope():
            self.conv = mx.gluon.nn.Conv2D(4, 3, padding=1, in_channels=3)
            self.offset = mx.gluon.nn.Conv2D(18, 3, padding=1, in_channels=4)
            self.weight = self.params.get("weight", shape=(2, 4, 3, 3))
        self.initialize(mx.init.Uniform(0.5))

    def hybrid_forward(self, F, data, rois, weight):
        maps = self.conv(data)
        return self.operator(F, maps, rois, self.offset(maps) * 0.1, weight)


OURS = {
    "ROIPool": lambda F, x, r, offset, w: F.gluon_roi.ROIPool(x, r, (2, 2), 1.0),
    "ROIAlign": lambda F, x, r, offset, w: F.gluon_roi.ROIAlign(x, r, (2, 2), 1.0),
    "DeformableConvolution": lambda F, x, r, offset, w: F.gluon_roi.DeformableConvolution(
        x, offset, w, **CONVOLUTION
    ),
}
THEIRS = {
    "ROIPool": lambda F, x, r, offset, w: F.ROIPooling(x, r, (2, 2), 1.0),
    "ROIAlign": lambda F, x, r, offset, w: F.contrib.ROIAlign(x, r, (2, 2), 1.0),
    "DeformableConvolution": lambda F, x, r, offset, w: F.contrib.DeformableConvolution(
        x, offset, w, **CONVOLUTION
    ),
}
found: dict = {}


def record(way, net, hybrid):
    if hybrid:
        net.hybridize()
    if dtype == "float16" and "amp" in order:
        symbol = net(mx.sym.var("data"), mx.sym.var("rois"))
        given = {"data", "rois"} & {*symbol.list_arguments()}
        types = symbol.infer_type(**dict.fromkeys(given, "float32"))[1]
        found[way] = np.dtype(types[0]).name
        return
    with mx.autograd.record():
        out = net(*INPUTS)
        out.sum().backward()
    gradient = net.conv.weight.grad()
    found[way] = [value.astype("float32").asnumpy().ravel().tolist() for value in (out, gradient)]


switched: dict = {}
for step in order:
    if step == "amp":
        amp.init(dtype)
    elif step == "import":
        import gluon_roi
    else:
        for name, operator in THEIRS.items():
            switched[name] = gluon_roi.optimize(Net(operator), *INPUTS)

for name in OURS:
    record(f"{name}, ours, eager", Net(OURS[name]), False)
    record(f"{name}, ours, hybridized", Net(OURS[name]), True)
    if name in switched:
        record(f"{name}, optimize", switched[name], True)
    with gluon_roi.replace_builtins():
        record(f"{name}, replaced, eager", Net(THEIRS[name]), False)
        record(f"{name}, replaced, hybridized", Net(THEIRS[name]), True)
print(json.dumps(found))
