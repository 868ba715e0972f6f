# SPDX-License-Identifier: Apache-2.0
"""Parameters are read while a network runs: MXNet's Deconvolution exchanges its weights then."""

from __future__ import annotations

import threading
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import gluon_roi
from gluon_roi.weights import copy_weights


def _network() -> tuple[Any, Any]:
    """A network and its input, which takes some milliseconds."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Conv2DTranspose(64, 4, strides=2, padding=1, in_channels=64))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = mx.nd.random.normal(shape=(1, 64, 64, 64))
    net(x).wait_to_read()
    return net, x


def test_a_call_that_has_not_ended():
    net, x = _network()
    weight = net[0].weight.data()
    expected = weight.asnumpy()
    for _ in range(6):
        net(x)
        assert (copy_weights(weight).asnumpy() == expected).all()
    assert (weight.asnumpy() == expected).all()


def test_another_thread_that_goes_on_calling():
    net, x = _network()
    weight = net[0].weight.data()
    expected, outputs = weight.asnumpy(), net(x).asnumpy()
    must_end, found = threading.Event(), []

    def call() -> None:
        while not must_end.is_set():
            found.append(net(x).asnumpy())

    caller = threading.Thread(target=call)
    caller.start()
    try:
        copies = [copy_weights(weight).asnumpy() for _ in range(30)]
    finally:
        must_end.set()
        caller.join()
    assert all((values == expected).all() for values in copies)
    assert all((values == outputs).all() for values in found)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int32"])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (2, 3, 2, 2)])
def test_copies_are_equal_bytes(dtype, shape):
    values = (np.arange(np.prod(shape)).reshape(shape) - 1).astype(dtype)
    if values.dtype.kind == "f":
        values.ravel()[:3] = np.nan, -0.0, -np.inf
    array = mx.nd.array(values, dtype=dtype)
    copied = copy_weights(array)
    assert copied is not array and copied.dtype == array.dtype
    assert copied.asnumpy().tobytes() == array.asnumpy().tobytes() == values.tobytes()


def test_while_a_gradient_is_recorded():
    array = mx.nd.arange(8).reshape((2, 2, 2))
    array.attach_grad()
    with mx.autograd.record():
        y = array * copy_weights(array)
    y.backward()
    assert (array.grad.asnumpy() == array.asnumpy()).all()


def test_export_after_a_call_that_has_not_ended(tmp_path):
    onnx = pytest.importorskip("onnx")
    net, x = _network()
    weight = net[0].weight.data()
    expected = weight.asnumpy()
    for _ in range(6):
        net(x)
        gluon_roi.onnx.export(net, [x.shape], tmp_path / "model.onnx")
        written = {v.name: v for v in onnx.load(str(tmp_path / "model.onnx")).graph.initializer}
        found = onnx.numpy_helper.to_array(written[net[0].weight.name])
        assert (found == expected).all()
