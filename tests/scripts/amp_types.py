# SPDX-License-Identifier: Apache-2.0
"""Prints the type of every array in the demo's training graph under float16, as JSON.

    python amp_types.py NETWORK HEAD CLASS_AGNOSTIC DEFORM

float16 is for GPUs, but type inference computes nothing and so needs none.
"""

import json
import sys

import mxnet as mx
import numpy as np
from mxnet.contrib import amp

from demo_rfcn.model import detector
from demo_rfcn.model.config import ModelConfig
from demo_rfcn.run import optimizer

network, head, agnostic, deform = sys.argv[1:]
shape = ("a", "b"), network, head, 3, agnostic == "True", (2.0, 4.0), (1.0,)
config = ModelConfig(*shape, deform=deform == "True")
net = detector.build(config, [mx.cpu()], seed=0)
amp.init("float16", **optimizer.AMP_OPERATORS)
names = ("data", "labels", "rpn_cls", "rpn_box")
losses = detector.TrainGraph(net, rpn_num_sample=128, ohem=True)(*map(mx.sym.var, names))
graph = mx.sym.Group(losses).get_internals()
arguments, outputs, _ = graph.infer_type(**dict.fromkeys(names, "float32"))
assert set(arguments) == {np.float32}
print(json.dumps({n: np.dtype(t).name for n, t in zip(graph.list_outputs(), outputs)}))
