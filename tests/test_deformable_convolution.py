# SPDX-License-Identifier: Apache-2.0
"""DeformableSampling and convolutions of samples: values, gradients, MXNet's own, the switch."""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from cases import AGREEMENT_FUSED, PRECISION, assert_near
from deformed import CALLS, RECORDED, Sampled, every_half
from mxnet import autograd, gluon
from support import c_api

import gluon_roi
from gluon_roi import reference

sampling: Any = gluon_roi.nd.DeformableSampling
plain: Any = gluon_roi.nd.DeformableConvolution
modulated: Any = gluon_roi.nd.ModulatedDeformableConvolution
GOLDEN = Path(__file__).parent / "golden/deform_conv2d.npz"
expected_samples: Any = reference.deformable_sampling
expected_gradients: Any = reference.deformable_sampling_backward
DTYPES = ("float32", "float64", "float16")
every_call = pytest.mark.parametrize("name", CALLS)


def run(call, arrays, d_out, ctx, **changed):
    """Output and gradients, as NumPy arrays."""
    inputs = [mx.nd.array(a, ctx=ctx, dtype=a.dtype) for a in arrays]
    for array in inputs:
        array.attach_grad()
        array.grad[:] = 99  # what the operator leaves untouched shows
    with autograd.record():
        out = sampling(*inputs, **{**call.parameters, **changed})
    out.backward(mx.nd.array(d_out, ctx=ctx, dtype=d_out.dtype))
    return [out.asnumpy(), *(array.grad.asnumpy() for array in inputs)]


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@every_call
def test_reference(name, dtype, ctx):
    call, precision = CALLS[name], PRECISION[dtype]
    arrays, d_out = call.arrays(dtype), call.d_out(dtype)
    exact = {**call.parameters, "geometry": precision.geometry}
    out, *gradients = run(call, arrays, d_out, ctx)
    assert out.dtype == np.dtype(dtype)
    assert_near(out, expected_samples(*arrays, **exact), precision.forward * 2)
    expected = expected_gradients(d_out, *arrays, **exact)
    for got, wanted in zip(gradients, expected):
        assert_near(got, wanted, precision.backward * max(1, np.abs(wanted).max()))


def test_worked_number(ctx):
    ramp = mx.nd.arange(16, ctx=ctx).reshape((1, 1, 4, 4))
    offset = mx.nd.array([0.5, 0.25], ctx=ctx).reshape((1, 2, 1, 1)).tile((1, 1, 4, 4))
    rows = [
        [2.25, 3.25, 4.25, 5],
        [6.25, 7.25, 8.25, 9],
        [10.25, 11.25, 12.25, 13],
        [12.25, 13.25, 14.25, 15],
    ]
    assert sampling(ramp, offset, 1)[0, 0].asnumpy().tolist() == rows
    fading = sampling(ramp, offset, 1, convention="torchvision")[0, 0].asnumpy()
    assert fading[:3, :3].tolist() == [row[:3] for row in rows[:3]]
    assert fading[3].tolist() == [6.125, 6.625, 7.125, 5.625]


def test_every_float16(ctx):
    """Rounded as NumPy does, to the nearest, ties to even; one NaN of each sign."""
    data, offset, mask = every_half()
    call = Sampled(17, (64, 64), {"kernel": 1}, True)
    out, d_data, *_ = run(call, [data, offset, mask], data, ctx)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (data.astype("float32") * mask.astype("float32")).astype("float16")
    for got in (out, d_data):
        np.testing.assert_array_equal(got, expected)
        assert set(got.view(np.uint16)[np.isnan(got)]) == {0x7E00, 0xFE00}


@every_call
def test_numeric_gradients(name, ctx):
    """Central differences of data, offset and mask, in float64."""
    call = CALLS[name]
    arrays, d_out = call.arrays("float64"), call.d_out("float64")
    # Away from cells, where the derivative by the position jumps.
    arrays[1] = np.floor(arrays[1]) + np.random.RandomState(2).uniform(0.1, 0.9, arrays[1].shape)
    _, *gradients = run(call, arrays, d_out, ctx)
    for place, gradient in enumerate(gradients):
        direction = np.random.RandomState(3).randn(*gradient.shape)
        ends = []
        for step in (1e-6, -1e-6):
            moved = list(arrays)
            moved[place] = arrays[place] + step * direction
            given = (mx.nd.array(a, ctx=ctx, dtype="float64") for a in moved)
            ends.append((sampling(*given, **call.parameters).asnumpy() * d_out).sum())
        wanted = (ends[0] - ends[1]) / 2e-6
        assert (gradient * direction).sum() == pytest.approx(wanted, rel=1e-6, abs=1e-6)


