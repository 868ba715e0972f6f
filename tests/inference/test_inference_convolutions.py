# SPDX-License-Identifier: Apache-2.0
"""GemmConvolution and DepthwiseConvolution: values, errors, special numbers, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pytest
from support.layers import call, direct, geometry, largest_terms, numbers, run

import gluon_roi
from gluon_roi.inference import gemm

#: Of float32: half the distance of 1 to the next number.
UNIT = 2.0**-24

#: Images, channels, outputs, height, width, and the geometry. Registers hold 3, 6 or 12 outputs
#: and 16 or 32 cells, panels 12 outputs, parts of the channels 512, chunks 32 cells and more.
LAYERS: list[tuple[tuple[int, ...], dict]] = [
    ((1, 1, 1, 1, 1), {}),
    ((2, 3, 5, 3, 2), {}),
    ((1, 7, 12, 4, 4), {}),
    ((3, 17, 33, 5, 7), {}),
    ((1, 64, 24, 8, 8), {}),
    ((2, 5, 40, 21, 22), {}),
    ((1, 513, 13, 6, 9), {}),
    ((1, 1100, 25, 7, 7), {}),
    ((1, 20, 11, 70, 90), {}),
    ((1, 2, 3, 131, 257), {}),
    ((1, 9, 30, 19, 25), {"stride": 2}),
    ((2, 70, 14, 38, 51), {"stride": 2}),
    ((1, 6, 7, 11, 13), {"stride": (1, 3)}),
    ((1, 6, 7, 11, 13), {"stride": (3, 1)}),
    ((1, 4, 5, 9, 8), {"pad": 2}),
    ((1, 3, 17, 31, 40), {"kernel": 7, "stride": 2, "pad": 3}),
    ((2, 13, 15, 20, 23), {"kernel": 3, "stride": 2, "pad": 1}),
    ((1, 60, 20, 15, 16), {"kernel": 3, "pad": 1}),
    ((1, 8, 9, 17, 12), {"kernel": 3, "pad": 2, "dilate": 2}),
    ((1, 8, 9, 17, 12), {"kernel": (3, 2), "pad": (0, 3), "dilate": (4, 1), "stride": (1, 2)}),
    ((1, 5, 4, 3, 3), {"kernel": 3, "pad": 5, "stride": 4}),
    ((1, 2, 2, 40, 1), {"kernel": (5, 1), "stride": (2, 2)}),
    ((1, 2, 2, 1, 90), {"kernel": (1, 5), "stride": (2, 2), "pad": (0, 4)}),
    # Groups
    ((2, 12, 20, 9, 11), {"kernel": 3, "pad": 1, "num_group": 4}),
    ((1, 60, 39, 14, 15), {"kernel": 3, "pad": 1, "stride": 2, "num_group": 3}),
    ((1, 8, 8, 6, 7), {"num_group": 2}),
    # Groups of one map
    ((2, 5, 5, 1, 1), {"num_group": 5}),
    ((1, 9, 9, 7, 7), {"kernel": 3, "pad": 1, "num_group": 9}),
    ((2, 4, 12, 112, 113), {"kernel": 3, "pad": 1, "stride": 2, "num_group": 4}),
    ((1, 3, 3, 56, 200), {"kernel": 5, "pad": 2, "num_group": 3}),
    ((1, 3, 6, 21, 30), {"kernel": 3, "pad": 4, "dilate": 4, "num_group": 3}),
    ((1, 3, 6, 20, 31), {"kernel": (3, 2), "pad": (4, 0), "stride": (2, 3), "num_group": 3}),
    ((1, 2, 2, 9, 9), {"kernel": 3, "pad": 1, "stride": 3, "dilate": 2, "num_group": 2}),
]


def layer(number: int) -> tuple[np.ndarray, np.ndarray, dict]:
    (images, channels, outputs, height, width), given = LAYERS[number]
    given = dict(given)
    groups = given.pop("num_group", 1)
    shape = geometry(**given)
    data = numbers(0, images, channels, height, width)
    weight = numbers(1, outputs, channels // groups, *shape.pop("kernel"))
    return data, weight, {**shape, "num_group": groups}


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(LAYERS)), ids=[str(row) for row in LAYERS])
def test_values(number):
    data, weight, shape = layer(number)
    wanted = direct(data, weight, **shape)
    bound = gemm.error_bound(weight) * np.abs(data).max()
    plain = run(data, weight, **shape)
    assert plain.shape == wanted.shape
    assert np.abs(plain - wanted).max() <= bound
    # Each sum is one chain, so bias, residual and activation are what they are behind it.
    bias, residual = numbers(2, len(weight)), numbers(3, *wanted.shape)
    biased = plain + bias[:, None, None]
    np.testing.assert_array_equal(run(data, weight, bias, **shape), biased)
    got = run(data, weight, bias, residual, act_type="relu", **shape)
    np.testing.assert_array_equal(got, np.maximum(biased + residual, 0))
    leaky = np.where(biased < 0, biased * np.float32(0.1), biased)
    attributes = {"act_type": "leaky", "slope": 0.1, **shape}
    np.testing.assert_array_equal(run(data, weight, bias, **attributes), leaky)
    got = run(data, weight, bias, residual, adds_last=True, **attributes)
    np.testing.assert_array_equal(got, leaky + residual)
    got = run(data, weight, bias, act_type="relu6", **shape)
    np.testing.assert_array_equal(got, np.clip(biased, 0, 6))


@pytest.mark.parametrize("number", range(0, len(LAYERS), 3))
def test_agrees_with_mxnet(number, mxnet_cpu):
    data, weight, shape = layer(number)
    bias = numbers(2, len(weight))
    arrays = map(mx.nd.array, (data, weight, bias))
    filters = {"kernel": weight.shape[2:], "num_filter": len(weight)}
    theirs = mx.nd.Convolution(*arrays, **filters, **shape).asnumpy()
    bound = 2 * gemm.error_bound(weight) * np.abs(data).max() + 1e-6 * np.abs(bias).max()
    assert np.abs(run(data, weight, bias, **shape) - theirs).max() <= bound


def test_worked_number():
    data = np.array([[[[10]], [[100]]]])
    assert run(data, np.array([[[[2]], [[3]]]]), np.array([1])).tolist() == [[[[321]]]]


def test_no_images():
    with mx.util.np_shape():
        assert run(np.zeros((0, 3, 5, 6)), numbers(1, 4, 3, 1, 1)).shape == (0, 4, 5, 6)


def test_no_channels():
    with mx.util.np_shape():
        got = run(np.zeros((1, 0, 5, 6)), np.zeros((2, 0, 3, 3)), np.array([3, -1]), pad=(1, 1))
        assert (got == np.array([3, -1]).reshape(1, 2, 1, 1)).all()


def test_symbols():
    """In a graph, with sizes inferred, saved and loaded."""
    data, weight, bias = numbers(0, 2, 3, 9, 8), numbers(1, 5, 3, 3, 3), numbers(2, 5)
    residual = numbers(3, 2, 5, 5, 4)
    names = ("data", "weight", "bias", "residual")
    shape = geometry(3, 2, 1)
    attributes = {**shape, "num_filter": 5, "act_type": "relu", "name": "c"}
    symbol = call(gemm.OPERATOR, *map(mx.sym.var, names), **attributes)
    symbol = mx.sym.load_json(symbol.tojson())
    arrays = dict(zip(names, (data, gemm.pack_weights(weight), bias, residual)))
    shapes = {name: array.shape for name, array in arrays.items()}
    assert symbol.infer_shape(**shapes)[1] == [(2, 5, 5, 4)]
    assert symbol.infer_type(data="float32")[1] == [np.float32]
    bound = symbol.bind(mx.cpu(), {name: mx.nd.array(array) for name, array in arrays.items()})
    del shape["kernel"]
    wanted = run(data, weight, bias, residual, act_type="relu", **shape)
    np.testing.assert_array_equal(bound.forward()[0].asnumpy(), wanted)


# ---- Weights and errors --------------------------------------------------------------------------


def test_packed_weights():
    weight = numbers(0, 21, 3, 2, 3)
    packed = gemm.pack_weights(weight)
    assert packed.shape == (2, 18, 12) and packed.dtype == np.float32
    assert packed.flags.c_contiguous
    for o, c, i, j in [(0, 0, 0, 0), (11, 2, 1, 2), (12, 1, 0, 2), (20, 2, 1, 0)]:
        assert packed[o // 12, 6 * c + 3 * i + j, o % 12] == weight[o, c, i, j]
    assert not packed[1, :, 9:].any()


def hostile() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Names, maps and weights that are hard to sum exactly."""
    rng = np.random.RandomState(5)
    shape, weight = (1, 700, 9, 11), rng.randn(32, 700, 1, 1) / 26
    yield "trained", np.maximum(rng.randn(*shape), 0), weight
    yield "offset", rng.randn(*shape) + 1000, weight
    spike = rng.randn(*shape)
    spike[0, 3, 7, 9] = 1e6
    yield "one huge value", spike, weight
    yield "large", rng.randn(*shape) * 1e4, weight
    yield "heavy tails", rng.standard_t(2, shape), rng.standard_t(2, weight.shape)
    ones = np.ones_like(weight)
    ones[:, 1::2] = -1 + 2**-23
    yield "cancellation", np.ones(shape), ones
    # Every addition behind the first is rounded, and in the same direction.
    yield "one direction", np.full(shape, 1 + 2.0**-23), np.full(weight.shape, 1 / 3)


