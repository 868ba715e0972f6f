# SPDX-License-Identifier: Apache-2.0
"""DeformableROIAlign with offset and mask: values, gradients, forms of its inputs, odd offsets.

tests/ops/test_published_vectors.py has mmcv's numbers.
"""

from __future__ import annotations

from functools import partial
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
from testing import c_api

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
    rois = all_rois(scale, "float64" if dtype == "float64" else "float32")[::2].copy()
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


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("sampling_ratio", [0, 3])
def test_adjoint(aligned, sampling_ratio):
    """<op(x, m), g> is <x, d_x> and <m, d_m>: the output is linear in data, and in mask."""
    channels, pooled, scale = 5, (3, 2), 0.3
    case = channels, pooled, "both", {"aligned": aligned, "sampling_ratio": sampling_ratio}
    arrays, arguments = inputs(case, "float64", scale)
    out, gradients = run(lambda **a: align(**a, **arguments), arrays)
    left = (out * np.random.RandomState(1).randn(*out.shape)).sum()
    for name in ("data", "mask"):
        right = (arrays[name] * gradients[name]).sum()
        assert left == pytest.approx(right, rel=1e-11, abs=1e-11), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_roi_forms(dtype):
    """(N, R, 4), (K, 4) with rois_num, lists and float16 rois: the bytes of (K, 5), all gradients.

    float16 holds these boxes exactly.
    """
    boxes = np.array([[1, 2, 9, 8], [0, 0, 17, 12], [-3, -3, 5.5, 5], [8, 2, 12, 9.25]])
    rng, given = np.random.RandomState(7), {"pooled_size": (2, 3), "spatial_scale": 0.9}
    given["rois_grad"] = True
    like = {
        "data": feature_map(3, dtype),
        "offset": rng.randn(4, 2, 2, 3).astype(dtype),
        "mask": rng.rand(4, 1, 2, 3).astype(dtype),
    }
    rows = np.hstack([[[0], [0], [1], [1]], boxes]).astype("float32")
    out, gradients = run(lambda **a: align(**a, **given), {**like, "rois": rows})
    flat = boxes.astype("float32")
    counts = [mx.nd.array([2, 2], dtype=name) for name in ("int32", "int64", "float32")]
    lists = gluon_roi.rois.from_list([mx.nd.array(flat[:2]), mx.nd.array(flat[2:])])
    forms: list[tuple[np.ndarray, dict]] = [
        (flat.reshape(2, 2, 4), {}),
        *((flat, {"rois_num": count}) for count in counts),
        (lists.asnumpy(), {}),
        (rows.astype("float16"), {}),
    ]
    for rois, more in forms:
        function = partial(align, **given, **more)
        same, found = run(function, {**like, "rois": rois})
        assert same.tobytes() == out.tobytes()
        for name in like:
            assert found[name].tobytes() == gradients[name].tobytes(), name
        wanted = gradients["rois"][:, -rois.shape[-1] :].reshape(rois.shape)
        np.testing.assert_array_equal(found["rois"], wanted.astype(rois.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_a_box(dtype):
    """Padding rows are 0 and rows of NaN boxes NaN; no gradient of theirs is other than 0."""
    arrays, arguments = inputs(CASES[0], dtype, 0.3)
    arrays["rois"] = arrays["rois"][:8].copy()
    arrays["offset"], arrays["mask"] = arrays["offset"][:8].copy(), arrays["mask"][:8].copy()
    arrays["rois"][::2, 0] = np.resize([-1, -7], 4)
    arrays["rois"][1, 3], arrays["rois"][3, 2] = np.nan, np.inf
    arrays["offset"][::4], arrays["mask"][::4] = np.nan, np.inf
    out, gradients = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays)
    assert (out[::2] == 0).all() and np.isnan(out[[1, 3]]).all()
    for name in ("offset", "mask", "rois"):
        assert not gradients[name][[0, 1, 2, 3, 4, 6]].any() and gradients[name][5].any()
    alone = {name: array[[5, 7]] if name != "data" else array for name, array in arrays.items()}
    slope = np.random.RandomState(1).randn(*out.shape)[[5, 7]]
    kept, found = run(lambda **a: align(**a, **arguments, rois_grad=True), alone, slope)
    np.testing.assert_array_equal(kept, out[[5, 7]])
    np.testing.assert_array_equal(found["data"], gradients["data"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_are_added(dtype):
    """grad_req='add' of each input, over two calls; and 'null' of the others."""
    arrays, arguments = inputs(CASES[1], dtype, 0.3)
    _, expected = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays)
    slope = np.random.RandomState(1).randn(len(arrays["rois"]), 17, 3, 2)
    for added in arrays:
        given = {name: mx.nd.array(array, dtype=array.dtype) for name, array in arrays.items()}
        given[added].attach_grad("add")
        for _ in range(2):
            with autograd.record():
                out = align(**given, **arguments, rois_grad=True)
            out.backward(mx.nd.array(slope, dtype=dtype))
        twice = expected[added] + expected[added]
        np.testing.assert_array_equal(given[added].grad.asnumpy(), twice, err_msg=added)


@pytest.mark.parametrize("given", [("offset",), ("mask",), ("offset", "mask")], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_c_interface(dtype, given):
    """The bytes of gluon_roi.nd; the gradients of all inputs but data may be left out."""
    arrays, arguments = inputs(CASES[0], dtype, 0.3)
    names = ("data", "rois", "offset", "mask")
    arrays = {name: arrays[name] for name in names[:2] + given}
    expected, wanted = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays)
    library = c_api.Library(gluon_roi.library.PATH)
    p = library.params("deformable_roi_align", (2, 3), 0.3, gamma=0.3, aligned=1, rois_grad=1)
    tensors = c_api.tensors(*(arrays.get(name) for name in names))
    out, device = np.full(expected.shape, 99, dtype), c_api.Device(c_api.CPU)
    library.forward("deformable_roi_align", p, tensors, out, device)
    assert out.tobytes() == expected.tobytes()
    slope = np.random.RandomState(1).randn(*out.shape).astype(dtype)
    for left_out in (None, *names[1:]):
        found = {name: np.full_like(arrays[name], 99) for name in arrays if name != left_out}
        gradients = [found.get(name) for name in names]
        library.backward("deformable_roi_align", p, tensors, slope, gradients, device)
        for name, gradient in found.items():
            assert gradient.tobytes() == wanted[name].tobytes(), (name, left_out)


@pytest.mark.parametrize("hybridize", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_block(hybridize):
    """Every way to give a block its optional inputs, with arrays of mx.nd and of mx.np."""
    data, rois = mx.nd.array(feature_map(2)), mx.nd.array([[0, 1, 1, 9, 8]])
    offset, mask = mx.nd.ones((1, 2, 2, 2)), mx.nd.full((1, 1, 2, 2), 0.5)
    for inputs_given in ((), (offset,), (offset, mask)):
        block = gluon_roi.DeformableROIAlign(2, 0.5, gamma=0.2)
        if hybridize is not None:
            block.hybridize(**hybridize)
        expected = align(data, rois, *inputs_given, 2, 0.5, gamma=0.2).asnumpy()
        for _ in range(2):
            np.testing.assert_array_equal(block(data, rois, *inputs_given).asnumpy(), expected)
        flat, count = rois[:, 1:], mx.nd.array([1, 0], dtype="int32")
        given = dict(zip(("offset", "mask"), inputs_given), rois_num=count)
        np.testing.assert_array_equal(
            align(data, flat, pooled_size=2, spatial_scale=0.5, gamma=0.2, **given).asnumpy(),
            expected,
        )


def test_numpy_arrays():
    """mx.np arrays give the bytes and gradients of mx.nd's, and are returned."""
    arrays, arguments = inputs(CASES[0], "float32", 0.3)
    expected, wanted = run(lambda **a: align(**a, **arguments, rois_grad=True), arrays)
    mx.npx.set_np()
    try:
        given = {name: mx.np.array(array, dtype=array.dtype) for name, array in arrays.items()}
        for array in given.values():
            array.attach_grad()
        with autograd.record():
            out = mx.npx.gluon_roi.DeformableROIAlign(**given, **arguments, rois_grad=True)
        out.backward(mx.np.array(np.random.RandomState(1).randn(*out.shape), dtype="float32"))
        assert type(out) is mx.np.ndarray
        np.testing.assert_array_equal(out.asnumpy(), expected)
        for name, array in given.items():
            np.testing.assert_array_equal(array.grad.asnumpy(), wanted[name])
    finally:
        mx.npx.reset_np()


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


@pytest.mark.parametrize("gamma", [1e30, -1e39, 1e300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_enormous_gamma(dtype, gamma):
    """An offset of 0 is no shift, and each other one leads off the map."""
    arrays, arguments = inputs(CASES[3], dtype, 0.3)
    arguments["gamma"] = gamma
    arrays["offset"] = np.sign(arrays["offset"])
    arrays["offset"][::2] = 0
    out, gradients = run(lambda **a: align(**a, **arguments), arrays)
    exact = {**arrays, **arguments, "geometry": PRECISION[dtype].geometry}
    assert_near(out, reference.deformable_roi_align(**exact), PRECISION[dtype].forward)
    plain = align(
        *(mx.nd.array(arrays[name], dtype=arrays[name].dtype) for name in ("data", "rois")),
        **arguments,
    )
    np.testing.assert_allclose(out[::2], plain.asnumpy()[::2], PRECISION[dtype].forward, 1e-7)
    assert not out[1::2].any() and not np.isnan(gradients["offset"]).any()


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
