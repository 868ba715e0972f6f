# SPDX-License-Identifier: Apache-2.0
"""Convolutions that stay oneDNN's get a multiple of 8 outputs, of which the last are cut off."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from inference_networks import static_call

from gluon_roi.inference import convert, gemm_layers, whole_blocks

S = mx.sym


@pytest.fixture(autouse=True)
def onednns_layout_on_avx2(monkeypatch):
    monkeypatch.setattr(gemm_layers, "mxnets_layout_pays", lambda graph, layers: False)
    monkeypatch.setattr(whole_blocks, "build_info", lambda: {"simd": "avx2"})


def layer(name: str, data: Any = None, **attributes: Any) -> Any:
    data = S.var("data") if data is None else data
    return S.Convolution(data, name=name, **{"kernel": (1, 1), "num_filter": 18, **attributes})


def converted(symbol: Any, shape: tuple[int, ...], dtype: Any = np.float32) -> tuple[Any, Any, int]:
    """Calls of a symbol with random weights and of the converted one, and how many were filled."""
    shapes, _, _ = symbol.infer_shape(data=shape)
    rng = np.random.RandomState(0)
    params = {
        name: mx.nd.array(rng.uniform(-1, 1, size), dtype=dtype)
        for name, size in zip(symbol.list_arguments(), shapes)
        if name != "data"
    }
    made = convert.convert(symbol, params, {"data": mx.nd.zeros(shape, dtype=dtype)})
    assert made.symbol.list_outputs() == symbol.list_outputs()
    count = made.changes["convolutions with whole blocks of outputs"]
    return static_call(symbol, params), static_call(made.symbol, made.parameters), count


def numbers(*shape: int) -> mx.nd.NDArray:
    return mx.nd.array(np.random.RandomState(1).uniform(-1, 1, shape))


def assert_same(call: Any, before: Any, *shape: int) -> None:
    data = numbers(*shape)
    for got, wanted in zip(call(data=data), before(data=data)):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("filters", [17, 18, 23, 60])
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
    before, call, count = converted(symbol, (1, 12, 19, 25))
    assert count == 1
    assert_same(call, before, 1, 12, 19, 25)
    assert_same(call, before, 3, 12, 30, 11)


def test_a_layer_of_several_maps_has_one_weight():
    weight, bias = S.var("weight"), S.var("bias")
    data = S.var("data")
    maps = [data, S.Pooling(data, kernel=(2, 2), stride=(2, 2), pool_type="max")]
    symbol = S.Group([S.Convolution(m, weight, bias, kernel=(1, 1), num_filter=21) for m in maps])
    before, call, count = converted(symbol, (1, 6, 8, 10))
    assert count == 2
    assert_same(call, before, 1, 6, 8, 10)


@pytest.mark.parametrize(
    "change",
    [
        lambda: layer("blocks", num_filter=24),
        lambda: layer("groups", num_group=2),
        lambda: S.relu(layer("activation")),
        lambda: layer("sum") + layer("other"),
        lambda: layer(
            "computed",
            weight=S.var("data").reshape((-1,)).slice_axis(0, 0, 216).reshape((18, 12, 1, 1)),
        ),
    ],
    ids=["whole blocks", "groups", "activation", "sum", "weights of the input"],
)
def test_left_alone(change):
    symbol = change()
    before, call, count = converted(symbol, (1, 12, 7, 9))
    assert count == 0
    assert_same(call, before, 1, 12, 7, 9)


def test_other_types_are_left_alone():
    _, _, count = converted(layer("half"), (1, 12, 7, 9), "float64")
    assert count == 0


def test_other_processors_are_left_alone(monkeypatch):
    monkeypatch.setattr(whole_blocks, "build_info", lambda: {"simd": "avx512"})
    assert converted(layer("scores"), (1, 12, 7, 9))[2] == 0