HOSTILE = list(hostile())


@pytest.mark.parametrize("name, data, weight", HOSTILE, ids=[row[0] for row in HOSTILE])
def test_error(name, data, weight):
    data, weight = data.astype(np.float32), weight.astype(np.float32)
    error = np.abs(run(data, weight) - direct(data, weight)).max()
    assert error <= gemm.error_bound(weight) * np.abs(data).max()
    # Roundings cancel, except for sums that grow in one direction.
    if name != "one direction":
        assert error <= 8 * UNIT * largest_terms(data, weight)


def test_error_bound():
    weight = np.zeros((2, 4, 3, 3))
    weight[0, :, 0, 0] = -2
    weight[1, :, 1, 1] = 5
    assert gemm.error_bound(weight) == pytest.approx(UNIT * 36 * 20, rel=1e-4)
    assert gemm.error_bound(np.zeros((0, 4, 3, 3))) == 0
    for bad in (np.nan, np.inf):
        weight[1, 2, 1, 1] = bad
        assert not np.isfinite(gemm.error_bound(weight))


@pytest.mark.parametrize(
    "plant",
    ["last row of a panel", "last cell of a chunk", "a part of the channels", "stride at last row"],
)
def test_planted_faults_are_seen(plant):
    """Each is beyond the errors that the tests of values accept."""
    data, weight = numbers(0, 1, 600, 13, 15), numbers(1, 31, 600, 1, 1)
    wanted = direct(data, weight, stride=(2, 2))
    wrong_data, wrong_weight = data.copy(), weight.copy()
    if plant == "last row of a panel":
        wrong_weight[30] = 0
    elif plant == "last cell of a chunk":
        wrong_data[..., -1, -1] = 0
    elif plant == "a part of the channels":
        wrong_weight[:, 512:] = 0
    else:
        wrong_data[..., -1, :] = data[..., -2, :]
    error = np.abs(run(wrong_data, wrong_weight, stride=(2, 2)) - wanted).max()
    assert error > 10 * gemm.error_bound(weight) * np.abs(data).max()


