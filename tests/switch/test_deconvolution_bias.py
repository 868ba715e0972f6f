# SPDX-License-Identifier: Apache-2.0
"""optimize adds the bias of Deconvolutions itself where MXNet forgets it, as 1.8.0 does.

With other MXNets these tests pretend that it does.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_roi
from gluon_roi.switch import deconvolution

NEAR: Any = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def forgets(monkeypatch):
    monkeypatch.setattr(deconvolution, "FORGETS_BIAS", True)


def expected(data: Any, weight: Any, bias: Any, **layer: Any) -> np.ndarray:
    maps = mx.nd.Deconvolution(data, weight, num_filter=len(bias), no_bias=True, **layer)
    return maps.asnumpy() + bias.asnumpy().reshape(-1, 1, 1)


def network(**options: Any) -> gluon.nn.Conv2DTranspose:
    """A layer of numbers of channels for which MXNet 1.8.0 forgets the bias."""
    net = gluon.nn.Conv2DTranspose(16, 2, strides=2, bias_initializer="ones", **options)
    net.initialize()
    return net


def wanted(net: gluon.nn.Conv2DTranspose, x: Any) -> np.ndarray:
    return expected(x, net.weight.data(), net.bias.data(), kernel=(2, 2), stride=(2, 2))


@pytest.mark.parametrize("in_channels", [8, 0], ids=["known", "deferred"])
@pytest.mark.parametrize("flags", [{}, {"static_alloc": True}, {"inference": True}], ids=str)
def test_networks(flags, in_channels):
    net, x = network(in_channels=in_channels), mx.nd.random.normal(shape=(2, 8, 5, 6))
    for _ in range(2):  # a second time as well
        assert gluon_roi.optimize(net, x, **flags) is net
        np.testing.assert_allclose(net(x).asnumpy(), wanted(net, x), **NEAR)


def test_gradients():
    net, x = network(in_channels=8), mx.nd.random.normal(shape=(2, 8, 5, 6))
    gluon_roi.optimize(net, x)
    with autograd.record():
        net(x).sum().backward()
    assert (net.bias.grad().asnumpy() == 2 * 10 * 12).all()


def symbol() -> Any:
    return mx.sym.Deconvolution(
        mx.sym.var("x"), kernel=(3, 3), stride=(2, 2), pad=(1, 1), num_filter=16, no_bias=False,
        name="layer", attr={"__lr_mult__": "2"},
    )  # fmt: skip


def test_symbols():
    before = symbol()
    after = gluon_roi.optimize(before)
    assert after.list_outputs() == before.list_outputs()
    assert after.list_arguments() == before.list_arguments()
    assert after.attr_dict()["layer"]["__lr_mult__"] == "2"
    assert after.infer_shape(x=(1, 8, 5, 5)) == before.infer_shape(x=(1, 8, 5, 5))
    assert gluon_roi.optimize(after).tojson() == after.tojson()
    values = {
        "x": mx.nd.random.normal(shape=(1, 8, 5, 5)),
        "layer_weight": mx.nd.random.normal(shape=(8, 16, 3, 3)),
        "layer_bias": mx.nd.random.normal(shape=(16,)),
    }
    (found,) = after.bind(mx.cpu(), values).forward()
    layer: dict[str, Any] = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}
    np.testing.assert_allclose(found.asnumpy(), expected(*values.values(), **layer), **NEAR)


def test_bodies_of_loops():
    def body(x: Any, state: Any) -> Any:
        maps = mx.sym.Deconvolution(
            x, mx.sym.var("w"), mx.sym.var("b"), kernel=(2, 2), num_filter=8, no_bias=False
        )
        return maps, state

    loop, _ = mx.sym.contrib.foreach(body, mx.sym.var("x"), mx.sym.var("state"))
    after = gluon_roi.optimize(loop)
    values = {
        "x": mx.nd.random.normal(shape=(2, 1, 8, 5, 5)),
        "w": mx.nd.random.normal(shape=(8, 8, 2, 2)),
        "b": mx.nd.random.normal(shape=(8,)),
        "state": mx.nd.zeros(1),
    }
    given = {name: values[name] for name in after.list_arguments()}
    found = after.bind(mx.cpu(), given).forward()[0].asnumpy()
    for n in range(2):
        one = expected(values["x"][n], values["w"], values["b"], kernel=(2, 2))
        np.testing.assert_allclose(found[n], one, **NEAR)


def test_a_symbol_block():
    block = gluon.SymbolBlock(symbol(), mx.sym.var("x"))
    block.initialize()
    x = mx.nd.random.normal(shape=(1, 8, 5, 5))
    params = block.collect_params()
    block(x)
    params["layer_bias"].set_data(mx.nd.random.normal(shape=(16,)))
    gluon_roi.optimize(block, x)
    weights = params["layer_weight"].data(), params["layer_bias"].data()
    layer: dict[str, Any] = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}
    np.testing.assert_allclose(block(x).asnumpy(), expected(x, *weights, **layer), **NEAR)


def test_layers_without_a_bias_or_of_other_ranks_stay():
    plain = mx.sym.Deconvolution(mx.sym.var("x"), kernel=(2, 2), num_filter=8, no_bias=True)
    line = mx.sym.Deconvolution(mx.sym.var("x"), kernel=(2,), num_filter=8, no_bias=False)
    for one in (plain, line):
        with pytest.raises(ValueError, match="^optimize: the symbol has no RoI operator"):
            gluon_roi.optimize(one)


def test_an_mxnet_that_adds_the_bias_is_left_alone(monkeypatch):
    monkeypatch.setattr(deconvolution, "FORGETS_BIAS", False)
    with pytest.raises(ValueError, match="^optimize: the symbol has no RoI operator"):
        gluon_roi.optimize(symbol())
