# SPDX-License-Identifier: Apache-2.0
"""MaxPooling: values, beside MXNet's Pooling, and refusals."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest

from gluon_roi.inference import max_pooling
from testing.inference_operators import function_for


def call(data: Any, **attributes: Any) -> Any:
    return function_for(max_pooling.OPERATOR, data)(data, **attributes)


def numbers(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randn(*shape).astype(np.float32)


#: Shape of the maps, kernel, stride, pad, convention.
CALLS = [
    ((1, 4, 30, 41), (3, 3), (2, 2), (1, 1), "valid"),
    ((2, 3, 29, 64), (3, 3), (1, 1), (1, 1), "valid"),
    ((2, 3, 7, 9), (3, 3), (2, 2), (1, 1), "full"),
    ((1, 2, 5, 3), (2, 2), (2, 2), (0, 0), "full"),
    ((1, 1, 1, 1), (2, 2), (3, 3), (1, 1), "full"),
    ((1, 2, 40, 33), (3, 2), (3, 5), (1, 0), "full"),
    ((1, 2, 12, 13), (5, 5), (1, 2), (2, 2), "valid"),
    ((1, 2, 3, 2), (3, 3), (4, 4), (2, 2), "full"),
    ((1, 2, 9, 17), (1, 1), (2, 2), (0, 0), "valid"),
]


@pytest.mark.parametrize("shape, kernel, stride, pad, convention", CALLS)
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
def test_agrees_with_mxnet(shape, kernel, stride, pad, convention, special):
    """Exactly, also with numbers that do not count, and windows without others."""
    data = numbers(*shape)
    if special is not None:
        data[:, :, : shape[2] // 2] = special
        data[0, 0, -1, -1] = special
    attributes = {"kernel": kernel, "stride": stride, "pad": pad, "pooling_convention": convention}
    array = mx.nd.array(data)
    wanted = mx.nd.Pooling(array, pool_type="max", **attributes).asnumpy()
    np.testing.assert_array_equal(call(array, **attributes).asnumpy(), wanted)


@pytest.mark.parametrize("shape", [(2, 3, 29, 64), (1, 2, 5, 3), (1, 1, 1, 1), (2, 1, 7, 9)])
@pytest.mark.parametrize("kernel", [(3, 3), (1, 5), (1, 1)])
@pytest.mark.parametrize("special", [None, np.nan, np.inf, -np.inf])
def test_keep_maxima_agrees_with_mxnet(shape, kernel, special):
    """Bit by bit: which zeros are negative, and NaN. Rounded numbers have equal maxima."""
    data = np.round(2 * numbers(*shape)) / 2
    if special is not None:
        data[:, :, : shape[2] // 2, ::3] = special
        data[0, 0, -1, -1] = special
    array, sizes = mx.nd.array(data), {"kernel": kernel, "pad": (kernel[0] // 2, kernel[1] // 2)}
    largest = mx.nd.Pooling(array, pool_type="max", **sizes)
    wanted = (array * mx.nd.broadcast_equal(array, largest)).asnumpy()
    found = call(array, keep_maxima=True, **sizes).asnumpy()
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_the_output_may_not_be_the_input():
    """keep_maxima would read neighbours that it has already replaced."""
    data = mx.nd.array(numbers(1, 2, 8, 9))
    with pytest.raises(mx.MXNetError, match="MaxPooling: output: expected memory of its own"):
        call(data, kernel=(3, 3), pad=(1, 1), keep_maxima=True, out=data)
        data.wait_to_read()


def test_worked_number():
    row = mx.nd.array([[[[1, 5, 2, 4]]]])
    assert call(row, kernel=(1, 2), stride=(1, 2)).asnumpy().tolist() == [[[[5, 4]]]]
    maxima = call(row, kernel=(1, 3), pad=(0, 1), keep_maxima=True)
    assert maxima.asnumpy().tolist() == [[[[0, 5, 0, 4]]]]


def test_symbols():
    symbol = call(mx.sym.var("data"), kernel=(3, 3), stride=(2, 2), pooling_convention="full")
    symbol = mx.sym.load_json(symbol.tojson())
    assert symbol.infer_shape(data=(2, 3, 8, 9))[1] == [(2, 3, 4, 4)]
    assert symbol.infer_type(data="float32")[1] == [np.float32]


@pytest.mark.parametrize(
    "shape, attributes, expected",
    [
        ((2, 3, 6), {}, r"data has shape \(2, 3, 6\), expected 4 dimensions \(N, C, H, W\)"),
        ((1, 1, 2, 5), {}, "data has shape .*, expected at least 3 along axis 2, for the kernel"),
        ((1, 1, 5, 5), {"pad": (1, 3)}, "argument pad: expected less than the kernel, 3, got 3"),
        ((1, 1, 5, 5), {"kernel": None}, "argument kernel: expected a positive int"),
        ((1, 1, 5, 5), {"stride": 0}, "argument stride: expected"),
        ((1, 1, 5, 5), {"pooling_convention": "same"}, "argument pooling_convention: expected"),
        (
            (1, 1, 5, 5),
            {"pad": (1, 0), "keep_maxima": True},
            r"argument keep_maxima: expected strides of 1 and a kernel of 2 \* pad \+ 1, got "
            r"stride \(1, 1\), kernel \(3, 3\) and pad \(1, 0\)",
        ),
        ((1, 1, 5, 5), {"stride": 2, "pad": 1, "keep_maxima": True}, "argument keep_maxima: exp"),
    ],
)
def test_refusals(shape, attributes, expected):
    with pytest.raises(mx.MXNetError, match=f"MaxPooling: {expected}"):
        call(mx.nd.zeros(shape), **{"kernel": (3, 3), **attributes})


def test_wrong_type():
    with pytest.raises(mx.MXNetError, match="MaxPooling: data has dtype float64, expected float32"):
        call(mx.nd.zeros((1, 1, 5, 5), dtype="float64"), kernel=(3, 3))


def test_no_gradient():
    data = mx.nd.zeros((1, 1, 5, 5))
    data.attach_grad()
    with mx.autograd.record():
        out = call(data, kernel=(3, 3))
    with pytest.raises(mx.MXNetError, match="MaxPooling: has no gradient, because it is for"):
        out.backward()
        data.grad.wait_to_read()