# ---- Special numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("act_type", ["", "relu", "leaky"])
def test_nan_and_infinity_reach_what_reads_them(value, act_type, mxnet_cpu):
    """The outputs that MXNet's convolution and activation have, and no others."""
    data, weight = numbers(0, 2, 3, 14, 15), numbers(1, 18, 3, 3, 3)
    data[1, 1, 13, 6] = value
    shape = geometry(3, 2, 1)
    got = run(data, weight, act_type=act_type, stride=(2, 2), pad=(1, 1))
    theirs = mx.nd.Convolution(
        mx.nd.array(data), mx.nd.array(weight), num_filter=18, no_bias=True, **shape
    )
    if act_type == "leaky":
        theirs = mx.nd.LeakyReLU(theirs, act_type="leaky", slope=0.25)
    wanted = theirs.asnumpy()
    if act_type == "relu":  # MXNet's own replaces NaN by 0 with oneDNN
        wanted = np.maximum(wanted, 0)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(wanted))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_weights_that_are_no_numbers():
    data, weight = numbers(0, 1, 3, 4, 4), numbers(1, 14, 3, 1, 1)
    weight[13, 1] = np.nan
    got = run(data, weight)
    assert np.isnan(got[:, 13]).all() and np.isfinite(got[:, :13]).all()


