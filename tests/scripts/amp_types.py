# SPDX-License-Identifier: Apache-2.0
"""Prints the type of every array in the demo's training graph under float16, as JSON.

    python amp_types.py MODEL ...

MODEL is the network, the head and the names of switches, such as "small psroi deform"; there is a
table for each. float16 is for GPUs, but type inference computes nothing and so needs none.
"""

import json
import sys

import mxnet as mx
import numpy as np
from mxnet.contrib import amp

from demo_rfcn.model import detector
from demo_rfcn.model.config import ModelConfig
from demo_rfcn.run import train

nets, tables = [], []
for text in sys.argv[1:]:
    network, head, *flags = text.split()
    shape = ("a", "b"), network, head, 3, "class_agnostic" in flags, (2.0, 4.0), (1.0,)
    nets.append(detector.build(ModelConfig(*shape, deform="deform" in flags), [mx.cpu()], seed=0))
amp.init("float16", **train.AMP_OPERATORS)
for net in nets:
    names = ("data", "labels", "rpn_cls", "rpn_box")
    losses = detector.TrainGraph(net, rpn_num_sample=128, ohem=True)(*map(mx.sym.var, names))
    graph = mx.sym.Group(losses).get_internals()
    arguments, outputs, _ = graph.infer_type(**dict.fromkeys(names, "float32"))
    assert set(arguments) == {np.float32}
    tables.append({n: np.dtype(t).name for n, t in zip(graph.list_outputs(), outputs)})
print(json.dumps(tables))
