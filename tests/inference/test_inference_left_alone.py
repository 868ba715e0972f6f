# SPDX-License-Identifier: Apache-2.0
"""What a pass of the conversion for inference cannot convert stays, with the same results."""

from __future__ import annotations

from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from inference_networks import outputs_of

from gluon_roi.inference import convert

S = mx.sym
#: Shapes of the variables of the symbols below.
SHAPES = {
    "data": (1, 16, 12, 16),
    "low": (1, 16, 3, 3),
    "high": (1, 16, 5, 5),
    "weight": (16, 16, 3, 3),
    "data_weight": (16, 16, 3, 3),
    "flat_weight": (16, 144),
    "square": (16, 16, 1, 1),
    "bias": (16,),
    "gamma": (16,),
    "beta": (16,),
    "mean": (16,),
    "variance": (16,),
    "dense_weight": (16, 12),
    "up_weight": (16, 1, 4, 4),
    "norm_folded_weight": (1, 1, 1, 1),
    "rows": (16, 16),
}
#: Names of inputs; the other variables are parameters.
INPUTS = ("data", "low", "high", "data_weight")

_random = np.random.RandomState(0)
VALUES = {name: mx.nd.array(_random.uniform(0.5, 1, shape)) for name, shape in SHAPES.items()}

DATA, LOW, HIGH, WEIGHT = map(S.var, ("data", "low", "high", "weight"))


def convolution(data: Any = DATA, weight: Any = WEIGHT, side: int = 3) -> Any:
    size = {"kernel": (side, side), "pad": (side // 2, side // 2)}
    return S.Convolution(data, weight, S.var("bias"), num_filter=16, **size)


def norm(data: Any, **attributes: Any) -> Any:
    names = ("gamma", "beta", "mean", "variance")
    return S.BatchNorm(data, *map(S.var, names), fix_gamma=False, **attributes)


def upsampled(scale: int = 2) -> Any:
    return S.UpSampling(LOW, scale=scale, sample_type="nearest", num_args=1)


def cut(large: Any, like: Any = HIGH, axes: tuple = (2, 3)) -> Any:
    return S.slice_like(large, like, axes=axes)


def _read_statistics() -> Any:
    outputs = norm(convolution(), output_mean_var=True)
    return S.Group([outputs[number] for number in range(3)])


def _norm_of_several_users() -> Any:
    maps = convolution()
    return S.Group([norm(maps), S.relu(maps)])


def _norm_of_rows() -> Any:
    rows = S.FullyConnected(
        S.reshape(DATA, shape=(1, 16, 192)).slice_axis(axis=2, begin=0, end=12),
        S.var("dense_weight"),
        no_bias=True,
        num_hidden=16,
        flatten=False,
    )
    return norm(rows)


def _map_with_two_readers() -> Any:
    large = cut(upsampled())
    return S.Group([large + HIGH, large * 2])


def _bilinear() -> Any:
    large = S.UpSampling(
        LOW, S.var("up_weight"), scale=2, sample_type="bilinear", num_filter=16, num_args=2
    )
    return cut(large) + HIGH


NORMS, PYRAMIDS = "BatchNorm folded into weights", "upsampling and addition as one operator"
#: Name: the pass, and a symbol that it has to leave as it is.
KEPT: dict[str, tuple[str, Callable[[], Any]]] = {
    "statistics that are read": (NORMS, _read_statistics),
    "a layer with two readers": (NORMS, _norm_of_several_users),
    "a norm of another axis": (NORMS, lambda: norm(convolution(), axis=3)),
    "a dense layer of each row": (NORMS, _norm_of_rows),
    "weights that are an input": (NORMS, lambda: norm(convolution(weight=S.var("data_weight")))),
    "bilinear upsampling": (PYRAMIDS, _bilinear),
    "four times the size": (PYRAMIDS, lambda: cut(upsampled(scale=4)) + HIGH),
    "cut along one axis": (
        PYRAMIDS,
        lambda: S.broadcast_add(cut(cut(upsampled(), axes=(2,)), axes=(3,)), HIGH),
    ),
    "cut like another map": (
        PYRAMIDS,
        lambda: cut(upsampled(), HIGH * 2) + HIGH,
    ),
    "a map that is read elsewhere": (PYRAMIDS, _map_with_two_readers),
}


def convert_and_compare(symbol: Any) -> convert.Converted:
    """Convert a symbol, and check that its outputs stay the same but for rounding."""
    values = {name: value for name, value in VALUES.items() if name in symbol.list_inputs()}
    inputs = {name: values[name] for name in INPUTS if name in values}
    params = {name: value for name, value in values.items() if name not in INPUTS}
    converted = convert.convert(symbol, params, inputs)
    expected = outputs_of(symbol, params, inputs)
    actual = outputs_of(converted.symbol, converted.parameters, inputs)
    for value, expected_value in zip(actual, expected):
        np.testing.assert_allclose(value, expected_value, rtol=1e-5, atol=1e-5)
    return converted


@pytest.mark.parametrize("name", KEPT)
def test_kept(name):
    what, make = KEPT[name]
    assert convert_and_compare(make()).changes[what] == 0


def test_weights_that_the_graph_computes_are_folded():
    """A deformable convolution's weights, for instance, are reshaped in the graph.

    The name of the folded weights is already in use here, so they get another one.
    """
    weight = S.reshape(S.var("flat_weight"), shape=(16, 16, 3, 3))
    symbol = norm(convolution(weight=weight), name="norm")
    symbol = S.broadcast_mul(symbol, S.var("norm_folded_weight"))
    converted = convert_and_compare(symbol)
    assert converted.changes[NORMS] == 1
    assert converted.parameters["norm_folded_weight"].shape == SHAPES["norm_folded_weight"]


def test_without_mxnets_fusion(monkeypatch):
    """A build of MXNet without oneDNN."""
    monkeypatch.setattr(mx.runtime, "Features", _NoFeatures)
    mean = S.Pooling(DATA, global_pool=True, pool_type="avg", kernel=(1, 1))
    symbol = S.relu(S.FullyConnected(mean, S.var("rows"), no_bias=True, num_hidden=16))
    converted = convert_and_compare(symbol)
    assert converted.changes["nodes fused by MXNet"] == 0
    assert converted.symbol.list_arguments() == symbol.list_arguments()


class _NoFeatures:
    def is_enabled(self, name: str) -> bool:
        return False