def test_relu_keeps_nan_and_negative_zero_becomes_no_number():
    bias = np.array([np.nan, -1, 2, -0.0])
    got = run(np.zeros((1, 1, 6, 6)), np.zeros((4, 1, 1, 1)), bias, act_type="relu")
    assert np.isnan(got[:, 0]).all()
    assert (got[:, 1] == 0).all() and (got[:, 2] == 2).all() and (got[:, 3] == 0).all()


def test_subnormal_numbers_stay():
    data = np.full((1, 1, 8, 8), 2.0**-140, np.float32)
    np.testing.assert_array_equal(run(data, np.ones((1, 1, 1, 1))), data)


# ---- Refusals ------------------------------------------------------------------------------------

#: The shapes of weights for 4 maps and 20 outputs.
WEIGHTS = {gemm.OPERATOR: (2, 36, 12), gemm.DEPTHWISE: (20, 1, 3, 3)}
ATTRIBUTES: dict = {"num_filter": 20, **geometry(3, 2, 1)}
both = pytest.mark.parametrize("operator", WEIGHTS)


def arrays(operator: str, **changed: Any) -> list[mx.nd.NDArray]:
    shapes = {
        "data": (2, 4, 7, 9),
        "weight": WEIGHTS[operator],
        "bias": (20,),
        "residual": (2, 20, 4, 5),
        **changed,
    }
    return [mx.nd.zeros(shape, ctx=mx.cpu()) for shape in shapes.values()]


def refuses(operator: str, expected: str, inputs: list, **attributes: Any) -> None:
    name = operator.replace("_gluon_roi_", "")
    with pytest.raises(mx.MXNetError, match=f"{name}: {expected}"):
        call(operator, *inputs, **{**ATTRIBUTES, **attributes})


@pytest.mark.parametrize(
    "name, shape, expected",
    [
        ("data", (2, 3, 6), r"data has shape \(2, 3, 6\), expected 4 dimensions \(N, C, H, W\)"),
        ("bias", (21,), r"bias has shape \(21\), expected 20 along axis 0, num_filter"),
        ("bias", (20, 1), r"bias has shape \(20, 1\), expected 1 dimension \(num_filter,\)"),
        ("residual", (2, 20, 4, 6), r"residual has shape .*, expected 5 along axis 3, as the"),
        ("residual", (1, 20, 4, 5), r"residual has shape .*, expected 2 along axis 0, as the"),
        ("residual", (2, 20, 4), r"residual has shape .*, expected 4 dimensions"),
    ],
)
@both
def test_wrong_shapes(operator, name, shape, expected):
    refuses(operator, expected, arrays(operator, **{name: shape}))


