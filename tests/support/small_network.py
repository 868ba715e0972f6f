# SPDX-License-Identifier: Apache-2.0
"""A small network with a RoI operator, and outputs and gradients that PyTorch has to equal."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import gluon_roi

SIZE, ROIS = (2, 3, 24, 32), 6  # of the images, and the number of RoIs
#: What both gradients may differ by, relative to the largest number of each.
TOLERANCE = 1e-4


class Network(mx.gluon.HybridBlock):
    """A convolution, a residual unit, anchors as a constant, ROIAlign and a dense layer."""

    def __init__(self) -> None:
        super().__init__(prefix="small_")
        nn = mx.gluon.nn
        # So that training, the only mode in which MXNet's gradients are right, is as inference.
        normalization = functools.partial(nn.BatchNorm, use_global_stats=True)
        with self.name_scope():
            self.stem = nn.HybridSequential()
            self.stem.add(nn.Conv2D(8, 3, 2, 1), normalization(), nn.Activation("relu"))
            self.unit = nn.HybridSequential()
            self.unit.add(nn.Conv2D(8, 3, padding=1), normalization(), nn.PReLU())
            self.pool = gluon_roi.ROIAlign(3, 1 / 2, sampling_ratio=2)
            self.dense = nn.Dense(5)
            self.anchors = self.params.get_constant("anchors", np.arange(5, dtype="float32"))

    def hybrid_forward(self, F: Any, image: Any, rois: Any, anchors: Any) -> Any:
        features = self.stem(image)
        features = features + self.unit(features)
        return F.broadcast_add(self.dense(self.pool(features, rois)), anchors)


def make() -> tuple[Network, list[np.ndarray]]:
    """The network and its inputs, with the same numbers each time."""
    random = np.random.RandomState(0)
    image = random.randn(*SIZE).astype("float32")
    corners = np.sort(random.uniform(0, 24, (ROIS, 2, 2)), axis=1).reshape(ROIS, 4)
    rois = np.hstack([np.arange(ROIS)[:, None] % 2, corners]).astype("float32")
    net = Network()
    net.initialize()
    net(*map(mx.nd.array, (image, rois)))
    for name, parameter in sorted(net.collect_params().items()):
        if not name.endswith("anchors"):
            value = random.uniform(0.5, 1.5, parameter.shape)
            is_weight = name.endswith(("weight", "bias", "beta", "mean"))
            parameter.set_data(mx.nd.array((value - 1) * 0.8 if is_weight else value))
    return net, [image, rois]


def head_gradient(shape: tuple) -> np.ndarray:
    return np.random.RandomState(1).randn(*shape).astype("float32")


def export(net: Network, path: Path, **options: Any) -> None:
    gluon_roi.onnx.export(net, [SIZE, (ROIS, 5)], path, dynamic=[(0, 2, 3), (0,)], **options)


def exported(path: Path) -> tuple[Network, list[np.ndarray], Path]:
    """The network, its inputs and its file, which keeps batch normalization."""
    net, inputs = make()
    export(net, path, fold=False)
    return net, inputs, path


def in_mxnet(net: Any, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
    """The output, and the gradients of the image and of the parameters, by name."""
    image, *others = map(mx.nd.array, inputs)
    image.attach_grad()
    with mx.autograd.record():
        out = net(image, *others)
    out.backward(mx.nd.array(head_gradient(out.shape)))
    weights = {n: p for n, p in net.collect_params().items() if p.grad_req != "null"}
    gradients = {name: parameter.grad().asnumpy() for name, parameter in weights.items()}
    return {"output": out.asnumpy(), "image": image.grad.asnumpy(), **gradients}


def in_torch(module: Any, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
    import torch

    image, *others = map(torch.tensor, inputs)
    image.requires_grad_()
    out = module(image, *others)
    out.backward(torch.tensor(head_gradient(out.shape)))
    gradients = {name: weight.grad.numpy() for name, weight in module.named_parameters()}
    return {"output": out.detach().numpy(), "image": image.grad.numpy(), **gradients}


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        limit = TOLERANCE * np.abs(values).max()
        np.testing.assert_allclose(found[name], values, rtol=0, atol=limit, err_msg=name)
