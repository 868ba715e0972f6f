# SPDX-License-Identifier: Apache-2.0
"""Arrays and symbols of mx.np, as in Dive into Deep Learning, are accepted and returned."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from in_graphs import HYBRIDIZE, POOLED, SCALE, channels_of, operators
from mxnet import autograd, gluon, npx
from operators import OPERATORS
from support.cases import feature_map

import gluon_roi


@pytest.fixture(autouse=True)
def set_np():
    npx.set_np()
    yield
    npx.reset_np()


def arrays(op, count=None):
    data = feature_map(channels_of(op))
    return mx.np.array(data), mx.np.array(op.all_rois(SCALE)[:count])


def expected(op, data, rois, grad_req="write"):
    """Output and gradient with arrays of mx.nd."""
    x, r = data.as_nd_ndarray().copy(), rois.as_nd_ndarray()
    x.attach_grad(grad_req)
    with autograd.record():
        out = op.function(x, r, POOLED, SCALE)
    out.backward()
    return out.asnumpy(), x.grad.asnumpy()


class Network(gluon.HybridBlock):
    """A network as D2L writes it: F.np and F.npx functions before and after the operator."""

    def __init__(self, op):
        super().__init__()
        self.operator = op

    def hybrid_forward(self, F, x, rois):
        pooled = self.operator.of(F.npx.gluon_roi)(F.npx.relu(x) * 2, rois, POOLED, SCALE)
        return F.np.mean(pooled, axis=(2, 3))


@operators
def test_functions(op):
    data, rois = arrays(op)
    wanted, d_wanted = expected(op, data, rois)
    for namespace in (gluon_roi.nd, mx.npx.gluon_roi, mx.nd.gluon_roi):
        data.attach_grad()
        with autograd.record():
            out = op.of(namespace)(data, rois, POOLED, SCALE)
        assert type(out) is mx.np.ndarray
        out.backward()
        np.testing.assert_array_equal(out.asnumpy(), wanted)
        np.testing.assert_array_equal(data.grad.asnumpy(), d_wanted)
    buffer = mx.np.zeros(wanted.shape)
    assert op.function(data, rois, POOLED, SCALE, out=buffer) is buffer
    np.testing.assert_array_equal(buffer.asnumpy(), wanted)


@pytest.mark.parametrize("mode", HYBRIDIZE)
@operators
def test_blocks(op, mode):
    data, rois = arrays(op)
    wanted, d_wanted = expected(op, data, rois)
    block = op.block(POOLED, SCALE)
    if (flags := HYBRIDIZE[mode]) is not None:
        block.hybridize(**flags)
    for grad_req in ("write", "add"):
        data.attach_grad(grad_req)
        for _ in range(2):
            with autograd.record():
                out = block(data, rois)
            out.backward()
        assert type(out) is mx.np.ndarray
        np.testing.assert_array_equal(out.asnumpy(), wanted)
        times = 2 if grad_req == "add" else 1
        np.testing.assert_allclose(data.grad.asnumpy(), times * d_wanted, rtol=1e-6)


@pytest.mark.parametrize("mode", HYBRIDIZE)
@operators
def test_networks(op, mode, tmp_path):
    data, rois = arrays(op)
    net = Network(op)
    plain = net(data, rois)
    if (flags := HYBRIDIZE[mode]) is not None:
        net.hybridize(**flags)
        out = net(data, rois)
        assert type(out) is mx.np.ndarray
        np.testing.assert_allclose(out.asnumpy(), plain.asnumpy(), rtol=1e-5, atol=1e-6)
        net.export(str(tmp_path / "net"))
        again = gluon.SymbolBlock.imports(
            str(tmp_path / "net-symbol.json"), ["data0", "data1"], str(tmp_path / "net-0000.params")
        )
        np.testing.assert_array_equal(again(data, rois).asnumpy(), out.asnumpy())


@pytest.mark.parametrize("mode", HYBRIDIZE)
@operators
def test_no_rois(op, mode):
    """K = 0 works under npx.set_np()."""
    data, rois = arrays(op, count=0)
    block = op.block(POOLED, SCALE)
    if (flags := HYBRIDIZE[mode]) is not None:
        block.hybridize(**flags)
    data.attach_grad()
    with autograd.record():
        out = block(data, rois)
    out.backward()
    assert out.shape == (0, 3, *POOLED)
    assert (data.grad.asnumpy() == 0).all()


@operators
def test_symbols(op):
    x, rois = mx.sym.var("x").as_np_ndarray(), mx.sym.var("rois").as_np_ndarray()
    symbol = op.function(x, rois, POOLED, SCALE)
    assert type(symbol) is type(x)
    with pytest.raises(TypeError, match="argument rois: expected a .*_Symbol, got .*Symbol"):
        op.function(x, mx.sym.var("rois"), POOLED, SCALE)


def test_numbers_of_numpy():
    """They reach MXNet as plain numbers, whatever NumPy prints."""
    data, rois = arrays(OPERATORS[1])
    size = (np.int64(2), np.int32(3))
    out = mx.nd.gluon_roi.ROIAlign(data, rois, size, np.float32(0.5), sampling_ratio=np.int64(2))
    wanted = gluon_roi.nd.ROIAlign(data, rois, (2, 3), 0.5, sampling_ratio=2)
    np.testing.assert_array_equal(out.asnumpy(), wanted.asnumpy())


@pytest.mark.parametrize("mode", HYBRIDIZE)
@pytest.mark.parametrize("name", ["DeformableConvolution", "ModulatedDeformableConvolution"])
def test_deformable_blocks(name, mode):
    """They can be made under set_np(), and compute what they compute without it."""
    values = np.random.RandomState(0).randn(1, 8, 9, 9).astype("float32")
    results = []
    for array in (mx.np.array, mx.nd.array):
        if array is mx.nd.array:
            npx.reset_np()
        net = getattr(gluon_roi, name)(4, kernel_size=3, padding=1, weight_initializer="ones")
        net.initialize()
        flags = HYBRIDIZE[mode]
        if flags is not None:
            net.hybridize(**flags)
        x = array(values)
        x.attach_grad()
        with autograd.record():
            out = net(x)
        out.backward()
        assert type(out) is type(x)
        results.append((out.asnumpy(), x.grad.asnumpy()))
    for with_np, without in zip(*results):
        np.testing.assert_array_equal(with_np, without)
