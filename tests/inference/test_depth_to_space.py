# SPDX-License-Identifier: Apache-2.0
"""DepthToSpace: values, beside MXNet's depth_to_space, and refusals."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from gluon_roi.inference.deconvolution import OPERATOR
from testing.inference_operators import function_for


def call(data: Any, **attributes: Any) -> Any:
    return function_for(OPERATOR, data)(data, **attributes)


@pytest.mark.parametrize(
    "shape, side",
    [
        ((1, 8, 3, 5), 2),
        ((2, 4, 1, 1), 2),
        ((3, 12, 2, 64), 2),
        ((2, 18, 4, 7), 3),
        ((1, 5, 4, 3), 1),
        ((1, 32, 2, 2), 4),
    ],
)
def test_agrees_with_mxnet(shape, side):
    """Exactly, with numbers of any kind."""
    data = np.random.RandomState(0).randn(*shape).astype(np.float32)
    data.reshape(-1)[::5] = np.nan
    data.reshape(-1)[1::5] = np.inf
    array = mx.nd.array(data)
    wanted = mx.nd.depth_to_space(array, block_size=side).asnumpy()
    np.testing.assert_array_equal(call(array, block_size=side).asnumpy(), wanted)


def test_worked_number():
    cells = mx.nd.array([1, 2, 3, 4]).reshape((1, 4, 1, 1))
    assert call(cells, block_size=2).asnumpy().tolist() == [[[[1, 2], [3, 4]]]]


def test_symbols():
    symbol = call(mx.sym.var("data"), block_size=2)
    symbol = mx.sym.load_json(symbol.tojson())
    assert symbol.infer_shape(data=(2, 12, 8, 9))[1] == [(2, 3, 16, 18)]
    assert symbol.infer_type(data="float32")[1] == [np.float32]
    with pytest.raises(mx.MXNetError, match="DepthToSpace: output"):
        symbol.infer_shape(data=(1, 4, 1, 1 << 30))


@pytest.mark.parametrize(
    "shape, attributes, expected",
    [
        ((2, 3, 6), {}, r"data has shape \(2, 3, 6\), expected 4 dimensions \(N, block_size"),
        ((1, 6, 2, 5), {}, "data has 6 channels, expected a multiple of block_size.2 = 4"),
        ((1, 4, 2, 5), {"block_size": 0}, "argument block_size: expected"),
    ],
)
def test_refusals(shape, attributes, expected):
    with pytest.raises(mx.MXNetError, match=f"DepthToSpace: {expected}"):
        call(mx.nd.zeros(shape), **{"block_size": 2, **attributes})


def test_wrong_type():
    with pytest.raises(mx.MXNetError, match="DepthToSpace: data has dtype float64, expected float"):
        call(mx.nd.zeros((1, 4, 5, 5), dtype="float64"), block_size=2)


def test_no_gradient():
    data = mx.nd.zeros((1, 4, 5, 5))
    data.attach_grad()
    with mx.autograd.record():
        out = call(data, block_size=2)
    with pytest.raises(mx.MXNetError, match="DepthToSpace: has no gradient, because it is for"):
        out.backward()
        data.grad.wait_to_read()
