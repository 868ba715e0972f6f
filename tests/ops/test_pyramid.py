# SPDX-License-Identifier: Apache-2.0
"""PyramidROIAlign: bit for bit the ROIAlign of each box on its own map."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.cases import PRECISION, assert_near
from support.pyramids import SCALES, boxes, lists_of, pyramid

import gluon_roi
from gluon_roi import reference

DTYPES = ("float32", "float64", "float16")
align = gluon_roi.nd.PyramidROIAlign


def levels_of(rois, maps=4, size=224.0, level=4):
    """The map of each row, by the formula."""
    with np.errstate(all="ignore"):
        sides = np.maximum(rois[:, 3:].astype("float64") - rois[:, 1:3], 0)
        wanted = np.floor(level + np.log2(np.sqrt(sides.prod(axis=1)) / size + 1e-6))
    return np.nan_to_num(np.clip(wanted - 2, 0, maps - 1)).astype(int)


def run(function, maps, rois, d_out=None):
    """Output, gradients of the maps, gradient of rois."""
    x = [mx.nd.array(one, dtype=one.dtype) for one in maps]
    r = mx.nd.array(rois, dtype=rois.dtype)
    for array in (*x, r):
        array.attach_grad()
    with autograd.record():
        out = function(x, r)
    slope = np.random.RandomState(1).randn(*out.shape) if d_out is None else d_out
    out.backward(mx.nd.array(slope, dtype=out.dtype))
    return out.asnumpy(), [array.grad.asnumpy() for array in x], r.grad.asnumpy()


@pytest.mark.parametrize(
    "arguments", [{}, {"sampling_ratio": 2}, {"aligned": True}], ids=["defaults", "2", "aligned"]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_roi_align_of_each_level(dtype, arguments):
    """The same bytes, forward and backward, gradients of the boxes included."""
    maps, rois, arguments = pyramid(dtype), boxes(dtype), {**arguments, "rois_grad": True}
    out, d_maps, d_rois = run(lambda x, r: align(x, r, (2, 3), SCALES, **arguments), maps, rois)
    levels = levels_of(rois)
    assert set(levels) == {0, 1, 2, 3}
    slope = np.random.RandomState(1).randn(*out.shape)
    for level, scale in enumerate(SCALES):
        own = levels == level
        expected, (d_map,), d_own = run(
            lambda x, r, scale=scale: gluon_roi.nd.ROIAlign(x[0], r, (2, 3), scale, **arguments),
            maps[level : level + 1],
            rois[own],
            slope[own],
        )
        np.testing.assert_array_equal(out[own], expected)
        np.testing.assert_array_equal(d_maps[level], d_map)
        np.testing.assert_array_equal(d_rois[own], d_own)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reference(dtype):
    maps, rois = pyramid(dtype, 2), boxes(dtype)[::3]
    out, d_maps, d_rois = run(lambda x, r: align(x, r, 2, SCALES, rois_grad=True), maps, rois)
    precision = PRECISION[dtype]
    more: dict[str, Any] = {"geometry": precision.geometry}
    assert_near(out, reference.pyramid_roi_align(maps, rois, 2, SCALES, **more), precision.forward)
    slope = np.random.RandomState(1).randn(*out.shape).astype(dtype)
    wanted, d_boxes = reference.pyramid_roi_align_backward(slope, maps, rois, 2, SCALES, **more)
    for actual, expected in zip((*d_maps, d_rois), (*wanted, d_boxes)):
        assert_near(actual, expected, precision.backward * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("size, level", [(224.0, 4), (100.0, 4), (224.0, 3), (56.5, 2)])
@pytest.mark.parametrize("maps", (1, 2, 4))
def test_levels(maps, size, level):
    """Maps that hold their own number tell which one was read."""
    rng = np.random.RandomState(2)
    sides = np.exp(rng.uniform(0, np.log(2000), (200, 2)))
    rois = np.hstack([np.zeros((200, 3)), sides]).astype("float32")
    data = [mx.nd.full((1, 1, 3, 3), i) for i in range(maps)]
    rois[:, 1:] -= rois[:, [3, 4, 3, 4]] / 2  # around the corner of the map: nothing is outside
    arguments = {"canonical_size": size, "canonical_level": level}
    read = [mx.nd.ones((1, 1, 3, 3)) for _ in data]
    scales = SCALES[:maps]
    values = align(data, mx.nd.array(rois), 1, scales, 2, **arguments).asnumpy().ravel()
    weight = align(read, mx.nd.array(rois), 1, scales, 2, **arguments).asnumpy().ravel()
    inside = weight > 0.1
    numbers = (values[inside] / weight[inside]).round(5)
    np.testing.assert_array_equal(numbers, levels_of(rois[inside], maps, size, level))


def test_forms_of_rois():
    maps = [mx.nd.array(one) for one in pyramid(levels=2)]
    rng = np.random.RandomState(3)
    low = rng.uniform(0, 100, (2, 4, 2))
    batch = np.concatenate([low, low + rng.uniform(1, 900, (2, 4, 2))], axis=2).astype("float32")
    rows = np.hstack([np.repeat([0, 1], 4)[:, None], batch.reshape(8, 4)])
    expected = align(maps, mx.nd.array(rows), 2, SCALES[:2]).asnumpy()
    np.testing.assert_array_equal(
        align(maps, mx.nd.array(batch), 2, SCALES[:2]).asnumpy(), expected
    )
    counts = mx.nd.array([4, 4], dtype="int32")
    flat = mx.nd.array(batch.reshape(8, 4))
    out = align(maps, flat, 2, SCALES[:2], rois_num=counts).asnumpy()
    np.testing.assert_array_equal(out, expected)
    rows[3, 0] = 7
    with pytest.raises(mx.MXNetError, match="^PyramidROIAlign: rois row 3 has batch index 7"):
        align(maps, mx.nd.array(rows), 2, SCALES[:2]).wait_to_read()
    padded = align(maps, mx.nd.array(rows), 2, SCALES[:2], bad_index="padding").asnumpy()
    assert (padded[3] == 0).all()


class Network(gluon.HybridBlock):
    """The sum of many calls that share their maps."""

    def __init__(self, users):
        super().__init__()
        self.users = users

    def hybrid_forward(self, F, rois, *maps):
        calls = [F.gluon_roi.PyramidROIAlign(maps, rois, 2, SCALES, 2) for _ in range(self.users)]
        return F.add_n(*calls)


@pytest.mark.parametrize("flags", (None, {}, {"static_alloc": True}), ids=str)
def test_many_users(flags):
    """Every map has a guard of its own: 'add' adds, and so do many users."""
    maps, rois = pyramid(channels=2), boxes()[::4]
    rois = rois[np.isfinite(rois).all(axis=1)]
    _, single, _ = run(lambda x, r: align(x, r, 2, SCALES, 2), maps, rois)
    for users in (1, 9):
        for grad_req in ("write", "add"):
            net = Network(users)
            if flags is not None:
                net.hybridize(**flags)
            x = [mx.nd.array(one) for one in maps]
            for one in x:
                one.attach_grad(grad_req)
            slope = mx.nd.array(np.random.RandomState(1).randn(len(rois), 2, 2, 2))
            for _ in range(2):
                with autograd.record():
                    out = net(mx.nd.array(rois), *x)
                out.backward(slope)
            times = users * (2 if grad_req == "add" else 1)
            for one, expected in zip(x, single):
                np.testing.assert_allclose(one.grad.asnumpy(), times * expected, 1e-4, 1e-3)


@pytest.mark.parametrize("flags", (None, {}, {"static_alloc": True}), ids=str)
def test_block_takes_a_list(flags, tmp_path):
    maps, rois = [mx.nd.array(one) for one in pyramid()], mx.nd.array(boxes())
    block = gluon_roi.PyramidROIAlign(2, SCALES, sampling_ratio=2)
    expected = align(maps, rois, 2, SCALES, 2).asnumpy()
    if flags is not None:
        block.hybridize(**flags)
    np.testing.assert_array_equal(block(maps, rois).asnumpy(), expected)
    numpy_maps = [one.as_np_ndarray() for one in maps]
    out = mx.npx.gluon_roi.PyramidROIAlign(numpy_maps, rois.as_np_ndarray(), 2, SCALES, 2)
    assert isinstance(out, mx.np.ndarray)
    np.testing.assert_array_equal(out.asnumpy(), expected)
    names = [f"map{i}" for i in range(4)]
    variables = [mx.sym.var(name, dtype="float32") for name in (*names, "rois")]
    symbol = block(variables[:4], variables[4])
    assert symbol.list_arguments() == [*names, "rois"]
    symbol.save(str(tmp_path / "net.json"))
    net = gluon.SymbolBlock.imports(str(tmp_path / "net.json"), [*names, "rois"])
    np.testing.assert_array_equal(net(*maps, rois).asnumpy(), expected)


def test_shapes_in_part():
    variables = [mx.sym.var(name) for name in ("a", "b", "rois")]
    symbol = gluon_roi.sym.PyramidROIAlign(variables[:2], variables[2], 2, SCALES[:2])
    assert symbol.infer_shape(a=(1, 3, 8, 8), b=(1, 3, 5, 4), rois=(6, 5))[1] == [(6, 3, 2, 2)]
    assert symbol.infer_shape_partial(a=(1, 3, 8, 8))[1] == [(0, 3, 2, 2)]
    assert symbol.infer_shape_partial(rois=(6, 5))[1] == [(6, 0, 2, 2)]
    assert symbol.infer_shape_partial()[1] == [(0, 0, 2, 2)]


MAPS = [mx.nd.ones((2, 3, 64 // n, 64 // n)) for n in (1, 2, 4, 8)]
#: (data, spatial_scale, what the message says)
WRONG: tuple[tuple[list, Any, str], ...] = (
    (MAPS[:3], SCALES, "data has 3 maps, expected 4, one for each number in spatial_scale"),
    (MAPS, SCALES[:2], "data has 4 maps, expected 2, one for each number in spatial_scale"),
    (
        MAPS,
        0.25,
        "argument spatial_scale: expected a list of 1 to 8 numbers > 0, at most 1e30, got",
    ),
    (MAPS, SCALES[::-1], "argument spatial_scale: expected the finest map first, and each scale"),
    (
        MAPS[:2],
        (0.25, 0),
        "argument spatial_scale: expected a list of 1 to 8 numbers > 0, at most 1e30",
    ),
    (
        [],
        (),
        "argument spatial_scale: expected a list of 1 to 8 numbers > 0, at most 1e30, got '()'",
    ),
    (MAPS[:1] * 9, [0.5**i for i in range(9)], "argument spatial_scale: expected a list of 1 to 8"),
    (
        [MAPS[0], MAPS[1][:1]],
        SCALES[:2],
        "data 1 has shape (1, 3, 32, 32), expected the batch size of the first map, (2, 3, 64, 64)",
    ),
    (
        [MAPS[0], MAPS[1][:, :2]],
        SCALES[:2],
        "data 1 has shape (2, 2, 32, 32), expected the channels of the first map, (2, 3, 64, 64)",
    ),
    ([MAPS[0], MAPS[1][0]], SCALES[:2], "data 1 has shape (3, 32, 32), expected 4 dimensions"),
    (
        [MAPS[0], MAPS[1].astype("float16")],
        SCALES[:2],
        "data 1 has dtype float16, expected float32 as the first map",
    ),
)


@pytest.mark.parametrize("data, scales, message", WRONG)
def test_wrong_maps(data, scales, message):
    rois = mx.nd.array([[0, 0, 0, 60, 60]])
    with pytest.raises(mx.MXNetError) as error:
        align(data, rois, 7, scales).wait_to_read()
    assert str(error.value).startswith(f"PyramidROIAlign: {message}")
    assert len(str(error.value).splitlines()) == 1


def test_lists_and_arrays_are_not_exchanged():
    rois = mx.nd.array([[0, 0, 0, 60, 60]])
    with pytest.raises(TypeError, match="^PyramidROIAlign: argument data: expected a list of maps"):
        align(MAPS[0], rois, 7, SCALES)
    with pytest.raises(TypeError, match="^PyramidROIAlign: argument data1: expected a .*NDArray"):
        align([MAPS[0], 3], rois, 7, SCALES[:2])
    with pytest.raises(TypeError, match="^ROIAlign: argument data: expected an array of mx.nd or"):
        gluon_roi.nd.ROIAlign(MAPS, rois, 7, 0.25)
    for bad, message in (
        ({"canonical_size": 0}, "argument canonical_size: expected a number > 0, at most 1e30"),
        ({"canonical_level": 1.5}, "argument canonical_level: expected an int, got '1.5'"),
    ):
        with pytest.raises(mx.MXNetError, match=f"^PyramidROIAlign: {message}"):
            align(MAPS, rois, 7, SCALES, **bad).wait_to_read()


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_of_the_rois(dtype):
    """The maps run out of RoIs one after the other, and one has none."""
    maps, rois = pyramid(dtype), np.tile(boxes(dtype), (8, 1))
    levels = levels_of(rois)
    rois = np.random.RandomState(4).permutation(rois[levels != 2])
    assert np.bincount(levels_of(rois), minlength=4).min() == 0
    more = [np.concatenate([one, np.ones((160, *one.shape[1:]), dtype)]) for one in maps]
    out, d_maps, _ = run(lambda x, r: align(x, r, (2, 3), SCALES), maps, rois)
    expected, d_expected, _ = run(lambda x, r: align(x, r, (2, 3), SCALES), more, rois)
    assert out.tobytes() == expected.tobytes()
    for d_map, d_more in zip(d_maps, d_expected):
        assert d_map.tobytes() == d_more[:2].tobytes()
        assert not d_more[2:].any()


# ---- Lists of boxes for each map -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_given_levels(dtype):
    """The same bytes as by size; gradients of boxes in the rows of their lists."""
    maps, rois = pyramid(dtype), boxes(dtype)
    rois = rois[np.isfinite(rois).all(axis=1)]
    levels = levels_of(rois)
    more: dict[str, Any] = {"sampling_ratio": 2, "rois_grad": True}
    out, d_maps, d_rois = run(lambda x, r: align(x, r, (2, 3), SCALES, **more), maps, rois)
    more["assignment"] = "given"
    lists = lists_of(rois, levels)
    given, d_given, d_lists = run(lambda x, r: align(x, r, (2, 3), SCALES, **more), maps, lists)
    np.testing.assert_array_equal(given, out)
    for actual, expected in zip(d_given, d_maps):
        np.testing.assert_array_equal(actual, expected)
    d_lists = d_lists.reshape(4, -1, 5)
    np.testing.assert_array_equal(d_lists[levels, np.arange(len(rois))], d_rois)
    assert np.count_nonzero(d_lists) == np.count_nonzero(d_rois)


@pytest.mark.parametrize("form", ["rows", "images"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_lists(dtype, form):
    """Rows in several lists are sums, in the order of the maps; NaN in one of them is NaN."""
    maps, rois = pyramid(dtype), boxes(dtype)[::3][:24]
    lists = lists_of(rois, np.arange(24) % 6, 4)
    lists[24 + 5, 0], lists[72 + 5, 0], lists[5, 0] = 0, 1, 0
    lists[72 + 9], lists[24 + 8] = [1, 3, np.nan, 5, 9], [0, 3, 4, 50, np.inf]
    if form == "images":
        lists = np.nan_to_num(lists[:, 1:].reshape(8, 12, 4), nan=3, posinf=70)
    arguments: dict[str, Any] = {"assignment": "given", "sampling_ratio": 2}
    out, d_maps, d_lists = run(
        lambda x, r: align(x, r, (2, 3), SCALES, rois_grad=True, **arguments), maps, lists
    )
    precision = PRECISION[dtype]
    arguments["geometry"] = precision.geometry
    wanted = reference.pyramid_roi_align(maps, lists, (2, 3), SCALES, **arguments)
    # What each map gives is rounded to float16, and so is each sum.
    assert_near(out, wanted, precision.forward * (4 if dtype == "float16" else 1))
    assert np.isnan(wanted).any() == (form == "rows")
    slope = np.random.RandomState(1).randn(*out.shape).astype(dtype)
    d_wanted, d_boxes = reference.pyramid_roi_align_backward(
        slope, maps, lists, (2, 3), SCALES, **arguments
    )
    for actual, expected in zip((*d_maps, d_lists), (*d_wanted, d_boxes)):
        assert_near(actual, expected, precision.backward * max(1, np.abs(expected).max()))
    each = [
        gluon_roi.nd.ROIAlign(
            mx.nd.array(one, dtype=dtype), mx.nd.array(own, dtype=own.dtype), (2, 3), scale, 2
        )
        for one, own, scale in zip(maps, np.split(lists, 4), SCALES)
    ]
    if dtype != "float16":  # whose parts are rounded once more
        np.testing.assert_array_equal(out, (each[0] + each[1] + each[2] + each[3]).asnumpy())


LISTS_WRONG: dict[str, tuple[tuple, dict, str]] = {
    "odd rows": (
        (7, 5),
        {},
        r"rois has shape \(7, 5\), expected a list of boxes for each of the 2",
    ),
    "odd images": ((3, 4, 4), {}, r"rois has shape \(3, 4, 4\), expected \(4, R, 4\)"),
    "counts": ((4, 4), {"rois_num": (2, 2)}, "rois_num is given, expected none for several lists"),
    "name": ((4, 5), {"assignment": "level"}, "argument assignment: expected 'size' or 'given'"),
}


@pytest.mark.parametrize("name", LISTS_WRONG)
def test_wrong_lists(name):
    shape, more, words = LISTS_WRONG[name]
    maps = [mx.nd.array(one) for one in pyramid(levels=2)]
    arguments = {"assignment": "given", **more}
    if "rois_num" in arguments:
        arguments["rois_num"] = mx.nd.array(arguments["rois_num"], dtype="int32")
    with pytest.raises(mx.MXNetError, match=f"^PyramidROIAlign: {words}"):
        align(maps, mx.nd.zeros(shape), 2, SCALES[:2], **arguments).wait_to_read()
