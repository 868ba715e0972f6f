# SPDX-License-Identifier: Apache-2.0
"""Deformable convolutions: functions, symbols, blocks, errors."""

from __future__ import annotations

import re
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.cases import assert_near
from support.convolutions import convolution_inputs, run_samples
from support.deformed import CALLS

import gluon_roi

sampling: Any = gluon_roi.nd.DeformableSampling
plain: Any = gluon_roi.nd.DeformableConvolution
modulated: Any = gluon_roi.nd.ModulatedDeformableConvolution


# ---- Functions, symbols, blocks ------------------------------------------------------------------


def test_sums_of_gradients(ctx):
    """grad_req='add' and several users of every input, at once and one after the other."""
    call = CALLS["mask"]
    arrays, d_out = call.arrays("float32"), call.d_out("float32")
    _, *once = run_samples(call, arrays, d_out, ctx)
    inputs = [mx.nd.array(a, ctx=ctx) for a in arrays]
    for array in inputs:
        array.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            out = sum(sampling(*inputs, **call.parameters) for _ in range(2))
        out.backward(mx.nd.array(d_out, ctx=ctx))
    for array, gradient in zip(inputs, once):
        assert_near(array.grad, 4 * gradient, 2e-5 * np.abs(gradient).max())


@pytest.mark.parametrize("masked", [False, True])
def test_symbols(masked, ctx):
    """MXNet infers weights from the samples; names are those of MXNet's node; it runs as arrays."""
    (data, offset, weight, bias), arguments = convolution_inputs("groups", ctx)
    arrays = {"data": data, "offset": offset, "c_weight": weight, "c_bias": bias}
    moves = [mx.sym.var("offset")]
    function = plain
    if masked:
        arrays["mask"] = mx.nd.ones((2, 18, *offset.shape[2:]), ctx=ctx) * 0.5
        moves.append(mx.sym.var("mask"))
        function = modulated
    symbol = function(mx.sym.var("data"), *moves, name="c", attr={"__lr__": "2"}, **arguments)
    assert set(symbol.list_arguments()) == set(arrays)
    assert symbol.list_outputs() == ["c_output"]
    assert symbol.attr_dict()["c"]["__lr__"] == "2"
    shapes = {name: arrays[name].shape for name in arrays if not name.startswith("c_")}
    found, (shape,), _ = symbol.infer_shape(**shapes)
    assert dict(zip(symbol.list_arguments(), found))["c_weight"] == weight.shape
    executor = symbol.simple_bind(ctx, **shapes)
    assert executor.outputs[0].shape == shape
    given = [arrays[name] for name in ("data", "offset", *(["mask"] if masked else []))]
    expected = function(*given, weight, bias, **arguments)
    out = executor.forward(**arrays)[0]
    np.testing.assert_array_equal(out.asnumpy(), expected.asnumpy())
    again = mx.sym.load_json(symbol.tojson())
    assert again.list_arguments() == symbol.list_arguments()


def test_partial_shapes(ctx):
    """While an input has no shape, only the known sizes of the output are inferred."""
    data, offset, mask = map(mx.sym.var, ("data", "offset", "mask"))
    symbol = gluon_roi.sym.DeformableSampling(data, offset, mask, 3, pad=1)
    shapes = {"data": (2, 4, 6, 7), "offset": (2, 18, 6, 7), "mask": (2, 9, 6, 7)}
    for known in ({}, *({name: shape} for name, shape in shapes.items()), shapes):
        for inside in (False, True):
            with mx.util.np_shape(inside):
                out = symbol.infer_shape_partial(**known)[1]
                if known == shapes:
                    assert out == [(2, 4, 18, 21)]
                else:
                    with pytest.raises(mx.MXNetError, match="has no shape"):
                        symbol.infer_shape(**known)


