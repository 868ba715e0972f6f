# SPDX-License-Identifier: Apache-2.0
"""Parameters are read while a network runs: MXNet's Deconvolution exchanges its weights then."""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import Any, Callable, Iterator

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon

import gluon_roi
from gluon_roi.weights import array_of, copy_weights, new_weights, values_of, view_of


def deconvolution(side: int) -> gluon.nn.Conv2DTranspose:
    """A network in which MXNet exchanges weights, long enough to be read meanwhile."""
    net = gluon.nn.Conv2DTranspose(64, side, strides=2, in_channels=64)
    mx.random.seed(0)
    net.initialize(mx.init.Normal(0.1))
    net.hybridize()
    return net


DATA = mx.nd.ones((1, 64, 96, 96)) / 64


def start_call(function: Callable[[], Any]) -> None:
    """Start a call after one has ended: the first lays the weights out."""
    function()
    mx.nd.waitall()
    function()


@contextlib.contextmanager
def calls_in_another_thread(function: Callable[[], Any]) -> Iterator[None]:
    is_done = threading.Event()

    def call() -> None:
        while not is_done.is_set():
            function()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


@pytest.mark.parametrize("form", ["mx.nd", "mx.np"])
def test_values_during_a_call(form):
    net = deconvolution(4)
    weight = net.weight.data()
    expected = weight.asnumpy()
    given = weight.as_np_ndarray() if form == "mx.np" else weight
    for _ in range(5):
        start_call(lambda: net(DATA))
        np.testing.assert_array_equal(values_of(given), expected)


@pytest.mark.parametrize(
    "axes, shape",
    [
        (1, (1, 64, 20000)),
        pytest.param(
            3,
            (1, 64, 16, 16, 16),
            marks=pytest.mark.skipif(mx.__version__ < "1.9", reason="MXNet 1.8 has no such layer"),
        ),
    ],
)
def test_values_of_other_ranks_during_a_call(axes, shape):
    block = {1: gluon.nn.Conv1DTranspose, 3: gluon.nn.Conv3DTranspose}[axes]
    net, data = block(64, 4, strides=2, in_channels=64, groups=2), mx.nd.ones(shape) / 64
    net.initialize(mx.init.Normal(0.1))
    expected = net.weight.data().asnumpy()
    for _ in range(3):
        start_call(lambda: net(data))
        np.testing.assert_array_equal(values_of(net.weight.data()), expected)


def test_values_while_another_thread_calls():
    """To wait for the calls before is not enough."""
    net = deconvolution(4)
    expected = net.weight.data().asnumpy()
    with calls_in_another_thread(lambda: net(DATA).wait_to_read()):
        found = [values_of(net.weight.data()) for _ in range(30)]
    assert all(np.array_equal(values, expected) for values in found)


def test_conversion_during_a_call():
    """The kernel does not overlap, so the conversion reads the weights."""
    net = deconvolution(2)
    expected = net(DATA).asnumpy()
    start_call(lambda: net(DATA))
    gluon_roi.optimize(net, DATA, inference=True)
    np.testing.assert_allclose(net(DATA).asnumpy(), expected, rtol=1e-4, atol=1e-4)


def test_conversion_while_another_thread_calls():
    net = deconvolution(2)
    expected = net(DATA).asnumpy()
    net.hybridize(active=False)
    # The other thread runs another block with the same parameters: a network is for one thread.
    same = gluon.nn.Conv2DTranspose(64, 2, strides=2, in_channels=64, params=net.collect_params())
    same.hybridize()
    with calls_in_another_thread(lambda: same(DATA).wait_to_read()):
        for _ in range(2):
            gluon_roi.optimize(net, DATA, inference=True)
            np.testing.assert_allclose(net(DATA).asnumpy(), expected, rtol=1e-4, atol=1e-4)


def test_a_conversion_is_kept_while_the_original_runs():
    """Exchanged weights do not pass for changed ones."""
    net = deconvolution(2)
    gluon_roi.optimize(net, DATA, inference=True)
    net(DATA)
    compiled = dict(net._call_cached_op._converted)
    layer = {"kernel": (2, 2), "stride": (2, 2), "num_filter": 64}
    for _ in range(5):
        start_call(functools.partial(mx.nd.Deconvolution, DATA, net.weight.data(), **layer))
        net(DATA)
        assert net._call_cached_op._converted == compiled


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int32"])
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (2, 3, 2, 2), (2, 1, 3, 1, 2)])
def test_copies_are_equal_bytes(dtype, shape):
    values = (np.arange(np.prod(shape)).reshape(shape) - 1).astype(dtype)
    if values.dtype.kind == "f":
        values.ravel()[:3] = np.nan, -0.0, -np.inf
    array = mx.nd.array(values, dtype=dtype)
    copied = copy_weights(array)
    assert copied is not array and copied.dtype == array.dtype
    assert copied.asnumpy().tobytes() == array.asnumpy().tobytes() == values.tobytes()
    assert values_of(array).tobytes() == values.tobytes()


def test_arrays_that_are_empty_or_sparse():
    with mx.util.np_shape():
        empty = mx.nd.zeros((0, 1, 2, 2))
        assert values_of(empty).shape == copy_weights(empty).shape == (0, 1, 2, 2)
    sparse = mx.nd.array([[1, 2], [0, 0]]).tostype("row_sparse")
    assert values_of(sparse).tolist() == [[1, 2], [0, 0]]


def test_values_have_memory_of_their_own():
    array = mx.nd.ones((2, 3, 2, 2))
    values = values_of(array)
    values[:] = 2
    assert (array.asnumpy() == 1).all()
    array[:] = 3
    del array
    assert (values == 2).all()


def test_new_weights_become_an_array_without_a_copy():
    values = new_weights((2, 3, 16))
    values[:] = np.arange(96).reshape(2, 3, 16)
    array = array_of(values)
    assert array.shape == (2, 3, 16) and array.asnumpy().tobytes() == values.tobytes()
    address = view_of(array).ctypes.data
    assert address == values.ctypes.data and address % 64 == 0
    del array
    assert values.sum() == 96 * 95 / 2


@pytest.mark.parametrize("change", [lambda v: v[:1], lambda v: v.T, lambda v: v.reshape(-1)])
def test_parts_of_new_weights_are_copied(change):
    values = new_weights((2, 3))
    values[:] = [[1, 2, 3], [4, 5, 6]]
    array = array_of(change(values))
    assert view_of(array).ctypes.data != values.ctypes.data
    np.testing.assert_array_equal(array.asnumpy(), change(values))


def test_new_weights_without_elements():
    with mx.util.np_shape():
        assert array_of(new_weights((0, 3, 16))).shape == (0, 3, 16)


def test_a_parameter_with_a_gradient_is_read_while_autograd_records():
    weight = mx.nd.ones((2, 2, 2, 2))
    weight.attach_grad()
    with mx.autograd.record():
        loss = (weight * weight).sum()
        assert (values_of(weight) == 1).all()
    loss.backward()
    assert (weight.grad.asnumpy() == 2).all()


def test_export_after_a_call_that_has_not_ended(tmp_path):
    onnx = pytest.importorskip("onnx")
    net = deconvolution(4)
    expected = net.weight.data().asnumpy()
    for _ in range(3):
        start_call(lambda: net(DATA))
        gluon_roi.onnx.export(net, [DATA.shape], tmp_path / "model.onnx")
        written = {v.name: v for v in onnx.load(str(tmp_path / "model.onnx")).graph.initializer}
        found = onnx.numpy_helper.to_array(written[net.weight.name])
        assert (found == expected).all()
