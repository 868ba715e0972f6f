# SPDX-License-Identifier: Apache-2.0
"""UpsampleAdd: values, beside MXNet's operators, and refusals."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from testing.inference_operators import upsample_add


def run(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    arrays = (mx.nd.array(array, dtype="float32", ctx=mx.cpu()) for array in (low, high))
    return upsample_add(*arrays).asnumpy()


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


@pytest.mark.parametrize(
    "size", [(1, 1), (2, 2), (3, 2), (7, 8), (8, 7), (13, 17), (30, 33), (1, 50), (50, 1)], ids=str
)
@pytest.mark.parametrize("spare", [0, 3])
def test_values(size, spare):
    """Equal to the sum in float32; rows and columns of low that nobody reads do not matter."""
    height, width = size
    low = numbers(0, 2, 3, (height + 1) // 2 + spare, (width + 1) // 2 + spare)
    high = numbers(1, 2, 3, height, width)
    wanted = low.repeat(2, axis=2).repeat(2, axis=3)[:, :, :height, :width] + high
    np.testing.assert_array_equal(run(low, high), wanted)


def test_agrees_with_mxnet():
    low, high = mx.nd.array(numbers(0, 1, 40, 38, 50)), mx.nd.array(numbers(1, 1, 40, 75, 100))
    larger = mx.nd.UpSampling(low, scale=2, sample_type="nearest")
    wanted = mx.nd.slice_like(larger, high, axes=(2, 3)) + high
    np.testing.assert_array_equal(upsample_add(low, high).asnumpy(), wanted.asnumpy())


def test_worked_number():
    assert run(np.array([[[[1, 2]]]]), np.array([[[[10, 20, 30]]]])).tolist() == [[[[11, 21, 32]]]]


def test_special_numbers_reach_only_their_cells():
    low = np.ones((1, 1, 3, 3), np.float32)
    low[0, 0, 1, 1] = np.nan
    out = run(low, np.full((1, 1, 6, 6), 2.0**-140, np.float32))
    assert np.isnan(out[0, 0, 2:4, 2:4]).all() and np.isnan(out).sum() == 4


def test_empty():
    with mx.util.np_shape():
        assert run(np.zeros((0, 3, 4, 4)), np.zeros((0, 3, 8, 8))).shape == (0, 3, 8, 8)
        assert run(np.zeros((2, 3, 0, 4)), np.zeros((2, 3, 0, 8))).shape == (2, 3, 0, 8)


def test_symbols():
    symbol = upsample_add(mx.sym.var("low"), mx.sym.var("high"), name="up")
    symbol = mx.sym.load_json(symbol.tojson())
    assert symbol.infer_shape(low=(1, 2, 3, 4), high=(1, 2, 5, 7))[1] == [(1, 2, 5, 7)]
    arrays = {"low": numbers(0, 1, 2, 3, 4), "high": numbers(1, 1, 2, 5, 7)}
    bound = symbol.bind(mx.cpu(), {name: mx.nd.array(array) for name, array in arrays.items()})
    np.testing.assert_array_equal(bound.forward()[0].asnumpy(), run(**arrays))


@pytest.mark.parametrize(
    "low, high, expected",
    [
        ((1, 2, 3, 4), (1, 2, 7, 8), "high has shape .*, expected at most 6 along axis 2, twice"),
        ((1, 2, 3, 4), (1, 2, 6, 9), "high has shape .*, expected at most 8 along axis 3, twice"),
        ((1, 3, 3, 4), (1, 2, 6, 8), "low has shape .*, expected 2 along axis 1, as high"),
        ((2, 2, 3, 4), (1, 2, 6, 8), "low has shape .*, expected 1 along axis 0, as high"),
        ((1, 2, 3), (1, 2, 6, 8), r"low has shape \(1, 2, 3\), expected 4 dimensions"),
        ((1, 2, 3, 4), (1, 2, 6), r"high has shape \(1, 2, 6\), expected 4 dimensions"),
    ],
)
def test_wrong_shapes(low, high, expected):
    with pytest.raises(mx.MXNetError, match=f"UpsampleAdd: {expected}"):
        upsample_add(mx.nd.zeros(low), mx.nd.zeros(high))


@pytest.mark.parametrize("position, name", [(0, "low"), (1, "high")])
def test_wrong_types(position, name):
    inputs: Any = [mx.nd.zeros((1, 2, 3, 4)), mx.nd.zeros((1, 2, 6, 8))]
    inputs[position] = inputs[position].astype("float64")
    with pytest.raises(mx.MXNetError, match=f"UpsampleAdd: {name} has dtype float64, expected flo"):
        upsample_add(*inputs)


def test_no_gradient():
    low, high = mx.nd.zeros((1, 2, 3, 4)), mx.nd.zeros((1, 2, 6, 8))
    low.attach_grad()
    with mx.autograd.record():
        out = upsample_add(low, high)
    with pytest.raises(mx.MXNetError, match="UpsampleAdd: has no gradient, because it is for"):
        out.backward()
        low.grad.wait_to_read()
