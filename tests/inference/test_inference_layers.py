# SPDX-License-Identifier: Apache-2.0
"""Convolutions and max pooling for inference, with the sums and activations behind them."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from inference_networks import assert_same_calls, converted_operators, outputs_of

from gluon_roi.inference import convert, gemm, gemm_layers, max_pooling, winograd
from gluon_roi.inference import deconvolution as deconvolution_pass

S = mx.sym
DATA, OTHER = S.var("data"), S.var("other")
SHAPES = {"data": (2, 16, 7, 9), "other": (2, 16, 7, 9)}
SAME = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 16}
LAYERS: dict[str, dict[str, Any]] = {
    gemm.OPERATOR: {"kernel": (1, 1), "num_filter": 16},
    winograd.OPERATOR: SAME,
    gemm.DEPTHWISE: {**SAME, "num_group": 16},
}
ACTIVATIONS: dict[str, Callable] = {
    "relu": lambda x: S.Activation(x, act_type="relu"),
    "relu6": lambda x: S.clip(x, a_min=0, a_max=6),
    "leaky": lambda x: S.LeakyReLU(x, act_type="leaky", slope=0.1),
}


def numbers(*shape: int) -> Any:
    return mx.nd.array(np.random.RandomState(sum(shape)).uniform(-3, 3, shape))


def convolution(data: Any = DATA, name: str = "c", **attributes: Any) -> Any:
    return S.Convolution(data, name=name, **attributes)


def operators(symbol: Any) -> list[str]:
    """Operators of the converted symbol, once its outputs are the symbol's."""
    names = symbol.list_arguments()
    shapes = {name: shape for name, shape in SHAPES.items() if name in names}
    return converted_operators(symbol, shapes, lambda name, shape: numbers(*shape))


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Winograd's algorithm and MXNet's layout are used for layers of any size."""
    monkeypatch.setattr(winograd, "pays", lambda *sizes: True)
    monkeypatch.setattr(gemm_layers, "mxnets_layout_pays", lambda *layers: True)


@pytest.mark.parametrize("operator", LAYERS)
@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("order", ["alone", "sum first", "sum last"])
def test_sums_and_activations_are_part_of_layers(operator, kind, order):
    symbol = convolution(**LAYERS[operator])
    if order == "sum first":
        symbol = S.elemwise_add(OTHER, symbol)
    symbol = ACTIVATIONS[kind](symbol)
    if order == "sum last":
        symbol = S.elemwise_add(symbol, OTHER)
    assert operators(symbol) == [operator]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: S.Activation(x, act_type="sigmoid"),
        lambda x: S.clip(x, a_min=0, a_max=1),
        lambda x: S.clip(x, a_min=-1, a_max=6),
        lambda x: S.LeakyReLU(x, act_type="elu"),
        lambda x: S.elemwise_mul(x, OTHER),
        lambda x: S.Group([x, S.relu(x)]),
    ],
)
@pytest.mark.parametrize("operator", LAYERS)
def test_what_no_layer_computes_stays(operator, make):
    assert operators(make(convolution(**LAYERS[operator])))[0] == operator


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1), "num_filter": 5},
        {"kernel": (1, 1), "stride": (2, 1), "num_filter": 24, "no_bias": True},
        {"kernel": (3, 2), "pad": (2, 0), "dilate": (2, 3), "num_filter": 12},
        {"kernel": (3, 3), "num_group": 4, "num_filter": 8},
        {"kernel": (5, 5), "stride": (2, 2), "pad": (2, 2), "num_group": 16, "num_filter": 32},
    ],
    ids=str,
)
def test_geometries(attributes):
    name = gemm.DEPTHWISE if attributes.get("num_group") == 16 else gemm.OPERATOR
    assert operators(convolution(**attributes)) == [name]


def test_a_layer_that_is_applied_twice_has_its_weights_once():
    weight, bias = S.var("weight"), S.var("bias")
    maps = [
        convolution(x, f"c{i}", weight=weight, bias=bias, kernel=(1, 1), num_filter=16)
        for i, x in enumerate((DATA, OTHER))
    ]
    assert operators(S.Group(maps)) == [gemm.OPERATOR] * 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_stay_with_mxnet(value):
    """A convolution of this package multiplies them by the zeros around the map, too."""
    weight = numbers(16, 16, 1, 1)
    weight[3, 5] = value
    symbol = convolution(kernel=(1, 1), num_filter=16, no_bias=True)
    made = convert.convert(symbol, {"c_weight": weight}, SHAPES)
    assert made.changes["convolutions in MXNet's layout"] == 0


@pytest.mark.parametrize("convention", ["valid", "full"])
def test_max_pooling(convention):
    shape = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}
    symbol = S.Pooling(DATA, pool_type="max", pooling_convention=convention, **shape)
    assert operators(symbol) == [max_pooling.OPERATOR]


PEAKS = {"kernel": (3, 3), "pad": (1, 1), "pool_type": "max"}


@pytest.mark.parametrize("equal", [S.broadcast_equal, lambda one, other: one == other])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("times", [S.broadcast_mul, S.elemwise_mul])
def test_maxima(equal, is_first, times):
    data, pooled = DATA, S.Pooling(DATA, **PEAKS)
    mask = equal(data, pooled) if is_first else equal(pooled, data)
    symbol = times(mask, data) if is_first else times(data, mask)
    assert operators(symbol) == [max_pooling.OPERATOR]
    calls = [{"data": numbers(*shape).round()} for shape in (SHAPES["data"], (1, 3, 2, 5))]
    assert_same_calls(symbol, {}, calls)


@pytest.mark.parametrize(
    "case",
    ["stride", "kernel", "global", "mean", "other map", "read twice", "an output", "float64"],
)
def test_maxima_that_stay(case):
    changed: dict[str, dict[str, Any]] = {
        # The pooled map has a single cell, which broadcast_equal compares with each cell.
        "stride": {"kernel": (13, 17), "pad": (6, 8), "stride": (7, 9)},
        "kernel": {"kernel": (7, 9), "pad": (0, 0)},
        "global": {"global_pool": True},
        "mean": {"pool_type": "avg"},
    }
    data = S.cast(DATA, dtype="float64") if case == "float64" else DATA
    pooled = S.Pooling(data, **{**PEAKS, **changed.get(case, {})})
    mask = S.broadcast_equal(2 * data if case == "other map" else data, pooled)
    maxima = S.broadcast_mul(data, mask)
    outputs = {"read twice": [maxima, S.sqrt(mask)], "an output": [maxima, pooled]}
    found = operators(S.Group(outputs.get(case, [maxima])))
    assert {"broadcast_equal", "broadcast_mul"} <= set(found)


@pytest.mark.parametrize(
    "attributes",
    [
        {"pool_type": "avg"},
        {"pool_type": "lp", "p_value": 2},
        {"pool_type": "max", "global_pool": True},
    ],
    ids=str,
)
def test_other_pooling_stays(attributes):
    assert operators(S.Pooling(DATA, kernel=(2, 2), **attributes)) == ["Pooling"]


# ---- Deconvolutions ------------------------------------------------------------------------------


def deconvolution(data: Any = DATA, **attributes: Any) -> Any:
    return S.Deconvolution(data, name="d", **{"num_filter": 4, "no_bias": False, **attributes})


@pytest.mark.parametrize(
    "kernel, stride, pad, adj", [(4, 2, 1, 0), (3, 2, 1, 1), (5, 3, 1, 0), (3, 1, 1, 0)], ids=str
)
@pytest.mark.parametrize("last", [lambda x: x, S.relu, lambda x: S.Group([x, S.relu(x)])])
def test_deconvolutions_by_winograd(kernel, stride, pad, adj, last):
    names = {"kernel": kernel, "stride": stride, "pad": pad, "adj": adj}
    symbol = last(deconvolution(**{name: (value, value) for name, value in names.items()}))
    more = ["BlockGrad", "relu"] if len(symbol.list_outputs()) > 1 else []
    assert operators(symbol) == [winograd.OPERATOR, deconvolution_pass.OPERATOR, *more]


def test_the_batch_norm_of_a_deconvolution_is_part_of_its_weights():
    layer = deconvolution(kernel=(4, 4), stride=(2, 2), pad=(1, 1))
    norm = S.BatchNorm(layer, fix_gamma=False, name="n")
    assert operators(S.relu(norm)) == [winograd.OPERATOR, deconvolution_pass.OPERATOR]


def test_the_batch_norm_of_a_grouped_deconvolution_is_part_of_its_weights():
    layer = deconvolution(kernel=(3, 2), stride=(2, 1), num_group=4, num_filter=8)
    assert operators(S.BatchNorm(layer, fix_gamma=False, name="n")) == ["Deconvolution"]


def test_deconvolutions_of_shared_weights():
    """Their strides differ."""
    weight, bias, size = S.var("weight"), S.var("bias"), {"kernel": (3, 3), "num_filter": 4}
    layers = [
        S.Deconvolution(DATA, weight, bias, no_bias=False, pad=(1, 1), **size, **attributes)
        for attributes in ({}, {"stride": (2, 2), "adj": (1, 1)})
    ]
    assert operators(S.Group(layers)).count(winograd.OPERATOR) == 2


@pytest.mark.parametrize(
    "wrong", [lambda e, side, pad: (e % 2, (e - 1) // 2), lambda e, side, pad: (e // 2, e % 2 - 1)]
)
def test_elements_at_wrong_places_are_seen(monkeypatch, wrong):
    place = deconvolution_pass._place
    symbol = deconvolution(kernel=(4, 4), stride=(2, 2), pad=(1, 1))
    assert operators(symbol)
    monkeypatch.setattr(deconvolution_pass, "_place", wrong)
    with pytest.raises(AssertionError):
        operators(symbol)
    assert place(3, 2, 1) == (0, -1)


@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel": (4, 4), "stride": (2, 2), "pad": (1, 1), "num_group": 4},
        {"kernel": (4, 4), "stride": (2, 2)},
        {"kernel": (4, 3), "stride": (2, 2), "pad": (1, 1)},
        {"kernel": (6, 6), "stride": (2, 2), "pad": (2, 2), "dilate": (1, 1), "adj": (1, 1)},
        {"kernel": (8, 8), "stride": (2, 2), "pad": (3, 3)},
    ],
    ids=str,
)
def test_other_deconvolutions_stay(attributes):
    assert operators(deconvolution(**attributes)) == ["Deconvolution"]


# ---- Activations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_sigmoid_is_onednns(dtype):
    """Its relative error is at most 5 units of 2^-24; MXNet's own is at most 3."""
    data = mx.nd.array(np.linspace(-80, 80, 10001), dtype=dtype)
    data[:3] = np.nan, np.inf, -np.inf
    made = convert.convert(S.sigmoid(DATA), {}, {"data": data})
    assert made.changes["sigmoid as Activation"] == 1
    (found,) = outputs_of(made.symbol, {}, {"data": data})
    assert found.dtype == dtype
    expected = 1 / (1 + np.exp(-data.asnumpy().astype("float64")))
    tolerance = {"float32": 6 * 2.0**-24, "float64": 1e-15, "float16": 2.0**-10}[dtype]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=1e-7 * (dtype == "float16"))
