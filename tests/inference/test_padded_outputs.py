# SPDX-License-Identifier: Apache-2.0
"""Convolutions that stay oneDNN's get a multiple of 8 outputs, of which the last are cut off."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from inference_networks import static_call

from gluon_roi.inference import convert, gemm_layers, padded_outputs

S = mx.sym


@pytest.fixture(autouse=True)
def onednns_layout_on_avx2(monkeypatch):
    monkeypatch.setattr(gemm_layers, "mxnets_layout_pays", lambda graph, layers: False)
    monkeypatch.setattr(padded_outputs, "build_info", lambda: {"simd": "avx2"})


def layer(name: str, data: Any = None, **attributes: Any) -> Any:
    data = S.var("data") if data is None else data
    return S.Convolution(data, name=name, **{"kernel": (1, 1), "num_filter": 18, **attributes})


def converted(symbol: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> tuple[Any, Any, Any]:
    """Calls of a symbol with random weights and of the converted one, and what was made."""
    shapes, _, _ = symbol.infer_shape(data=shape)
    rng = np.random.RandomState(0)
    params = {
        name: mx.nd.array(rng.uniform(-1, 1, size), dtype=dtype)
        for name, size in zip(symbol.list_arguments(), shapes)
        if name != "data"
    }
    made = convert.convert(symbol, params, {"data": mx.nd.zeros(shape, dtype=dtype)})
    assert made.symbol.list_outputs() == symbol.list_outputs()
    return static_call(symbol, params), static_call(made.symbol, made.parameters), made


def count(made: Any) -> int:
    return made.changes["convolutions whose outputs are padded"]


def numbers(*shape: int) -> mx.nd.NDArray:
    return mx.nd.array(np.random.RandomState(1).uniform(-1, 1, shape))


def assert_same(call: Any, before: Any, *shape: int) -> None:
    data = numbers(*shape)
    for got, wanted in zip(call(data=data), before(data=data)):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("filters", [1, 3, 18, 60])
@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"no_bias": True},
        {"kernel": (3, 3), "pad": (1, 1), "stride": (2, 2)},
        {"kernel": (3, 5), "pad": (2, 4), "dilate": (2, 2)},
    ],
    ids=str,
)
def test_values(filters, attributes):
    """Also for a batch and maps of other sizes than the example's."""
    symbol = layer("scores", num_filter=filters, **attributes)
    before, call, made = converted(symbol, (1, 12, 19, 25))
    assert count(made) == 1
    assert_same(call, before, 1, 12, 19, 25)
    assert_same(call, before, 3, 12, 30, 11)


def test_a_layer_of_several_maps_has_one_weight():
    weight, bias = S.var("weight"), S.var("bias")
    data = S.var("data")
    maps = [data, S.Pooling(data, kernel=(2, 2), stride=(2, 2), pool_type="max")]
    symbol = S.Group([S.Convolution(m, weight, bias, kernel=(1, 1), num_filter=21) for m in maps])
    before, call, made = converted(symbol, (1, 6, 8, 10))
    assert count(made) == 2
    assert len([name for name in made.parameters if name.endswith("_padded_weight")]) == 1
    assert_same(call, before, 1, 6, 8, 10)


LEFT_ALONE = {
    "whole blocks": lambda: layer("scores", num_filter=24),
    "groups": lambda: layer("scores", num_group=2),
    "ReLU": lambda: S.relu(layer("scores")),
    "sigmoid": lambda: S.Activation(layer("scores"), act_type="sigmoid"),
    "clip": lambda: S.clip(layer("scores"), 0, 1),
    "sum": lambda: layer("scores") + layer("other"),
    "layer": lambda: layer("second", layer("first"), num_filter=16),
    "pooling": lambda: S.Pooling(layer("scores"), kernel=(2, 2), pool_type="max"),
    "weights of the input": lambda: layer(
        "scores", weight=S.var("data").reshape((-1,)).slice_axis(0, 0, 216).reshape((18, 12, 1, 1))
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(name):
    symbol = LEFT_ALONE[name]()
    before, call, made = converted(symbol, (1, 12, 7, 9))
    assert count(made) == 0
    assert_same(call, before, 1, 12, 7, 9)


def test_other_types_are_left_alone():
    _, _, made = converted(layer("double"), (1, 12, 7, 9), "float64")
    assert count(made) == 0


def test_other_processors_are_left_alone(monkeypatch):
    monkeypatch.setattr(padded_outputs, "build_info", lambda: {"simd": "avx512"})
    assert count(converted(layer("scores"), (1, 12, 7, 9))[2]) == 0
