# SPDX-License-Identifier: Apache-2.0
"""DeformablePSROIPool with offsets: values, gradients, MXNet's own, guards, odd offsets."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from operators.deformable_ps_roi_pool import by_mxnet
from support.cases import (
    PRECISION,
    all_rois,
    assert_agrees,
    assert_near,
    feature_map,
    for_mxnet,
    row_id,
)

import gluon_roi
from gluon_roi import reference

DTYPES = ("float32", "float64", "float16")
#: (output channels, classes, pooled size, further arguments)
CASES: tuple[tuple[int, int, tuple[int, int], dict], ...] = (
    (3, 1, (2, 3), {}),
    (6, 3, (3, 3), {"part_size": (2, 1)}),
    (6, 2, (3, 2), {"group_size": (1, 2), "part_size": (3, 4), "sample_per_part": 1}),
    (20, 1, (3, 3), {"group_size": 1, "part_size": 1, "sample_per_part": 2}),
    (34, 2, (2, 2), {"group_size": (2, 1)}),
)
cases = pytest.mark.parametrize("case", CASES, ids=row_id)
pool = gluon_roi.nd.DeformablePSROIPool


def inputs(case, dtype, scale):
    """(data, rois, trans, keyword arguments), NumPy arrays."""
    dim, classes, pooled, more = case
    pair = {k: v if isinstance(v, tuple) else (v, v) for k, v in more.items() if "size" in k}
    group, part = pair.get("group_size", pooled), pair.get("part_size", pooled)
    data = feature_map(dim * group[0] * group[1], dtype)
    rois = all_rois(scale, "float64" if dtype == "float64" else "float32")[::2]
    trans = np.random.RandomState(7).randn(len(rois), 2 * classes, *part).astype(dtype)
    arguments = {"pooled_size": pooled, "spatial_scale": scale, "trans_std": 0.1, **more}
    return data, rois, trans, arguments


def run(function, arrays, d_out=None, grad_req="write"):
    """Output and gradients of function(data, rois, trans)."""
    given = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
    for array in given:
        array.attach_grad(grad_req)
    with autograd.record():
        out = function(*given)
    slope = np.random.RandomState(1).randn(*out.shape) if d_out is None else d_out
    out.backward(mx.nd.array(slope, dtype=out.dtype))
    return [out.asnumpy(), *(array.grad.asnumpy() for array in given)]


@pytest.mark.parametrize("dtype", DTYPES)
@cases
def test_reference(case, dtype):
    data, rois, trans, arguments = inputs(case, dtype, 0.3)
    out, d_data, d_rois, d_trans = run(lambda *a: pool(*a, **arguments), (data, rois, trans))
    precision = PRECISION[dtype]
    exact = {**arguments, "trans": trans, "geometry": precision.geometry}
    expected = reference.deformable_ps_roi_pool(data, rois, **exact)
    assert out.dtype == d_trans.dtype == data.dtype
    assert_near(out, expected, precision.forward)
    slope = np.random.RandomState(1).randn(*out.shape).astype(dtype)
    wanted = reference.deformable_ps_roi_pool_backward(slope, data, rois, **exact)
    for actual, gradient in zip((d_data, d_trans), wanted):
        assert_near(actual, gradient, precision.backward * max(1, np.abs(gradient).max()))
    assert (d_rois == 0).all()


@pytest.mark.parametrize("scale", (1.0, 1 / 16, 0.3))
@pytest.mark.parametrize(
    "dim, classes, pooled, more",
    [
        (3, 1, 3, {}),
        (6, 3, 7, {"group_size": 3}),
        (6, 2, 7, {"part_size": 3, "sample_per_part": 2}),
        (17, 1, 2, {"group_size": 1, "part_size": 1}),
        (4, 1, 21, {"group_size": 3, "part_size": 7}),
    ],
)
def test_mxnet(dim, classes, pooled, more, scale):
    """Forward, and the gradients of data and trans."""
    data = feature_map(dim * more.get("group_size", pooled) ** 2)
    rois = for_mxnet(all_rois(scale))
    part = more.get("part_size", pooled)
    trans = np.random.RandomState(7).randn(len(rois), 2 * classes, part, part).astype("float32")
    more = {**more, "trans_std": 0.1}
    ours = run(lambda x, r, t: pool(x, r, t, pooled, scale, **more), (data, rois, trans))

    def theirs_of(*arrays):
        return by_mxnet(arrays[0], arrays[1], (pooled, pooled), scale, arrays[2], **more)

    theirs = run(theirs_of, (data, rois, trans))
    terms = run(theirs_of, (data, rois, trans), np.ones(ours[0].shape))
    assert_agrees(ours[0], theirs[0], data)
    assert_agrees(ours[1], theirs[1], terms[1], 2e-6)
    # Sums of differences that cancel, times the width of the box.
    length = np.maximum(rois[:, 3:] - rois[:, 1:3] + 1, 0.1).max(axis=1) * scale
    size = (0.1 * length * np.abs(data).max() * pooled**2 * dim)[:, None, None, None]
    np.testing.assert_array_less(np.abs(ours[3] - theirs[3]) / size, 2e-6)


def test_parts_of_many_bins_are_exact():
    """MXNet rounds p / P to float32 first: bin 11 of 22 in 2 parts is in the first for some P."""
    pooled, part = 47, 47
    trans = np.zeros((1, 2, part, part), "float32")
    trans[0, 0] = np.arange(part)[None, :] * 10
    data, rois = mx.nd.ones((1, 1, 60, 60)), mx.nd.array([[0, 5, 5, 6, 6]])
    more: dict[str, Any] = {"group_size": 1, "part_size": part, "trans_std": 0.1}
    out = pool(data, rois, mx.nd.array(trans), pooled, 1.0, **more)
    assert out.shape == (1, 1, pooled, pooled)
    exact = reference.deformable_ps_roi_pool(
        data.asnumpy(), rois.asnumpy(), pooled, 1.0, trans=trans, geometry=np.float32, **more
    )
    np.testing.assert_allclose(out.asnumpy(), exact, 1e-6)


@cases
def test_numeric_gradient_of_trans(case):
    """Central differences, one direction at a time, in float64, on a surface with few kinks."""
    data, rois, trans, arguments = inputs(case, "float64", 0.3)
    rois = rois[rois[:, 0] >= 0]
    trans = trans[: len(rois)]
    y, x = np.mgrid[: data.shape[2], : data.shape[3]]
    slopes = np.random.RandomState(3).randn(2, *data.shape[:2], 1, 1)
    data = slopes[0] * x + slopes[1] * y + x * y / 9
    d_out = np.random.RandomState(4).randn(len(rois), case[0], *case[2])
    d_trans = run(lambda *a: pool(*a, **arguments), (data, rois, trans), d_out)[3]
    step = 1e-7
    for seed in range(5):
        direction = np.random.RandomState(seed).randn(*trans.shape)
        ends = [
            run(lambda *a: pool(*a, **arguments), (data, rois, trans + sign * step * direction))[0]
            for sign in (1, -1)
        ]
        moved = (ends[0] - ends[1]) / (2 * step)
        numeric = (moved * d_out).sum(axis=(1, 2, 3))
        analytic = (d_trans * direction).sum(axis=(1, 2, 3))
        # A sample that crosses the border of the map changes the count.
        smooth = np.abs(ends[0] - ends[1]).max(axis=(1, 2, 3)) < 1e-4
        assert smooth.mean() > 0.9
        np.testing.assert_allclose(numeric[smooth], analytic[smooth], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinite_offsets(value, dtype):
    """NaN in the bins of that part and class, and nowhere else; no gradient from there."""
    data, rois, trans, arguments = inputs((6, 3, (4, 4), {"part_size": 2}), dtype, 1.0)
    rois, trans = rois[1:4], trans[1:4]
    spoiled = trans.copy()
    spoiled[1, 3, 0, 1] = value  # y of class 1: output channels 2 and 3
    good = run(lambda *a: pool(*a, **arguments), (data, rois, trans))
    bad = run(lambda *a: pool(*a, **arguments), (data, rois, spoiled))
    hole = np.zeros(good[0].shape, bool)
    hole[1, 2:4, 0:2, 2:4] = True
    np.testing.assert_array_equal(np.isnan(bad[0]), hole)
    np.testing.assert_array_equal(bad[0][~hole], good[0][~hole])
    assert np.isfinite(bad[1]).all()
    changed = bad[3] != good[3]
    assert (bad[3][1, 2:4, 0, 1] == 0).all()
    changed[1, 2:4, 0, 1] = False
    assert not changed.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_enormous_offsets_and_boxes(dtype):
    """Far off the map there are no samples: 0, and no gradient; in bounded time."""
    data, rois, trans, arguments = inputs((3, 1, (2, 3), {}), dtype, 1.0)
    huge = [[0, -1e20, -1e20, 1e20, 1e20], [1, 1e9, 0, 2e9, 9], [0, 3, 3, 9, 9], [0, 3, 3, 9, 9]]
    trans = trans[:4]
    trans[2] = 6e4
    trans[3] = -6e4
    rois = np.array(huge, rois.dtype)
    out, d_data, _, d_trans = run(lambda *a: pool(*a, **arguments), (data, rois, trans))
    assert (out[1:] == 0).all() and (d_trans[1:] == 0).all()
    assert np.isfinite(out).all() and np.isfinite(d_data).all()


@pytest.mark.parametrize("dtype, trans_std", [("float32", 3e38), ("float64", 1.7e308)])
def test_enormous_trans_std(dtype, trans_std):
    """Where nothing moves, gradients are finite: infinity times 0 would be NaN."""
    x = mx.nd.array(feature_map(18), dtype=dtype)
    rois = mx.nd.array([[0, 1, 2, 30, 40], [0, 100, 100, 140, 140]])
    trans = mx.nd.zeros((2, 2, 3, 3), dtype=dtype)
    for array in (x, trans):
        array.attach_grad()
    with autograd.record():
        out = gluon_roi.nd.DeformablePSROIPool(x, rois, trans, 3, 0.3, trans_std=trans_std)
    out.backward()
    assert np.isfinite(out.asnumpy()).all() and np.isfinite(x.grad.asnumpy()).all()
    d_trans = trans.grad.asnumpy()
    assert not np.isnan(d_trans).any() and (d_trans[1] == 0).all()  # off the map


def test_padding_rows_and_unusable_boxes():
    data, rois, trans, arguments = inputs((3, 1, (2, 3), {}), "float32", 1.0)
    rois, trans = rois[1:5].copy(), trans[:4]
    rois[1, 0] = -1
    rois[2, 3] = np.nan
    out, d_data, _, d_trans = run(lambda *a: pool(*a, **arguments), (data, rois, trans))
    assert (out[1] == 0).all() and np.isnan(out[2]).all() and np.isfinite(out[[0, 3]]).all()
    assert (d_trans[1:3] == 0).all() and (d_trans[[0, 3]] != 0).any()
    assert np.isfinite(d_data).all()


def test_left_out_or_none():
    """Without trans, with None, and with zeros: the same bytes."""
    data, rois, trans, arguments = inputs((3, 1, (2, 3), {}), "float32", 1.0)
    x, r = mx.nd.array(data), mx.nd.array(rois)
    block = gluon_roi.DeformablePSROIPool(**arguments)
    zeros = mx.nd.zeros(trans.shape)
    expected = pool(x, r, zeros, **arguments).asnumpy()
    for out in (
        pool(x, r, (2, 3), 1.0),
        pool(x, r, None, (2, 3), 1.0),
        pool(data=x, rois=r, pooled_size=(2, 3), spatial_scale=1.0),
        block(x, r),
        block(x, r, zeros),
        pool(x, r, mx.nd.array(trans), (2, 3), 1.0),  # trans_std is 0
    ):
        np.testing.assert_array_equal(out.asnumpy(), expected)


class Network(gluon.HybridBlock):
    """The sum of many calls that share maps and offsets."""

    def __init__(self, users):
        super().__init__()
        self.users = users

    def hybrid_forward(self, F, x, rois, trans):
        function = F.gluon_roi.DeformablePSROIPool
        calls = [function(x, rois, trans, 3, 0.3, trans_std=0.1) for _ in range(self.users)]
        return F.add_n(*calls)


@pytest.mark.parametrize("flags", (None, {}, {"static_alloc": True}), ids=str)
def test_many_users(flags):
    """data and trans have guards: 'add' adds, and so do many users of one array."""
    data, rois, trans, _ = inputs((2, 1, (3, 3), {}), "float32", 0.3)
    single = run(Network(1), (data, rois, trans))
    for users in (1, 9):
        for grad_req in ("write", "add"):
            net = Network(users)
            if flags is not None:
                net.hybridize(**flags)
            arrays = [mx.nd.array(array) for array in (data, rois, trans)]
            for array in arrays:
                array.attach_grad(grad_req)
            slope = mx.nd.array(np.random.RandomState(1).randn(*single[0].shape))
            for _ in range(2):
                with autograd.record():
                    out = net(*arrays)
                out.backward(slope)
            times = users * (2 if grad_req == "add" else 1)
            for array, expected in zip(arrays, single[1:]):
                gradient = array.grad.asnumpy()
                np.testing.assert_allclose(gradient, times * expected, rtol=1e-4, atol=1e-3)


def test_export_and_shapes(tmp_path):
    """Shape inference needs trans no further than its rank; a file of the graph gives the same."""
    x, rois, trans = (mx.sym.var(name, dtype="float32") for name in ("x", "rois", "trans"))
    symbol = gluon_roi.sym.DeformablePSROIPool(x, rois, trans, 3, 0.3, trans_std=0.1)
    assert symbol.list_arguments() == ["x", "rois", "trans"]
    known = {"x": (2, 18, 13, 18), "rois": (4, 5)}
    assert symbol.infer_shape(**known, trans=(4, 2, 3, 3))[1] == [(4, 2, 3, 3)]
    assert symbol.infer_shape_partial(**known)[1] == [(4, 2, 3, 3)]
    assert symbol.infer_shape_partial()[1] == [(0, 0, 3, 3)]
    symbol.save(str(tmp_path / "net.json"))
    net = gluon.SymbolBlock.imports(str(tmp_path / "net.json"), ["x", "rois", "trans"])
    data, boxes, offsets, _ = inputs((2, 1, (3, 3), {}), "float32", 0.3)
    arrays = [mx.nd.array(array) for array in (data, boxes, offsets)]
    expected = pool(arrays[0], arrays[1], arrays[2], 3, 0.3, trans_std=0.1).asnumpy()
    np.testing.assert_array_equal(net(*arrays).asnumpy(), expected)
    given = [array.as_np_ndarray() for array in arrays]
    out = mx.npx.gluon_roi.DeformablePSROIPool(*given, 3, 0.3, trans_std=0.1)
    assert isinstance(out, mx.np.ndarray)
    np.testing.assert_array_equal(out.asnumpy(), expected)


@pytest.mark.parametrize(
    "more",
    [
        {"trans_std": 0.1},
        {"trans_std": 0.1, "part_size": 3, "sample_per_part": 4},
        {"no_trans": True, "sample_per_part": 2},
        {"no_trans": True, "trans_std": 0.1},
    ],
    ids=row_id,
)
def test_optimize(more):
    """A node of MXNet's operator becomes ours, and gives the same."""
    names = ("x", "rois", "trans")[: 2 if more.get("no_trans") else 3]
    symbol = mx.sym.contrib.DeformablePSROIPooling(
        *map(mx.sym.var, names),
        spatial_scale=0.3,
        output_dim=2,
        group_size=3,
        pooled_size=3,
        name="pool",
        **more,
    )
    switched = gluon_roi.optimize(symbol)
    assert "_gluon_roi_DeformablePSROIPool" in switched.tojson()
    assert "_contrib_DeformablePSROIPooling" not in switched.tojson()
    assert switched.list_arguments() == list(names)
    data = feature_map(18)
    rois = for_mxnet(all_rois(0.3))
    trans = np.random.RandomState(7).randn(len(rois), 2, 3, 3)
    arrays = [mx.nd.array(array) for array in (data, rois, trans)][: len(names)]
    results = []
    for one in (symbol, switched):
        gradients = [array.zeros_like() for array in arrays]
        executor = one.bind(mx.cpu(), arrays, gradients)
        out = executor.forward(is_train=True)[0]
        executor.backward(mx.nd.array(np.random.RandomState(1).randn(*out.shape)))
        results.append([array.asnumpy() for array in (out, *gradients)])
    for theirs, ours in zip(*results):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())


