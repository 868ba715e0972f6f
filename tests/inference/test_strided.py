# SPDX-License-Identifier: Apache-2.0
"""Strided 1 x 1 convolutions in oneDNN's layout read cells that a pooling layer picks."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from inference_networks import static_call

from gluon_roi.inference import convert, gemm_layers

S = mx.sym


@pytest.fixture(autouse=True)
def onednns_layout(monkeypatch):
    monkeypatch.setattr(gemm_layers, "mxnets_layout_pays", lambda graph, layers: False)


def layer(data: Any, name: str, **attributes: Any) -> Any:
    return S.Convolution(
        data, name=name, **{"kernel": (1, 1), "num_filter": 24, "no_bias": True, **attributes}
    )


def before() -> Any:
    """A map in oneDNN's layout."""
    return layer(S.var("data"), "before")


def converted(symbol: Any, *shape: int) -> tuple[Any, Any, int]:
    """Calls of a symbol with random weights and of the converted one, and how many were changed."""
    shapes, _, _ = symbol.infer_shape(data=shape)
    types, _, _ = symbol.infer_type(data=np.float32)
    rng = np.random.RandomState(0)
    params = {
        name: mx.nd.array(rng.uniform(-1, 1, size), dtype=dtype)
        for name, size, dtype in zip(symbol.list_arguments(), shapes, types)
        if name != "data"
    }
    made = convert.convert(symbol, params, {"data": shape})
    assert made.symbol.list_outputs() == symbol.list_outputs()
    return (
        static_call(symbol, params),
        static_call(made.symbol, made.parameters),
        made.changes["strided 1 x 1 convolutions whose cells are picked first"],
    )


def numbers(*shape: int) -> mx.nd.NDArray:
    return mx.nd.array(np.random.RandomState(1).uniform(-1, 1, shape))


@pytest.mark.parametrize("stride", [(2, 2), (3, 1), (1, 2), (4, 5)], ids=str)
@pytest.mark.parametrize("groups", [1, 4])
def test_values(stride, groups):
    symbol = layer(before(), "strided", stride=stride, num_group=groups)
    network, made, count = converted(symbol, 2, 8, 15, 12)
    assert count == 1
    for size in ((2, 8, 15, 12), (1, 8, 1, 1), (3, 8, 4, 31), (2, 8, 15, 12)):
        data = numbers(*size)
        np.testing.assert_allclose(made(data=data)[0], network(data=data)[0], rtol=0, atol=1e-5)


def test_layers_of_one_map_share_its_cells():
    source = before()
    symbol = S.Group(
        [layer(source, f"strided{n}", stride=(2, 2), num_filter=16 * n) for n in (1, 2)]
        + [layer(source, "other", stride=(2, 1)), layer(source, "plain")]
    )
    network, made, count = converted(symbol, 1, 8, 9, 7)
    assert count == 3
    data = numbers(1, 8, 9, 7)
    for one, other in zip(made(data=data), network(data=data)):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layer(S.var("data"), "first", stride=(2, 2)),  # reads MXNet's layout
        lambda: layer(before(), "padded", stride=(2, 2), pad=(1, 1)),
        lambda: layer(before(), "large", stride=(2, 2), kernel=(2, 2)),
        lambda: layer(before(), "plain"),
        lambda: layer(S.cast(before(), "float64"), "doubles", stride=(2, 2)),
    ],
    ids=["first", "padded", "large", "plain", "doubles"],
)
def test_what_stays(make):
    *_, count = converted(make(), 1, 8, 9, 9)
    assert count == 0


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 3e38, 1e-45])
def test_numbers_of_every_kind(number):
    network, made, count = converted(layer(before(), "strided", stride=(2, 2)), 1, 8, 5, 5)
    assert count == 1
    data = numbers(1, 8, 5, 5)
    for cell in ((0, 0), (1, 1)):  # the second is not read
        data[0, 3, cell[0], cell[1]] = number
        one, other = made(data=data)[0], network(data=data)[0]
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        found = np.isfinite(one)
        np.testing.assert_allclose(one[found], other[found], rtol=1e-5, atol=1e-5)
