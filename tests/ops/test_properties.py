# SPDX-License-Identifier: Apache-2.0
"""Random shapes, boxes, scales and dtypes (hypothesis) against the NumPy reference."""

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mxnet import autograd
from operators import OPERATORS
from support.cases import PRECISION, assert_near, row_id

pytestmark = pytest.mark.slow

SETTINGS = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
coordinates = st.one_of(
    st.floats(-40, 60, width=32),
    st.integers(-10, 40).map(float),
    st.integers(-20, 80).map(lambda n: n / 2),
    st.sampled_from([1e6, -1e6, 1e20, -1e20]),
)


@st.composite
def calls(draw, op):
    """(data, rois, pooled_size, spatial_scale, arguments) that an operator accepts."""
    pooled = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    arguments = draw(st.sampled_from(op.arguments))
    if op.takes("sampling_ratio"):
        arguments = {**arguments, "sampling_ratio": draw(st.integers(-1, 4))}
    dtype = draw(st.sampled_from(sorted(PRECISION)))
    images = draw(st.integers(1, 3))
    channels = op.channels(draw(st.integers(1, 18)), pooled, arguments)
    size = draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    seed = draw(st.integers(0, 2**31))
    data = np.random.RandomState(seed).randn(images, channels, *size).astype(dtype)
    row = st.tuples(st.integers(-1, images - 1).map(float), *[coordinates] * 4)
    rois = draw(st.lists(row, min_size=1, max_size=6))
    rois = op.rois(rois).astype("float64" if dtype == "float64" else "float32")
    scale = draw(st.sampled_from([1.0, 0.5, 0.25, 1 / 16, 0.3, 0.7]))
    return data, rois, pooled, scale, arguments


@pytest.mark.parametrize("op", OPERATORS, ids=row_id)
def test_forward_and_backward(op, ctx):
    @SETTINGS
    @given(calls(op))
    def check(call):
        data, rois, pooled, scale, arguments = call
        x = mx.nd.array(data, ctx=ctx, dtype=data.dtype)
        x.attach_grad()
        with autograd.record():
            out = op.function(
                x, mx.nd.array(rois, ctx=ctx, dtype=rois.dtype), pooled, scale, **arguments
            )
        slope = np.random.RandomState(0).randn(*out.shape).astype(data.dtype)
        out.backward(mx.nd.array(slope, ctx=ctx, dtype=data.dtype))
        precision = PRECISION[data.dtype.name]
        expected = op.expected(data, rois, pooled, scale, **arguments)
        assert_near(out, expected, precision.forward)
        gradient = op.expected_gradients(slope, data, rois, pooled, scale, **arguments)[0]
        assert_near(x.grad, gradient, precision.backward * max(1, np.abs(gradient).max()))

    check()


@pytest.mark.parametrize("op", [op for op in OPERATORS if op.linear], ids=row_id)
def test_adjoint(op, ctx):
    """<op(x), g> = <x, op^T(g)> in float64, for any boxes."""

    @SETTINGS
    @given(calls(op))
    def check(call):
        data, rois, pooled, scale, arguments = call
        x = mx.nd.array(data, ctx=ctx, dtype="float64")
        x.attach_grad()
        with autograd.record():
            out = op.function(
                x, mx.nd.array(rois, ctx=ctx, dtype="float64"), pooled, scale, **arguments
            )
        slope = mx.nd.array(np.random.RandomState(1).randn(*out.shape), ctx=ctx, dtype="float64")
        out.backward(slope)
        left, right = (out * slope).sum().asscalar(), (x * x.grad).sum().asscalar()
        assert left == pytest.approx(right, rel=1e-10, abs=1e-10)

    check()
