# SPDX-License-Identifier: Apache-2.0
"""Convolutions and max pooling for inference, with the sums and activations behind them."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from support.inference_networks import outputs_of

from gluon_roi.bridge.symbol_json import symbol_content
from gluon_roi.inference import convert, gemm, gemm_layers, max_pooling, winograd

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
    """Operators of the converted symbol, once its outputs are those of the symbol."""
    inputs = {name: numbers(*shape) for name, shape in SHAPES.items()}
    names = symbol.list_arguments()
    shapes, _, _ = symbol.infer_shape(**{k: v for k, v in SHAPES.items() if k in names})
    params = {n: numbers(*shape) for n, shape in zip(names, shapes) if n not in inputs}
    inputs = {name: value for name, value in inputs.items() if name in names}
    made = convert.convert(symbol, params, inputs)
    found = outputs_of(made.symbol, made.parameters, inputs)
    for one, other in zip(found, outputs_of(symbol, params, inputs)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    assert made.symbol.list_outputs() == symbol.list_outputs()
    return [node["op"] for node in symbol_content(made.symbol)["nodes"] if node["op"] != "null"]


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
