# SPDX-License-Identifier: Apache-2.0
"""DeformableSampling and convolutions of samples: values, gradients, MXNet's own, the switch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from support.cases import AGREEMENT_FUSED, PRECISION, assert_near
from support.convolutions import CONVOLUTIONS, convolution_inputs, run_samples
from support.deformed import CALLS, RECORDED, Sampled, every_half

import gluon_roi
from gluon_roi import reference

sampling: Any = gluon_roi.nd.DeformableSampling
plain: Any = gluon_roi.nd.DeformableConvolution
modulated: Any = gluon_roi.nd.ModulatedDeformableConvolution
GOLDEN = Path(__file__).parents[1] / "golden/deform_conv2d.npz"
expected_samples: Any = reference.deformable_sampling
expected_gradients: Any = reference.deformable_sampling_backward
DTYPES = ("float32", "float64", "float16")
every_call = pytest.mark.parametrize("name", CALLS)


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@every_call
def test_reference(name, dtype, ctx):
    call, precision = CALLS[name], PRECISION[dtype]
    arrays, d_out = call.arrays(dtype), call.d_out(dtype)
    exact = {**call.parameters, "geometry": precision.geometry}
    out, *gradients = run_samples(call, arrays, d_out, ctx)
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
    out, d_data, *_ = run_samples(call, [data, offset, mask], data, ctx)
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
    _, *gradients = run_samples(call, arrays, d_out, ctx)
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
    whole = run_samples(call, arrays, d_out, ctx)
    for image in (0, 5):
        one = run_samples(
            call, [a[image : image + 1] for a in arrays], d_out[image : image + 1], ctx
        )
        for all_of_it, part in zip(whole, one):
            assert all_of_it[image : image + 1].tobytes() == part.tobytes()


@pytest.mark.parametrize("convention", ["mxnet", "torchvision"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_infinite_and_enormous_offsets(dtype, convention, ctx):
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
    out, d_data, d_offset, d_mask = run_samples(call, [data, offset, mask], d_out, ctx)
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_an_empty_batch(dtype, ctx):
    """Zeros, where MXNet's convolution fails or leaves the gradient of the weights as it is."""
    shapes = (0, 4, 6, 6), (0, 18, 4, 4), (2, 4, 3, 3), (2,)
    with mx.util.np_shape():
        arrays = [mx.nd.ones(shape, ctx=ctx, dtype=dtype) for shape in shapes]
        for array in arrays:
            array.attach_grad()
            array.grad[:] = 7
        with autograd.record():
            out = plain(*arrays, kernel=3, num_filter=2)
        out.backward()
        assert out.shape == (0, 2, 4, 4) and out.dtype == np.dtype(dtype)
        for array, shape in zip(arrays, shapes):
            assert array.grad.shape == shape and (array.grad.asnumpy() == 0).all()


@pytest.mark.parametrize("block", ["DeformableConvolution", "ModulatedDeformableConvolution"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_a_block_and_an_empty_batch(dtype, block, ctx):
    net = getattr(gluon_roi, block)(2, kernel_size=3, in_channels=4)
    net.initialize(ctx=ctx)
    net.cast(dtype)
    net(mx.nd.zeros((1, 4, 6, 6), ctx=ctx, dtype=dtype))  # ends deferred initialization
    with mx.util.np_shape():
        data = mx.nd.zeros((0, 4, 6, 6), ctx=ctx, dtype=dtype)
        for parameter in net.collect_params().values():
            parameter.grad()[:] = 7
        with autograd.record():
            out = net(data)
        out.backward()
        assert out.shape == (0, 2, 4, 4)
        for parameter in net.collect_params().values():
            assert (parameter.grad().asnumpy() == 0).all(), parameter.name
