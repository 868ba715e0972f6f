# SPDX-License-Identifier: Apache-2.0
"""Convolutions that stay oneDNN's are padded to a multiple of 8 outputs."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from inference_networks import assert_same_calls

from gluon_roi.inference import gemm_layers, padded_outputs

S = mx.sym


@pytest.fixture(autouse=True)
def onednns_layout_on_avx2(monkeypatch):
    monkeypatch.setattr(gemm_layers, "mxnets_layout_pays", lambda graph, layers: False)
    monkeypatch.setattr(padded_outputs, "build_info", lambda: {"simd": "avx2"})


def layer(name: str, data: Any = None, **attributes: Any) -> Any:
    data = S.var("data") if data is None else data
    return S.Convolution(data, name=name, **{"kernel": (1, 1), "num_filter": 18, **attributes})


def numbers(*shape: int, dtype: str = "float32") -> mx.nd.NDArray:
    return mx.nd.array(np.random.RandomState(1).uniform(-1, 1, shape), dtype=dtype)


def converted(symbol: Any, *maps: tuple[int, ...], dtype: str = "float32") -> Any:
    """Convert a symbol with random weights for the first map, and compare calls of all maps."""
    shapes, _, _ = symbol.infer_shape(data=maps[0])
    params = {
        name: numbers(*shape, dtype=dtype)
        for name, shape in zip(symbol.list_arguments(), shapes)
        if name != "data"
    }
    calls = [{"data": numbers(*shape, dtype=dtype)} for shape in maps]
    made = assert_same_calls(symbol, params, calls)
    assert made.symbol.list_outputs() == symbol.list_outputs()
    return made


def count(made: Any) -> int:
    return made.changes["convolutions whose outputs are padded"]


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
    assert count(converted(symbol, (1, 12, 19, 25), (3, 12, 30, 11))) == 1


def test_a_layer_of_several_maps_has_one_weight():
    weight, bias = S.var("weight"), S.var("bias")
    data = S.var("data")
    maps = [data, S.Pooling(data, kernel=(2, 2), stride=(2, 2), pool_type="max")]
    symbol = S.Group([S.Convolution(m, weight, bias, kernel=(1, 1), num_filter=21) for m in maps])
    made = converted(symbol, (1, 6, 8, 10))
    assert count(made) == 2
    assert len([name for name in made.parameters if name.endswith("_padded_weight")]) == 1


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
    assert count(converted(LEFT_ALONE[name](), (1, 12, 7, 9))) == 0


def test_other_types_are_left_alone():
    assert count(converted(layer("double"), (1, 12, 7, 9), dtype="float64")) == 0


def test_other_processors_are_left_alone(monkeypatch):
    monkeypatch.setattr(padded_outputs, "build_info", lambda: {"simd": "avx512"})
    assert count(converted(layer("scores"), (1, 12, 7, 9))) == 0