#: Shape and type of trans for 4 rois, 6 output channels and 3 x 3 parts, what the message says.
WRONG = (
    ((2, 2, 3, 3), "float32", "trans has shape (2, 2, 3, 3), expected (4, 2 * classes, 3, 3)"),
    ((4, 2, 3, 2), "float32", "trans has shape (4, 2, 3, 2), expected (4, 2 * classes, 3, 3)"),
    ((4, 2, 3), "float32", "trans has shape (4, 2, 3), expected (4, 2 * classes, 3, 3)"),
    (
        (4, 3, 3, 3),
        "float32",
        "trans has 3 channels, expected an even number: x and y for each class",
    ),
    ((4, 8, 3, 3), "float32", "trans has 8 channels, which is 4 classes, expected a number that"),
    ((4, 2, 3, 3), "float64", "trans has dtype float64, expected float32 as data"),
)


@pytest.mark.parametrize("shape, dtype, message", WRONG)
def test_wrong_trans(shape, dtype, message):
    x, rois = mx.nd.ones((1, 54, 9, 9)), mx.nd.zeros((4, 5))
    with pytest.raises(mx.MXNetError) as error:
        pool(x, rois, mx.nd.zeros(shape, dtype=dtype), 3, 1.0).wait_to_read()
    assert str(error.value).startswith(f"DeformablePSROIPool: {message}")
    assert len(str(error.value).splitlines()) == 1


def test_wrong_kind_of_trans():
    x, rois = mx.nd.ones((1, 54, 9, 9)), mx.nd.zeros((4, 5))
    with pytest.raises(TypeError, match="argument trans: expected a .*NDArray, got numpy.ndarray"):
        pool(x, rois, np.zeros((4, 2, 3, 3)), 3, 1.0)
    for bad, message in (
        ({"sample_per_part": 0}, "argument sample_per_part: expected an int from 1 to 16777216"),
        ({"trans_std": float("nan")}, "argument trans_std: expected a finite number, got 'nan'"),
        ({"part_size": 0}, "argument part_size: expected a positive int or"),
    ):
        with pytest.raises(mx.MXNetError, match=f"^DeformablePSROIPool: {message}"):
            pool(x, rois, 3, 1.0, **bad).wait_to_read()
