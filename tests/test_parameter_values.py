# SPDX-License-Identifier: Apache-2.0
"""Parameters are read as they are, whatever runs meanwhile."""

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
from gluon_roi.bridge.parameter_values import stable, values_of


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
    compiled = dict(net._call_cached_op._compiled)
    layer = {"kernel": (2, 2), "stride": (2, 2), "num_filter": 64}
    for _ in range(5):
        start_call(functools.partial(mx.nd.Deconvolution, DATA, net.weight.data(), **layer))
        net(DATA)
        assert net._call_cached_op._compiled == compiled


def test_other_arrays_are_read_without_a_copy():
    with mx.util.np_shape():
        empty = mx.nd.zeros((0, 1, 2, 2))
        assert values_of(empty).shape == empty.shape and stable(empty) is empty
    for array in (
        mx.nd.ones((2, 3, 4)),
        mx.nd.ones((2, 3, 4, 5), dtype="float16"),
        mx.nd.ones((2, 3)).tostype("row_sparse"),
    ):
        assert stable(array) is array
        assert values_of(array).dtype == array.dtype
    special = mx.nd.array([[[[np.nan, -0.0], [np.inf, 1e-40]]]])
    copy = stable(special)
    assert copy is not special and values_of(copy).tobytes() == special.asnumpy().tobytes()


def test_a_parameter_with_a_gradient_is_read_while_autograd_records():
    weight = mx.nd.ones((2, 2, 2, 2))
    weight.attach_grad()
    with mx.autograd.record():
        loss = (weight * weight).sum()
        assert (values_of(weight) == 1).all()
    loss.backward()
    assert (weight.grad.asnumpy() == 2).all()