@pytest.mark.parametrize(
    "operator, shape, expected",
    [
        (gemm.OPERATOR, (3, 36, 12), "expected 2 along axis 0, num_group"),
        (gemm.OPERATOR, (2, 4, 12), "expected 36 along axis 1, the channels of a group"),
        (gemm.OPERATOR, (2, 36, 16), "expected 12 along axis 2, the rows of a panel"),
        (gemm.OPERATOR, (20, 4, 3, 3), r"expected 3 dimensions \(panels, K, 12\)"),
        (gemm.DEPTHWISE, (4, 1, 3, 3), r"expected 20 along axis 0, \(num_filter, 1, height, w"),
        (gemm.DEPTHWISE, (20, 4, 3, 3), r"expected 1 along axis 1, \(num_filter, 1, height, w"),
        (gemm.DEPTHWISE, (20, 1, 3, 5), r"expected 3 along axis 3, \(num_filter, 1, height, w"),
        (gemm.DEPTHWISE, (20, 9), r"expected 4 dimensions \(num_filter, 1, height, width\)"),
    ],
)
def test_wrong_weights(operator, shape, expected):
    refuses(operator, f"weight has shape .*, {expected}", arrays(operator, weight=shape))


@pytest.mark.parametrize("position, name", list(enumerate(("data", "weight", "bias", "residual"))))
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
@both
def test_wrong_types(operator, position, name, dtype):
    inputs = arrays(operator)
    inputs[position] = inputs[position].astype(dtype)
    refuses(operator, f"{name} has dtype {dtype}, expected float32", inputs)


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({"num_filter": 0}, "argument num_filter: expected a positive int or None, got '0'"),
        ({"num_filter": None}, "argument num_filter: expected a positive int, got None"),
        ({"kernel": (0, 1)}, r"argument kernel: expected a positive int or \(height, width\)"),
        ({"stride": (2, 0)}, "argument stride: expected"),
        ({"pad": (-1, 0)}, "argument pad: expected"),
        ({"dilate": 0}, "argument dilate: expected"),
        ({"dilate": (1, 6)}, r"data has shape \(2, 4, 7, 9\), expected at least 11 along axis 3"),
        ({"act_type": "tanh"}, "argument act_type: expected '' or 'relu' or 'relu6' or 'leaky'"),
        ({"slope": "steep"}, "argument slope: expected a finite number, got 'steep'"),
        ({"groups": 2}, "unknown argument groups"),
    ],
)
@both
def test_wrong_parameters(operator, parameters, expected):
    refuses(operator, expected, arrays(operator), **parameters)


@pytest.mark.parametrize(
    "operator, parameters, expected",
    [
        (gemm.OPERATOR, {"num_group": 3}, "argument num_filter: expected a multiple of num_group"),
        (
            gemm.OPERATOR,
            {"num_group": 10},
            "data has 4 channels, expected a multiple of num_group = 10",
        ),
        (gemm.OPERATOR, {"kernel": (65536, 65536)}, "argument kernel: expected at most 2147483647"),
        (gemm.DEPTHWISE, {"num_group": 4}, "unknown argument num_group"),
        (
            gemm.DEPTHWISE,
            {"num_filter": 18},
            "argument num_filter: expected a multiple of the 4 channels of data, got 18",
        ),
    ],
)
def test_wrong_groups(operator, parameters, expected):
    refuses(operator, expected, arrays(operator), **parameters)


@both
def test_no_gradient(operator):
    inputs = arrays(operator)
    inputs[0].attach_grad()
    with mx.autograd.record():
        out = call(operator, *inputs, **ATTRIBUTES)
    with pytest.raises(mx.MXNetError, match="Convolution: has no gradient, because it is for"):
        out.backward()
        inputs[0].grad.wait_to_read()


def test_more_than_an_array_can_have():
    names = ("data", "weight", "bias")
    symbol = call(gemm.OPERATOR, *map(mx.sym.var, names), num_filter=16, kernel=(1, 1))
    with pytest.raises(mx.MXNetError, match="output has shape .*, expected at most 2147483647"):
        symbol.infer_shape(data=(1, 1, 30000, 30000), weight=(2, 1, 12), bias=(16,))


def test_only_graphs_have_them():
    """They are no operators of the package's own functions, nor of the C interface."""
    names = ("GemmConvolution", "DepthwiseConvolution")
    header = Path(gluon_roi.include(), "gluon_roi.h").read_text()
    for name in names:
        assert name not in gluon_roi.library.operators()
        assert not hasattr(gluon_roi.nd, name) and name not in header
