# SPDX-License-Identifier: Apache-2.0
"""ROIAlign with mode='max': values, gradients, ties, NaN, ONNX, pyramids."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from support.cases import PRECISION, all_rois, assert_near, feature_map, row_id
from support.onnx_evaluator import run as run_onnx

import gluon_roi
from gluon_roi import reference

DTYPES = ("float32", "float64", "float16")
align: Any = gluon_roi.nd.ROIAlign
align_symbols: Any = gluon_roi.sym.ROIAlign
ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"sampling_ratio": 2},
    {"aligned": True},
    {"sampling_ratio": 3, "aligned": True},
)


def run(data, rois, d_out=None, **arguments):
    """Output and gradients of data and rois."""
    arrays = [mx.nd.array(array, dtype=array.dtype) for array in (data, rois)]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        out = align(*arrays, mode="max", rois_grad=True, **arguments)
    slope = np.random.RandomState(1).randn(*out.shape) if d_out is None else d_out
    out.backward(mx.nd.array(slope, dtype=out.dtype))
    return [out.asnumpy(), *(array.grad.asnumpy() for array in arrays)]


@pytest.mark.parametrize("channels, pooled", [(3, (2, 3)), (17, (1, 1)), (16, (3, 2))])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=row_id)
def test_reference(arguments, dtype, channels, pooled):
    data = feature_map(channels, dtype)
    rois = all_rois(0.3, "float64" if dtype == "float64" else "float32")[::2]
    out, d_data, d_rois = run(data, rois, pooled_size=pooled, spatial_scale=0.3, **arguments)
    precision = PRECISION[dtype]
    exact = {**arguments, "geometry": precision.geometry, "mode": "max"}
    assert_near(out, reference.roi_align(data, rois, pooled, 0.3, **exact), precision.forward)
    slope = np.random.RandomState(1).randn(*out.shape).astype(dtype)
    wanted = reference.roi_align_backward(slope, data, rois, pooled, 0.3, **exact)
    gradients = [(d_data, wanted[0])]
    # In other types, samples that differ by a rounding alone compete, and their derivatives with
    # respect to the box are not near each other: test_exact_gradients.
    if dtype == "float64":
        gradients.append((d_rois, wanted[1]))
    for actual, gradient in gradients:
        assert_near(actual, gradient, precision.backward * max(1, np.abs(gradient).max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("aligned", [False, True])
def test_exact_gradients(aligned, dtype):
    """Numbers that every type computes exactly: the same samples are the largest, ties included."""
    rng = np.random.RandomState(2)
    data = rng.randint(-3, 4, (2, 18, 9, 12)).astype(dtype)
    low, sides = rng.randint(-8, 44, (80, 2)) / 4, rng.choice([2, 4, 6, 8], (80, 2))
    rois = np.hstack([rng.randint(-1, 2, (80, 1)), low, low + sides])
    rois = rois.astype("float64" if dtype == "float64" else "float32")
    given = {"pooled_size": 2, "spatial_scale": 1.0, "sampling_ratio": 2, "aligned": aligned}
    slope = rng.randint(-2, 3, (80, 18, 2, 2))
    out, d_data, d_rois = run(data, rois, slope, **given)
    given["mode"] = "max"
    np.testing.assert_array_equal(out, reference.roi_align(data, rois, **given))
    wanted = reference.roi_align_backward(slope, data, rois, **given)
    assert d_rois.dtype == rois.dtype and d_rois[:, 1:].any(axis=0).all()
    np.testing.assert_array_equal(d_rois, wanted[1])
    np.testing.assert_allclose(d_data, wanted[0].astype(dtype), 1e-3 if dtype == "float16" else 0)


def test_worked_numbers():
    """The samples of the bin from (0, 0) to (1, 1) lie at 0.25 and 0.75."""
    data, rois = np.array([[[[1.0, 2], [3, 4]]]]), np.array([[0, 0, 0, 1, 1.0]])
    given = {"pooled_size": 1, "spatial_scale": 1.0, "sampling_ratio": 2}
    out, d_data, d_rois = run(data, rois, np.ones((1, 1, 1, 1)), **given)
    assert out.item() == 3.25
    assert d_data.ravel().tolist() == [0.0625, 0.1875, 0.1875, 0.5625]
    # The sample at 3/4 of both sides, on a slope of 1 along x and 2 along y.
    assert d_rois.tolist() == [[0, 0.25, 0.5, 0.75, 1.5]]
    kept = align(mx.nd.array(data), mx.nd.array(rois), 1, 1.0, 2, mode="avg").asscalar()
    assert kept == align(mx.nd.array(data), mx.nd.array(rois), 1, 1.0, 2).asscalar() == 2.5


def test_ties_outside_and_nan():
    given = {"pooled_size": 1, "spatial_scale": 1.0, "sampling_ratio": 2}
    box, one = np.array([[0, 0, 0, 2, 2.0]]), np.ones((1, 1, 1, 1))
    # Samples at 0.5 and 1.5 of a constant map: the first gets the gradient.
    _, d_data, _ = run(np.ones((1, 1, 3, 3)), box, one, **given)
    assert d_data[0, 0].tolist() == [[0.25, 0.25, 0], [0.25, 0.25, 0], [0, 0, 0]]
    # Samples outside are 0: larger than a negative map, and without a gradient.
    out, d_data, d_rois = run(-np.ones((1, 1, 3, 3)), box - [0, 8, 0, 0, 0], one, **given)
    assert out.item() == 0 and not d_data.any() and not d_rois.any()
    # NaN samples are ignored; only NaN ones are the lowest number, as in ROIPool.
    data = np.ones((1, 1, 3, 3))
    data[0, 0, 0, 0] = np.nan
    data[0, 0, 2, 2] = 5
    out, d_data, _ = run(data, box, one, **given)
    assert out.item() == 2 and np.isfinite(d_data).all()
    lowest = np.finfo("float64").min
    for value in (np.nan, lowest):  # none is above the lowest number
        out, d_data, _ = run(np.full((1, 1, 3, 3), value), box, one, **given)
        assert out.item() == lowest and not d_data.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_ways_to_call(dtype):
    """Blocks, symbols, arrays of mx.np, and each form of rois give the same bytes and gradients."""
    boxes = np.array([[1, 2, 9, 8], [0, 0, 17, 12], [-3, -3, 5, 5], [8, 2, 12, 9]], "float32")
    rois = np.hstack([[[0], [0], [1], [1]], boxes]).astype("float32")
    data = feature_map(5, dtype)
    given: dict[str, Any] = {"pooled_size": (2, 3), "spatial_scale": 0.5}
    out, d_data, d_rois = run(data, rois, **given)
    given = {**given, "mode": "max", "rois_grad": True}
    slope = mx.nd.array(np.random.RandomState(1).randn(*out.shape), dtype=dtype)
    x, r, flat = (mx.nd.array(array, dtype=array.dtype) for array in (data, rois, boxes))
    counts, block = mx.nd.array([2, 2], dtype="int32"), gluon_roi.ROIAlign(**given)
    block.hybridize(static_alloc=True, static_shape=True)
    symbol = align_symbols(mx.sym.var("x"), mx.sym.var("r"), **given)
    executor = symbol.bind(mx.cpu(), {"x": x, "r": r}, grad_req="null")
    calls = [
        (lambda: block(x, r), r),
        (lambda: align(x, flat, rois_num=counts, **given), flat),
        (lambda: align(x, flat.reshape((2, 2, 4)), **given), flat),
        (lambda: align(x, gluon_roi.rois.from_list([flat[:2], flat[2:]]), **given), flat),
        (lambda: align(x.as_np_ndarray(), r.as_np_ndarray(), **given).as_nd_ndarray(), r),
    ]
    assert executor.forward()[0].asnumpy().tobytes() == out.tobytes()
    for call, boxes_given in calls:
        for array in (x, boxes_given):
            array.attach_grad("add")
        for _ in range(2):
            with autograd.record():
                same = call()
            same.backward(slope)
        assert same.asnumpy().tobytes() == out.tobytes()
        assert x.grad.asnumpy().tobytes() == (d_data + d_data).tobytes()
        wanted = 2 * d_rois[:, -boxes_given.shape[1] :]
        np.testing.assert_array_equal(boxes_given.grad.asnumpy(), wanted)


def test_refused():
    with pytest.raises(
        mx.MXNetError, match="ROIAlign: argument mode: expected .*avg.*, got 'mean'"
    ):
        align(mx.nd.ones((1, 1, 3, 3)), mx.nd.zeros((1, 5)), 1, 1.0, mode="mean")
    with pytest.raises(ValueError, match="ROIAlign: mode is 'mean', expected 'avg' or 'max'"):
        reference.roi_align(np.ones((1, 1, 3, 3)), np.zeros((1, 5)), 1, 1.0, mode="mean")


def _symbol(**arguments):
    names = map(mx.sym.var, ("data", "rois"))
    return align_symbols(*names, (2, 3), 0.3, mode="max", name="align", **arguments)


@pytest.mark.parametrize("aligned", [False, True])
def test_onnx(aligned, tmp_path):
    data, rois = feature_map(3), all_rois(0.3)
    path = tmp_path / "model.onnx"
    symbol = _symbol(sampling_ratio=2, aligned=aligned)
    gluon_roi.onnx.export(symbol, [data.shape, rois.shape], path, dynamic=[(0, 2, 3), (0,)])
    given = {"sampling_ratio": 2, "aligned": aligned, "mode": "max"}
    expected = align(mx.nd.array(data), mx.nd.array(rois), (2, 3), 0.3, **given)
    assert_near(run_onnx(path, data, rois)[0], expected.asnumpy(), 5e-5)


def test_onnx_of_adaptive_samples(tmp_path):
    with pytest.raises(NotImplementedError, match="node align .* above 0 with mode=max, got -1"):
        gluon_roi.onnx.export(_symbol(), [(1, 2, 5, 5), (3, 5)], tmp_path / "model.onnx")


@pytest.mark.parametrize("mode, pyramids", [("avg", 1), ("max", 0)])
def test_a_sum_is_no_pyramid(mode, pyramids):
    """optimize() joins sums of means alone, because PyramidROIAlign has no maxima."""
    rois = mx.sym.var("rois")
    pooled = [
        align_symbols(mx.sym.var(f"map{n}"), rois * (n + 1.5), 2, 0.5, mode=mode) for n in range(2)
    ]
    used = gluon_roi.count(gluon_roi.optimize(mx.sym.add_n(*pooled)))
    assert used["_gluon_roi_PyramidROIAlign"] == pyramids
    assert used["_gluon_roi_ROIAlign"] == 2 - 2 * pyramids