def test_many_images_at_a_time(ctx):
    """Tables of some images at a time: the same bytes as one by one."""
    call = Sampled(2, (60, 80), {"kernel": 5, "pad": 2}, True)
    arrays, d_out = call.arrays("float32", batch=6), call.d_out("float32", batch=6)
    whole = run(call, arrays, d_out, ctx)
    for image in (0, 5):
        one = run(call, [a[image : image + 1] for a in arrays], d_out[image : image + 1], ctx)
        for all_of_it, part in zip(whole, one):
            assert all_of_it[image : image + 1].tobytes() == part.tobytes()


@pytest.mark.parametrize("convention", ["mxnet", "torchvision"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_offsets_that_lead_nowhere(dtype, convention, ctx):
    """NaN, infinite and enormous offsets leave 0, whatever the mask, and give no gradient."""
    call = Sampled(3, (4, 5), {"kernel": 1, "convention": convention}, True)
    data, offset, mask = call.arrays(dtype, scale=0.1)
    most = 6e4 if dtype == "float16" else 1e38
    lost = [np.nan, np.inf, -np.inf, most, -most, -1.5, 5.0]
    for column, value in enumerate(lost[:5]):
        offset[0, 0, 0, column] = offset[1, 1, 1, column] = value
    offset[0, 1, 2, 0], offset[0, 1, 2, 1] = lost[5:]
    mask[0, 0, 0] = [np.nan, np.inf, 1, 0, 1]
    d_out = call.d_out(dtype)
    d_out[0, :, 0] = np.nan
    out, d_data, d_offset, d_mask = run(call, [data, offset, mask], d_out, ctx)
    nowhere = [np.s_[0, :, 0], np.s_[1, :, 1], np.s_[0, :, 2, :2]]
    for array in (out, d_offset, d_mask):
        assert all((array[place] == 0).all() for place in nowhere)
    assert np.isfinite(out).all() and np.isfinite(d_data).all()


@pytest.mark.parametrize("convention", ["mxnet", "torchvision"])
def test_cells_of_weight_0_are_not_read(convention, ctx):
    """A sample on a cell, as of offsets that are 0, has the value of that cell alone."""
    data = np.full((1, 17, 5, 6), np.nan, "float32")
    data[:, :, 2, 3] = data[:, :, 4, 5] = 7
    out = sampling(
        mx.nd.array(data, ctx=ctx), mx.nd.zeros((1, 2, 5, 6), ctx=ctx), 1, convention=convention
    )
    assert (out[0, :, 2, 3].asnumpy() == 7).all() and (out[0, :, 4, 5].asnumpy() == 7).all()


def test_empty_arrays(ctx):
    with mx.util.np_shape():
        for shape in ((0, 4, 6, 6), (2, 0, 6, 6)):
            data = mx.nd.zeros(shape, ctx=ctx)
            offset = mx.nd.ones((shape[0], 18, 6, 6), ctx=ctx)
            offset.attach_grad()
            with autograd.record():
                out = sampling(data, offset, 3, pad=1)
            out.backward()
            assert out.shape == (*shape[:2], 18, 18)
            assert (offset.grad.asnumpy() == 0).all()
        data, offset = mx.nd.zeros((1, 2, 0, 3), ctx=ctx), mx.nd.zeros((1, 2, 4, 7), ctx=ctx)
        assert (sampling(data, offset, 1, pad=2).asnumpy() == 0).all()


# ---- MXNet's own ---------------------------------------------------------------------------------

#: channels, filters, num_group, num_deformable_group, stride, dilate, pad
CONVOLUTIONS = {
    "plain": (8, 6, 1, 1, 1, 1, 1),
    "groups": (8, 6, 2, 2, 2, 1, 1),
    "deformable_groups": (12, 4, 1, 4, 1, 2, 2),
    "no_pad": (4, 8, 4, 1, 2, 2, 0),
}


def convolution_inputs(name, ctx, dtype="float32"):
    """data, offset, weight, bias, and the arguments of MXNet's function."""
    channels, filters, groups, deformable, stride, dilate, pad = CONVOLUTIONS[name]
    call = Sampled(
        channels,
        (10, 13),
        {
            "kernel": 3,
            "stride": stride,
            "dilate": dilate,
            "pad": pad,
            "num_deformable_group": deformable,
        },
        False,
    )
    rng = np.random.RandomState(4)
    arrays = [*call.arrays(dtype), rng.randn(filters, channels // groups, 3, 3), rng.randn(filters)]
    arguments = {
        **{key: (value, value) for key, value in call.parameters.items() if "group" not in key},
        "num_filter": filters,
        "num_group": groups,
        "num_deformable_group": deformable,
    }
    return [mx.nd.array(a, ctx=ctx, dtype=dtype) for a in arrays], arguments


def both_passes(function, inputs, **arguments):
    inputs = [array.copy() for array in inputs]
    for array in inputs:
        array.attach_grad()
    with autograd.record():
        out = function(*inputs, **arguments)
    slope = np.random.RandomState(5).randn(*out.shape)
    out.backward(mx.nd.array(slope, ctx=out.context, dtype=out.dtype))
    return [out.asnumpy(), *(array.grad.asnumpy() for array in inputs)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_mxnet(name, dtype, ctx):
    """Output and gradients of data, offset, weight and bias are MXNet's but for sums' order."""
    inputs, arguments = convolution_inputs(name, ctx, dtype)
    for given, more in ((inputs, {}), (inputs[:3], {"no_bias": True})):
        ours = both_passes(plain, given, **arguments, **more)
        theirs = both_passes(mx.nd.contrib.DeformableConvolution, given, **arguments, **more)
        tolerance = 2e-6 if dtype == "float32" else 1e-13
        for got, wanted in zip(ours, theirs):
            np.testing.assert_allclose(got, wanted, tolerance, tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("name", RECORDED)
def test_torchvision(name, ctx):
    """What its deform_conv2d gave, with gradients of data, offset, mask and weight."""
    call = RECORDED[name]
    arrays, d_out = call.weighted()
    inputs = [mx.nd.array(a, ctx=ctx) for a in arrays]
    for array in inputs:
        array.attach_grad()
    with autograd.record():
        out = (modulated if call.mask else plain)(*inputs, no_bias=True, **call.parameters)
    out.backward(mx.nd.array(d_out, ctx=ctx))
    with np.load(GOLDEN) as file:
        for number, got in enumerate([out, *(array.grad for array in inputs)]):
            wanted = file[f"{name}/{number}"]
            np.testing.assert_allclose(
                got.asnumpy(), wanted, AGREEMENT_FUSED, AGREEMENT_FUSED * np.abs(wanted).max()
            )


def test_modulated(ctx):
    """A mask of 1 changes nothing; MXNet's operator fades, and so does this one unless told."""
    (data, offset, weight, bias), arguments = convolution_inputs("groups", ctx)
    mask = mx.nd.ones((2, 18, *offset.shape[2:]), ctx=ctx)
    for convention in ("mxnet", "torchvision"):
        same = {**arguments, "convention": convention}
        a = modulated(data, offset, mask, weight, bias, **same).asnumpy()
        np.testing.assert_array_equal(a, plain(data, offset, weight, bias, **same).asnumpy())
        if convention == "torchvision":
            defaults = modulated(data, offset, mask, weight, bias, **arguments, im2col_step=1)
            np.testing.assert_array_equal(a, defaults.asnumpy())
    mask[:] = 0
    out = modulated(data, offset, mask, weight, bias, **arguments).asnumpy()
    assert (out == bias.asnumpy()[:, None, None]).all()


# ---- Functions, symbols, blocks ------------------------------------------------------------------


def test_sums_of_gradients(ctx):
    """grad_req='add' and several users of every input, at once and one after the other."""
    call = CALLS["mask"]
    arrays, d_out = call.arrays("float32"), call.d_out("float32")
    _, *once = run(call, arrays, d_out, ctx)
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
    """As long as an input has no shape, what is known of the output is inferred, and no more."""
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
    with pytest.raises(TypeError, match=name + "argument offset: expected a mxnet.ndarray"):
        function(data, mx.sym.var("offset"), weight, **arguments)
    with pytest.raises(TypeError, match=name + "argument out: expected None for symbols"):
        function(mx.sym.var("x"), mx.sym.var("o"), **arguments, out=data)
    with pytest.raises(mx.MXNetError, match="argument kernel: expected a positive int"):
        function(data, offset, weight)
    # As many numbers as there should be.
    turned = weight.reshape((0, -1, 1, 1))
    with pytest.raises(ValueError, match=name + re.escape("weight has shape (6, 72, 1, 1), exp")):
        function(data, offset, turned, bias, **arguments)
    symbol = function(mx.sym.var("data"), mx.sym.var("offset"), mx.sym.var("weight"), **arguments)
    with pytest.raises(mx.MXNetError, match=re.escape("[6,72,1,1]")):
        symbol.infer_shape(data=data.shape, offset=offset.shape, weight=turned.shape)


# ---- The switch ----------------------------------------------------------------------------------


DEFAULTS: dict[str, dict] = {
    "Convolution": {"num_group": "1", "workspace": "1024", "no_bias": "False"},
    "_gluon_roi_DeformableSampling": gluon_roi.library.operators()["DeformableSampling"].parameters,
}


def nodes_of(symbol):
    """Operators, names and attributes; for these, (1, 1) is 1."""
    return [
        (
            node["op"],
            node["name"],
            {
                key: re.sub(r"^\((\d+), \1\)$", r"\1", value or "")
                for key, value in {**DEFAULTS[node["op"]], **node.get("attrs", {})}.items()
            },
        )
        for node in json.loads(symbol.tojson())["nodes"]
        if node["op"] in ("Convolution", "_gluon_roi_DeformableSampling")
    ]


@pytest.mark.parametrize("no_bias", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_optimize(name, no_bias, ctx):
    """optimize() and the function make the same nodes; arguments, outputs, numbers stay."""
    inputs, arguments = convolution_inputs(name, ctx)
    arguments["no_bias"] = no_bias

    def make():
        x = mx.sym.Activation(mx.sym.var("data"), "tanh")
        return mx.sym.contrib.DeformableConvolution(
            x, mx.sym.var("offset"), name="c", attr={"__lr_mult__": "3"}, **arguments
        )

    symbol = make()
    switched = gluon_roi.optimize(symbol)
    with gluon_roi.replace_builtins():
        replaced = make()
    assert switched.list_arguments() == symbol.list_arguments()
    assert switched.list_outputs() == symbol.list_outputs()
    for one in (symbol, switched, replaced):
        assert one.attr_dict()["c_weight"]["__lr_mult__"] == "3"
    assert nodes_of(switched) == nodes_of(replaced)
    used = gluon_roi.count(switched)
    assert used["_contrib_DeformableConvolution"] == 0
    assert used["_gluon_roi_DeformableSampling"] == 1
    given = dict(zip(("data", "offset", "c_weight", "c_bias"), inputs[: 4 - no_bias]))
    results = []
    for one in (symbol, switched, replaced):
        gradients = {key: array.zeros_like() for key, array in given.items()}
        executor = one.bind(ctx, given, gradients)
        out = executor.forward(is_train=True)[0]
        executor.backward([mx.nd.ones_like(out)])
        results.append([out.asnumpy(), *(gradients[key].asnumpy() for key in given)])
    for other in results[1:]:
        for got, wanted in zip(other, results[0]):
            np.testing.assert_allclose(got, wanted, 1e-5, 1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("make", ["ours", "optimized"])
def test_in_a_loop(make, ctx):
    """Inside of a loop MXNet infers the shape of the weights from inputs only.

    The gradient of offset is the sum over the loop; that of MXNet's own operator is not.
    """
    (data, offset, weight, _), arguments = convolution_inputs("plain", ctx)
    arguments["no_bias"] = True
    given = {"data": data.expand_dims(1), "offset": offset[:1], "weight": weight}
    given["count"] = mx.nd.zeros(1, ctx)
    function = gluon_roi.sym.DeformableConvolution
    if make == "optimized":
        function = mx.sym.contrib.DeformableConvolution
    moved, weights = mx.sym.var("offset"), mx.sym.var("weight")
    out, _ = mx.sym.contrib.foreach(
        lambda x, count: (function(x, moved, weights, **arguments), count + 1),
        mx.sym.var("data"),
        mx.sym.var("count"),
    )
    if make == "optimized":
        out = gluon_roi.optimize(out)
    gradients = {name: given[name].zeros_like() for name in ("offset", "weight")}
    executor = out.bind(ctx, given, gradients)
    results = [executor.forward(is_train=True)[0]]
    executor.backward([mx.nd.ones_like(results[0])])

    inputs = [given["offset"], given["weight"]]
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        expected = mx.nd.stack(*(plain(x, *inputs, **arguments) for x in given["data"]))
    expected.backward()
    for got, wanted in zip(
        (*results, *gradients.values()), (expected, *(array.grad for array in inputs))
    ):
        wanted = wanted.asnumpy()
        np.testing.assert_allclose(got.asnumpy(), wanted, 1e-5, 1e-5 * np.abs(wanted).max())


def test_optimize_modulated():
    """MXNet cannot run it on the CPU; switched, it can."""
    shapes = {"data": (2, 4, 6, 6), "offset": (2, 18, 6, 6), "mask": (2, 9, 6, 6)}
    symbol = mx.sym.contrib.ModulatedDeformableConvolution(
        *map(mx.sym.var, shapes), kernel=(3, 3), pad=(1, 1), num_filter=5, name="c", im2col_step=2
    )
    switched = gluon_roi.optimize(symbol)
    assert switched.list_arguments() == symbol.list_arguments()
    executor = switched.simple_bind(mx.cpu(), **shapes)
    for array in executor.arg_dict.values():
        array[:] = mx.nd.random.normal(shape=array.shape)
    inputs = [executor.arg_dict[name] for name in switched.list_arguments()]
    expected = modulated(*inputs, kernel=(3, 3), pad=(1, 1), num_filter=5)
    np.testing.assert_array_equal(executor.forward()[0].asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("how", ["optimize", "replace"])
def test_switched_block(how):
    """MXNet's own block, whose code is MXNet's."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.contrib.cnn.DeformableConvolution(4, kernel_size=3, padding=1))
    net.initialize(mx.init.Normal(0.3))
    x = mx.nd.random.normal(shape=(1, 3, 7, 7))
    expected = net(x).asnumpy()
    if how == "optimize":
        gluon_roi.optimize(net, x)
        out = net(x)
    else:
        net.hybridize()
        with gluon_roi.replace_builtins():
            out = net(x)
    np.testing.assert_allclose(out.asnumpy(), expected, 1e-5, 1e-5)
    used = gluon_roi.count(net)
    assert used["_gluon_roi_DeformableSampling"] == 1
    assert used["_contrib_DeformableConvolution"] == 0


# ---- The C interface -----------------------------------------------------------------------------

LIBRARY = c_api.Library(gluon_roi.library.PATH)
CPU = c_api.Device(c_api.CPU)


@pytest.mark.parametrize("dtype", DTYPES)
@every_call
def test_c_interface(name, dtype):
    """The same bytes; a gradient that is not wanted may be absent."""
    call = CALLS[name]
    arrays, d_out = call.arrays(dtype), call.d_out(dtype)
    out, *gradients = run(call, arrays, d_out, mx.cpu())
    p = LIBRARY.operators["deformable_sampling"].params_of(**call.parameters)
    inputs, result = c_api.tensors(*arrays), np.full_like(d_out, 99)
    LIBRARY.forward("deformable_sampling", p, inputs, result, CPU)
    assert result.tobytes() == out.tobytes()
    for wanted in range(1, 1 << len(arrays), 2):  # that of data always is
        written = [np.full_like(a, 99) if wanted >> n & 1 else None for n, a in enumerate(arrays)]
        LIBRARY.backward("deformable_sampling", p, inputs, d_out, written, CPU)
        for got, expected in zip(written, gradients):
            assert got is None or got.tobytes() == expected.tobytes()


def test_c_errors():
    call = CALLS["mask"]
    arrays, d_out = call.arrays("float32"), call.d_out("float32")
    operator = LIBRARY.operators["deformable_sampling"]

    def message(p, arrays, out):
        with pytest.raises(c_api.Error) as error:
            LIBRARY.forward("deformable_sampling", p, c_api.tensors(*arrays), out, CPU)
        assert error.value.code == c_api.INVALID
        return str(error.value)

    p = operator.params_of(**call.parameters)
    assert "output: expected float32" in message(p, arrays, d_out[:1])
    assert "mask has dtype float64" in message(p, [*arrays[:2], arrays[2].astype("d")], d_out)
    for field, value in (("stride_width", 0), ("pad_height", -1), ("num_deformable_group", 0)):
        p = operator.params_of(**call.parameters)
        setattr(p, field, value)
        assert f"argument {field.split('_')[0]}" in message(p, arrays, d_out)
    p = operator.params_of(**call.parameters)
    enormous = c_api.tensors(*arrays)
    enormous[0].shape[2], enormous[0].shape[3] = 1 << 40, 1
    with pytest.raises(c_api.Error, match="expected at most 2147483647 cells in a map"):
        more = ctypes.byref(c_api.tensor(d_out)), ctypes.byref(CPU)
        LIBRARY.call("deformable_sampling_forward", ctypes.byref(p), enormous, 3, *more)