def test_numpy_arrays(ctx):
    (data, offset, weight, bias), arguments = convolution_inputs("plain", ctx)
    expected = plain(data, offset, weight, bias, **arguments)
    given = [a.as_np_ndarray() for a in (data, offset, weight, bias)]
    out = mx.npx.gluon_roi.DeformableConvolution(*given, **arguments)
    assert isinstance(out, mx.np.ndarray)
    np.testing.assert_array_equal(out.asnumpy(), expected.asnumpy())
    target = mx.np.zeros(out.shape, ctx=ctx)
    plain(*given, **arguments, out=target)
    np.testing.assert_array_equal(target.asnumpy(), expected.asnumpy())
    symbols = [mx.sym.var(name).as_np_ndarray() for name in ("data", "offset")]
    symbol = plain(*symbols, **arguments)
    assert isinstance(symbol, mx.sym.numpy._Symbol)


BLOCKS: dict[str, dict] = {
    "plain": {"kernel_size": 3, "padding": 1},
    "all": {
        "kernel_size": (3, 2),
        "strides": (2, 1),
        "padding": (1, 0),
        "dilation": (1, 2),
        "groups": 2,
        "num_deformable_group": 2,
        "use_bias": False,
        "offset_use_bias": False,
        "in_channels": 4,
        "activation": "relu",
        "offset_weight_initializer": mx.init.Normal(0.3),
    },
}


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_block(name, hybrid, tmp_path, ctx):
    """The parameters of MXNet's block load, and give its outputs and its gradients."""
    if mx.context.num_gpus():
        pytest.skip("MXNet's own kernels are needed")
    x = mx.nd.array(np.random.RandomState(6).randn(2, 4, 9, 8), ctx=ctx)
    results = []
    for place, block in enumerate((gluon.contrib.cnn.DeformableConvolution, None)):
        net = (block or gluon_roi.DeformableConvolution)(6, **BLOCKS[name])
        if place == 0:
            net.initialize(mx.init.Normal(0.3), ctx=ctx)
            net(x)
            net.save_parameters(str(tmp_path / "p"))
        else:
            net.load_parameters(str(tmp_path / "p"), ctx=ctx)
        net.hybridize(hybrid)
        x.attach_grad()
        with autograd.record():
            out = net(x)
        out.backward()
        gradients = [p.grad() for p in net.collect_params().values()]
        results.append([a.asnumpy() for a in (out, x.grad, *gradients)])
    for theirs, ours in zip(*results):
        np.testing.assert_allclose(ours, theirs, 1e-5, 1e-5 * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize("hybrid", [False, True])
def test_modulated_block(hybrid, ctx):
    """It begins with offsets of 0 and masks of 1, as an ordinary convolution."""
    x = mx.nd.array(np.random.RandomState(6).randn(2, 4, 9, 8), ctx=ctx)
    net = gluon_roi.ModulatedDeformableConvolution(6, kernel_size=3, padding=1)
    net.initialize(mx.init.Normal(0.3), ctx=ctx)
    net.hybridize(hybrid)
    with autograd.record():
        out = net(x)
    out.backward()
    weight, bias = net.deformable_conv_weight.data(), net.deformable_conv_bias.data()
    plain = mx.nd.Convolution(x, weight, bias, kernel=(3, 3), pad=(1, 1), num_filter=6)
    assert_near(out, plain.asnumpy(), 1e-5)
    assert net.offset_weight.grad().abs().sum().asscalar() > 0
    assert "kernel_size=3" in repr(net) or "kernel_size=(3, 3)" in repr(net)
    with pytest.raises(ValueError, match="argument layout: expected 'NCHW', got 'NHWC'"):
        gluon_roi.ModulatedDeformableConvolution(6, layout="NHWC")


# ---- Errors --------------------------------------------------------------------------------------

SHAPES: dict[str, Any] = {"data": (2, 4, 6, 6), "offset": (2, 18, 6, 6), "mask": (2, 9, 6, 6)}
WRONG: dict[str, tuple[dict, dict, str]] = {
    "channels": (
        {},
        {"num_deformable_group": 3},
        "data has 4 channels, expected a multiple of num_deformable_group = 3",
    ),
    "offset channels": (
        {"offset": (2, 20, 6, 6)},
        {},
        "offset has shape (2, 20, 6, 6), expected 18 along axis 1, "
        "2 * num_deformable_group * the cells of the kernel",
    ),
    "mask channels": ({"mask": (2, 18, 6, 6)}, {}, "mask has shape (2, 18, 6, 6), expected 9"),
    "batch": ({"offset": (1, 18, 6, 6)}, {}, "offset has shape (1, 18, 6, 6), expected 2 along"),
    "height": ({"offset": (2, 18, 5, 6)}, {}, "expected 6 along axis 2, the height of the conv"),
    "width": ({"mask": (2, 9, 6, 4)}, {}, "expected 6 along axis 3, the width of the convolution"),
    "rank": ({"offset": (2, 18, 6)}, {}, "offset has shape (2, 18, 6), expected 4 dimensions"),
    "data rank": ({"data": (2, 4, 6)}, {}, "data has shape (2, 4, 6), expected 4 dimensions"),
    "small": ({"data": (2, 4, 6, 1)}, {"pad": 0}, "expected at least 3 along axis 3, for the dil"),
    "kernel": ({}, {"kernel": 0}, "argument kernel: expected a positive int or (height, width)"),
    "stride": ({}, {"stride": -1}, "argument stride: expected a positive int or (height, width)"),
    "dilate": ({}, {"dilate": (1, 0)}, "argument dilate: expected a positive int or (height, "),
    "pad": ({}, {"pad": -1}, "argument pad: expected an int from 0 on, or (height, width), got"),
    "groups": ({}, {"num_deformable_group": 0}, "argument num_deformable_group: expected an int"),
    "large": ({}, {"kernel": 1 << 16, "pad": 1 << 16}, "argument kernel: expected at most"),
    "convention": ({}, {"convention": "onnx"}, "argument convention: expected 'mxnet' or 'torch"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong, ctx):
    shapes, arguments, message = WRONG[wrong]
    inputs = [mx.nd.zeros({**SHAPES, **shapes}[name], ctx=ctx) for name in SHAPES]
    with pytest.raises(mx.MXNetError, match=f"^DeformableSampling: .*{re.escape(message)}"):
        sampling(*inputs, **{"kernel": 3, "pad": 1, **arguments}).wait_to_read()


def test_errors_of_convolutions(ctx):
    (data, offset, weight, bias), arguments = convolution_inputs("plain", ctx)
    function, name = plain, "^DeformableConvolution: "
    with pytest.raises(ValueError, match=name + "data has 8 channels, expected a multiple of num_"):
        function(data, offset, weight, bias, **{**arguments, "num_group": 3})
    with pytest.raises(ValueError, match=name + "argument num_filter: expected a multiple of num"):
        function(data, offset, weight, bias, **{**arguments, "num_group": 4})
    with pytest.raises(ValueError, match=name + "argument num_group: expected a positive int, got"):
        function(data, offset, weight, bias, **{**arguments, "num_group": 0})
    with pytest.raises(ValueError, match=name + "argument layout: expected None or 'NCHW', got 'N"):
        function(data, offset, weight, bias, **arguments, layout="NHWC")
    with pytest.raises(TypeError, match=name + "argument weight: expected an array, got None"):
        function(data, offset, **arguments)
    with pytest.raises(TypeError, match=name + "argument bias: expected None with no_bias=True"):
        function(data, offset, weight, bias, **arguments, no_bias=True)
    with pytest.raises(TypeError, match=name + "argument offset: expected a mxnet.ndarray"):
        function(data, mx.sym.var("offset"), weight, **arguments)
    with pytest.raises(TypeError, match=name + "argument out: expected None for symbols"):
        function(mx.sym.var("x"), mx.sym.var("o"), **arguments, out=data)
    with pytest.raises(mx.MXNetError, match="argument kernel: expected a positive int"):
        function(data, offset, weight)
    # The number of elements is right.
    turned = weight.reshape((0, -1, 1, 1))
    with pytest.raises(ValueError, match=name + re.escape("weight has shape (6, 72, 1, 1), exp")):
        function(data, offset, turned, bias, **arguments)
    symbol = function(mx.sym.var("data"), mx.sym.var("offset"), mx.sym.var("weight"), **arguments)
    with pytest.raises(mx.MXNetError, match=re.escape("[6,72,1,1]")):
        symbol.infer_shape(data=data.shape, offset=offset.shape, weight=turned.shape)
