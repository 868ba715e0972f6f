# SPDX-License-Identifier: Apache-2.0
"""DeformableROIAlign with offset and mask: values, gradients, mmcv's numbers, odd offsets."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.cases import (
    PRECISION,
    all_rois,
    assert_near,
    feature_map,
    row_id,
)

import gluon_roi
from gluon_roi import reference

DTYPES = ("float32", "float64", "float16")
align: Any = gluon_roi.nd.DeformableROIAlign
#: (channels, pooled size, which inputs are given, further arguments)
CASES: tuple[tuple[int, tuple[int, int], str, dict], ...] = (
    (3, (2, 3), "both", {}),
    (17, (3, 2), "both", {"aligned": False}),
    (5, (2, 2), "offset", {"sampling_ratio": 2}),
    (33, (1, 1), "offset", {"aligned": False, "sampling_ratio": 1, "gamma": -0.4}),
    (4, (3, 3), "mask", {"sampling_ratio": 3}),
)
cases = pytest.mark.parametrize("case", CASES, ids=row_id)


def inputs(case, dtype, scale):
    """(arrays by name, keyword arguments), NumPy arrays."""
    channels, pooled, given, more = case
    rng = np.random.RandomState(7)
    rois = all_rois(scale, "float64" if dtype == "float64" else "float32")[::2]
    arrays = {"data": feature_map(channels, dtype), "rois": rois}
    if given != "mask":
        arrays["offset"] = rng.randn(len(rois), 2, *pooled).astype(dtype)
    if given != "offset":
        arrays["mask"] = rng.uniform(-0.5, 1.5, (len(rois), 1, *pooled)).astype(dtype)
    arguments = {"pooled_size": pooled, "spatial_scale": scale, "gamma": 0.3, **more}
    return arrays, arguments


def run(function: Any, arrays, d_out=None, grad_req="write"):
    """The output, and the gradients by name, of function(**arrays)."""
    given = {name: mx.nd.array(array, dtype=array.dtype) for name, array in arrays.items()}
    for array in given.values():
        array.attach_grad(grad_req)
    with autograd.record():
        out = function(**given)
    slope = np.random.RandomState(1).randn(*out.shape) if d_out is None else d_out
    out.backward(mx.nd.array(slope, dtype=out.dtype))
    return out.asnumpy(), {name: array.grad.asnumpy() for name, array in given.items()}


@pytest.mark.parametrize("scale", (1.0, 0.3))
@pytest.mark.parametrize("dtype", DTYPES)
@cases
def test_reference(case, dtype, scale):
    arrays, arguments = inputs(case, dtype, scale)
    out, gradients = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays)
    precision = PRECISION[dtype]
    exact = {**arrays, **arguments, "geometry": precision.geometry}
    assert_near(out, reference.deformable_roi_align(**exact), precision.forward)
    slope = np.random.RandomState(1).randn(*out.shape).astype(dtype)
    wanted = reference.deformable_roi_align_backward(slope, **exact)
    for name, gradient in zip(("data", "rois", "offset", "mask"), wanted):
        if name in arrays:
            assert gradients[name].dtype == arrays[name].dtype
            tolerance = precision.backward * max(1, np.abs(gradient).max())
            assert_near(gradients[name], gradient, tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("more", [{}, {"aligned": False, "sampling_ratio": 2}], ids=row_id)
def test_without_offset_and_mask(more, dtype):
    """The bytes of ROIAlign, gradients included."""
    arrays, _ = inputs((17, (2, 3), "both", {}), dtype, 0.3)
    arrays = {name: arrays[name] for name in ("data", "rois")}
    given: dict[str, Any] = {"pooled_size": (2, 3), "spatial_scale": 0.3, "rois_grad": True}
    more = {"aligned": True, **more}
    out, gradients = run(lambda **a: align(**a, **given, **more), arrays)
    wanted = run(lambda **a: gluon_roi.nd.ROIAlign(**a, **given, **more), arrays)
    assert out.tobytes() == wanted[0].tobytes()
    for name in arrays:
        assert gradients[name].tobytes() == wanted[1][name].tobytes(), name


def test_zero_offsets_and_a_mask_of_ones_change_nothing():
    arrays, arguments = inputs(CASES[0], "float64", 0.3)
    arrays["offset"][:], arrays["mask"][:] = 0, 1
    out, gradients = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays)
    plain = {name: arrays[name] for name in ("data", "rois")}
    wanted, expected = run(lambda **a: align(**a, **arguments, rois_grad=True), plain)
    np.testing.assert_allclose(out, wanted, 1e-13, 1e-13)
    for name in plain:
        np.testing.assert_allclose(gradients[name], expected[name], 1e-11, 1e-11)


#: Inputs and expected results of mmcv's tests of DeformRoIPool (Apache-2.0): map,
#: last coordinate of the box, output of 2 x 2 bins of 2 samples, and the gradient of its sum.
MMCV = (
    ([[[1, 2], [3, 4]]], 1, [[[1, 1.25], [1.5, 1.75]]], [[[3.0625, 0.4375], [0.4375, 0.0625]]]),
    (
        [[[1, 2], [3, 4]], [[4, 3], [2, 1]]],
        1,
        [[[1, 1.25], [1.5, 1.75]], [[4, 3.75], [3.5, 3.25]]],
        [[[3.0625, 0.4375], [0.4375, 0.0625]]] * 2,
    ),
    (
        [[[1, 2, 5, 6], [3, 4, 7, 8], [9, 10, 13, 14], [11, 12, 15, 16]]],
        3,
        [[[1.9375, 4.75], [7.5625, 10.375]]],
        [
            [
                [0.47265625, 0.4296875, 0.4296875, 0.04296875],
                [0.4296875, 0.390625, 0.390625, 0.0390625],
                [0.4296875, 0.390625, 0.390625, 0.0390625],
                [0.04296875, 0.0390625, 0.0390625, 0.00390625],
            ]
        ],
    ),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_zeros", [False, True])
@pytest.mark.parametrize("values, last, bins, d_data", MMCV)
def test_mmcv(values, last, bins, d_data, with_zeros, dtype):
    arrays = {"data": np.array([values], dtype), "rois": np.array([[0, 0, 0, last, last]], dtype)}
    if with_zeros:
        arrays["offset"], arrays["mask"] = (
            np.zeros((1, 2, 2, 2), dtype),
            np.ones((1, 1, 2, 2), dtype),
        )
    ones = np.ones((1, len(bins), 2, 2))
    out, gradients = run(
        lambda **a: align(**a, pooled_size=2, spatial_scale=1.0, sampling_ratio=2), arrays, ones
    )
    tolerance = 1e-3 if dtype == "float16" else 1e-6
    assert_near(out[0], bins, tolerance)
    assert_near(gradients["data"][0], d_data, tolerance)


@pytest.mark.parametrize("aligned", [True, False])
def test_differences(aligned):
    """Gradients of all inputs against central differences in float64."""
    rng = np.random.RandomState(3)
    arrays = {
        "data": rng.randn(1, 2, 7, 9),
        "rois": np.array([[0, 1.13, 0.71, 6.37, 5.29], [0, 2.11, 1.41, 2.6, 3.83]]),
        "offset": rng.uniform(-1, 1, (2, 2, 2, 3)),
        "mask": rng.uniform(0.5, 1.5, (2, 1, 2, 3)),
    }
    given = {"pooled_size": (2, 3), "spatial_scale": 1.0, "sampling_ratio": 2, "aligned": aligned}
    slope = rng.randn(2, 2, 2, 3)

    def loss(changed):
        made = {name: mx.nd.array(array, dtype="float64") for name, array in changed.items()}
        return float((align(**made, **given).asnumpy() * slope).sum())

    _, gradients = run(lambda **a: align(**a, **given, rois_grad=True), arrays, slope)
    step = 1e-6
    for name, array in arrays.items():
        for place in np.ndindex(array.shape):
            if name == "rois" and place[1] == 0:
                continue
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * step
                ends.append(loss({**arrays, name: moved}))
            difference = (ends[0] - ends[1]) / (2 * step)
            assert gradients[name][place] == pytest.approx(difference, rel=1e-6, abs=1e-7), (
                name,
                place,
            )


@pytest.mark.parametrize("dtype", DTYPES)
def test_unusable_offsets(dtype):
    """NaN bins without a gradient; the others are as without them."""
    arrays, arguments = inputs(CASES[0], dtype, 0.3)
    whole, gradients = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays)
    arrays["offset"][4, 0, 0, 0], arrays["offset"][5, 1, 1, 2] = np.nan, np.inf
    slope = np.random.RandomState(1).randn(*whole.shape)
    out, found = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays, slope)
    bad = np.zeros(out.shape, bool)
    bad[4, :, 0, 0] = bad[5, :, 1, 2] = True
    assert np.isnan(out[bad]).all()
    np.testing.assert_array_equal(out[~bad], whole[~bad])
    for name in ("data", "rois", "offset", "mask"):
        assert np.isfinite(found[name]).all(), name
    for row, p, q in ((4, 0, 0), (5, 1, 2)):
        assert (found["offset"][row, :, p, q] == 0).all() and found["mask"][row, 0, p, q] == 0
    others = np.ones(len(out), bool)
    others[[4, 5]] = False
    np.testing.assert_array_equal(found["rois"][others], gradients["rois"][others])


@pytest.mark.parametrize("size", [1e3, 1e9, 1e30, 3e38])
def test_enormous_offsets(size):
    """Bins off the map are 0, in bounded time."""
    arrays, arguments = inputs(CASES[0], "float32", 0.3)
    arrays["offset"][:] = np.sign(arrays["offset"]) * size
    arrays["rois"][1] = [0, -1e20, -1e20, 1e20, 1e20]
    out, gradients = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays)
    exact = {**arrays, **arguments, "geometry": np.float32}
    assert_near(out, reference.deformable_roi_align(**exact), 2e-6)
    assert all(not np.isnan(gradient).any() for gradient in gradients.values())


def test_cells_of_weight_0_are_not_read():
    """Samples that an offset moves onto cells exactly read no neighbours."""
    data = np.full((1, 1, 5, 5), np.nan)
    data[0, 0, 2, 3] = 7
    arrays = {
        "data": data,
        "rois": np.array([[0, 1.5, 1.5, 2.5, 2.5]]),
        "offset": np.array([[[[1.5]], [[0.5]]]]),
    }
    given = {"pooled_size": 1, "spatial_scale": 1.0, "sampling_ratio": 1, "gamma": 1.0}
    out, gradients = run(lambda **a: align(**a, **given), arrays)
    assert out.item() == 7
    assert np.isfinite(gradients["data"]).all()


@pytest.mark.parametrize("hybridize", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_networks(hybridize):
    """A head that predicts offsets and masks trains; gradients of both uses are added."""

    class Head(gluon.HybridBlock):
        def __init__(self):
            super().__init__()
            self.align = gluon_roi.DeformableROIAlign(3, 0.5)
            self.predict = gluon.nn.Conv2D(3, 1, weight_initializer=mx.init.Normal(0.1))

        def hybrid_forward(self, F, x, rois):
            predicted = self.predict(self.align(x, rois))
            offset = F.slice_axis(predicted, axis=1, begin=0, end=2)
            mask = F.sigmoid(F.slice_axis(predicted, axis=1, begin=2, end=3))
            return F.gluon_roi.DeformableROIAlign(x, rois, offset, mask, 3, 0.5)

    mx.random.seed(0)
    head = Head()
    head.initialize()
    if hybridize is not None:
        head.hybridize(**hybridize)
    data, rois = mx.nd.array(feature_map(4)), mx.nd.array(all_rois(0.5)[::3])
    data.attach_grad("add")
    results = []
    for _ in range(2):
        with autograd.record():
            out = head(data, rois)
        out.backward()
        results.append(data.grad.asnumpy())
    np.testing.assert_allclose(results[1], 2 * results[0], 1e-5, 1e-5)
    weights = head.predict.weight.grad().asnumpy()
    assert np.isfinite(weights).all() and (weights != 0).all()


def test_positional_arguments():
    data, rois = mx.nd.array(feature_map(2)), mx.nd.array([[0, 1, 1, 9, 8]])
    offset, mask = mx.nd.ones((1, 2, 2, 2)), mx.nd.full((1, 1, 2, 2), 0.5)
    plain = align(data, rois, 2, 0.5).asnumpy()
    np.testing.assert_array_equal(align(data, rois, None, None, 2, 0.5).asnumpy(), plain)
    np.testing.assert_array_equal(align(data, rois, None, 2, 0.5).asnumpy(), plain)
    moved = align(data, rois, offset, 2, 0.5).asnumpy()
    np.testing.assert_array_equal(align(data, rois, 2, 0.5, offset=offset).asnumpy(), moved)
    both = align(data, rois, offset, mask, 2, 0.5).asnumpy()
    np.testing.assert_allclose(both, moved / 2, 1e-6)
    symbol = gluon_roi.sym.DeformableROIAlign(
        *(mx.sym.var(name) for name in ("data", "rois", "offset")), 2, 0.5, mask=mx.sym.var("mask")
    )
    executor = symbol.bind(mx.cpu(), dict(zip(symbol.list_arguments(), (data, rois, offset, mask))))
    np.testing.assert_array_equal(executor.forward()[0].asnumpy(), both)


@pytest.mark.parametrize(
    "name, shape, message",
    [
        (
            "offset",
            (3, 2, 2, 3),
            r"offset has shape \(3, 2, 2, 3\), expected \(2, 2, 2, 3\): x and y",
        ),
        ("offset", (2, 1, 2, 3), r"offset has shape \(2, 1, 2, 3\), expected \(2, 2, 2, 3\)"),
        ("offset", (2, 2, 6), r"offset has shape \(2, 2, 6\), expected \(2, 2, 2, 3\)|dimensions"),
        ("mask", (2, 2, 2, 3), r"mask has shape \(2, 2, 2, 3\), expected \(2, 1, 2, 3\): a factor"),
        ("mask", (2, 1, 3, 3), r"mask has shape \(2, 1, 3, 3\), expected \(2, 1, 2, 3\)"),
    ],
)
def test_wrong_shapes(name, shape, message):
    data, rois = mx.nd.ones((1, 2, 5, 5)), mx.nd.zeros((2, 5))
    with pytest.raises(mx.MXNetError, match=f"DeformableROIAlign: {message}"):
        align(data, rois, pooled_size=(2, 3), spatial_scale=1.0, **{name: mx.nd.ones(shape)})
    wrong: Any = {name: np.ones(shape)}
    with pytest.raises(ValueError, match=f"{name} has shape"):
        reference.deformable_roi_align(data, rois, (2, 3), 1.0, **wrong)
