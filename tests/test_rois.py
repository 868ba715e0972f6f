# SPDX-License-Identifier: Apache-2.0
"""gluon_roi.rois: every layout of boxes becomes the same rows."""

import doctest

import mxnet as mx
import numpy as np
import pytest

import gluon_roi
from gluon_roi import rois

BOXES = np.arange(16.0).reshape(4, 4)
ROWS = np.hstack([[[0], [0], [1], [1]], BOXES])

CALLS = {
    "from_list": lambda boxes: rois.from_list([boxes[:2], boxes[2:]]),
    "from_counts": lambda boxes: rois.from_counts(boxes, [2, 2]),
    "from_batch": lambda boxes: rois.from_batch(boxes.reshape((2, 2, 4))),
}


@pytest.fixture(params=CALLS)
def call(request):
    return CALLS[request.param]


def test_docstrings():
    results = doctest.testmod(rois)
    assert results.attempted > 0 and results.failed == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
@pytest.mark.parametrize("make", [np.array, mx.nd.array, mx.np.array], ids=["numpy", "nd", "np"])
def test_rows(call, make, dtype):
    rows = call(make(BOXES, dtype=dtype))
    assert type(rows) is (mx.np.ndarray if make is mx.np.array else mx.nd.NDArray)
    assert rows.dtype == (np.float64 if dtype == "float64" else np.float32)
    np.testing.assert_array_equal(rows.asnumpy(), ROWS)


@pytest.mark.parametrize("make", [np.array, mx.nd.array, mx.np.array], ids=["numpy", "nd", "np"])
@pytest.mark.parametrize("np_semantics", [False, True])
def test_every_function_takes_every_kind_of_array(make, np_semantics):
    boxes = make(BOXES, dtype="float32")
    with mx.util.np_shape(np_semantics), mx.util.np_array(np_semantics):
        corners = rois.from_xywh(boxes)
        levels = rois.assign_levels(boxes)
        rois.check(boxes, (16, 16))
    assert type(corners) is type(boxes) and isinstance(levels, np.ndarray)
    values = corners if make is np.array else corners.asnumpy()
    np.testing.assert_array_equal(values, np.hstack([BOXES[:, :2], BOXES[:, :2] + BOXES[:, 2:]]))


ROTATED = np.arange(20.0).reshape(4, 5)


@pytest.mark.parametrize("make", [np.array, mx.nd.array, mx.np.array], ids=["numpy", "nd", "np"])
def test_rotated_boxes(make):
    boxes, rows = make(ROTATED, dtype="float32"), np.hstack([ROWS[:, :1], ROTATED])
    for found in (
        rois.from_list([boxes[:2], boxes[2:]]),
        rois.from_batch(boxes.reshape((2, 2, 5))),
    ):
        np.testing.assert_array_equal(found.asnumpy(), rows)
    without = rois.from_list([[], boxes, np.zeros((0, 5))])
    np.testing.assert_array_equal(without.asnumpy(), np.hstack([np.ones((4, 1)), ROTATED]))
    with mx.util.np_shape():
        assert rois.from_list([np.zeros((0, 5)), []]).shape == (0, 6)
        assert rois.from_batch(np.zeros((2, 0, 5))).shape == (0, 6)


@pytest.mark.parametrize("boxes", [BOXES, ROTATED], ids=["upright", "rotated"])
@pytest.mark.parametrize("make", [np.array, mx.nd.array, mx.np.array], ids=["numpy", "nd", "np"])
def test_boxes_that_are_not_valid_become_padding_rows(make, boxes):
    valid = make([[1, 0], [0, 1]])
    rows = rois.from_batch(make(boxes.reshape(2, 2, -1)), valid).asnumpy()
    np.testing.assert_array_equal(rows, np.hstack([[[0], [-1], [-1], [1]], boxes]))
    scores = make([[0.5, -1], [-1, 0.25]])
    assert (rois.from_batch(make(boxes.reshape(2, 2, -1)), scores >= 0).asnumpy() == rows).all()


def test_levels_of_rotated_rows_are_those_of_upright_boxes_of_their_size():
    size = np.random.RandomState(0).uniform(1, 900, (50, 2))
    upright = np.hstack([0 * size, size])
    rotated = np.hstack([np.zeros((50, 1)), size, size, np.full((50, 1), 33.0)])
    for make in (np.array, mx.nd.array, mx.np.array):
        found = rois.assign_levels(make(rotated, dtype="float64"))
        assert found.tolist() == rois.assign_levels(upright).tolist()
    assert rois.assign_levels([[0, 5, 5, np.nan, 900, 0], [0, 5, 5, -9, 900, 0]]).tolist() == [2, 2]


@pytest.mark.parametrize("make", [mx.nd.array, mx.np.array], ids=["nd", "np"])
def test_gradient_reaches_the_boxes(call, make):
    boxes = make(BOXES)
    boxes.attach_grad()
    weights = make(np.random.RandomState(0).randn(4, 5))
    with mx.autograd.record():
        loss = (call(boxes) * weights).sum()
    loss.backward()
    np.testing.assert_array_equal(boxes.grad.asnumpy(), weights.asnumpy()[:, 1:])


def test_images_without_boxes():
    rows = rois.from_list([np.zeros((0, 4)), BOXES, []])
    np.testing.assert_array_equal(rows.asnumpy()[:, 0], [1] * 4)
    rows = rois.from_counts(BOXES, mx.nd.array([0, 3, 0, 1], dtype="int32"))
    np.testing.assert_array_equal(rows.asnumpy()[:, 0], [1, 1, 1, 3])


def test_an_empty_array_of_mxnet_is_an_image_without_boxes():
    empty = mx.nd.array(BOXES)[0:0]
    np.testing.assert_array_equal(rois.from_list([empty, BOXES]).asnumpy()[:, 0], [1] * 4)


def test_mixed_list_keeps_the_larger_type():
    rows = rois.from_list([mx.nd.array(BOXES, dtype="float32"), BOXES])
    assert rows.dtype == np.float64 and rows.shape == (8, 5)


NOTHING = {
    "from_list": lambda: rois.from_list([np.zeros((0, 4))]),
    "from_counts": lambda: rois.from_counts(np.zeros((0, 4)), [0, 0]),
    "from_batch": lambda: rois.from_batch(np.zeros((2, 0, 4))),
}


@pytest.mark.parametrize("function", NOTHING)
def test_no_box_at_all(function):
    with mx.util.np_shape():
        assert NOTHING[function]().shape == (0, 5)
    with pytest.raises(ValueError, match=f"^{function}: got no boxes, expected at least one"):
        NOTHING[function]()


def empty(shape, dtype):
    """An empty array on a context of its own."""
    with mx.util.np_shape():
        return mx.nd.zeros(shape, mx.cpu(1), dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32"])
def test_results_without_boxes_keep_type_and_context(dtype):
    expected = np.float64 if dtype == "float64" else np.float32
    calls = {
        "from_list": lambda: rois.from_list([[], empty((0, 4), dtype)]),
        "from_counts": lambda: rois.from_counts(empty((0, 4), dtype), [0]),
        "from_batch": lambda: rois.from_batch(empty((2, 0, 4), dtype)),
    }
    for call in calls.values():
        with mx.util.np_shape():
            rows = call()
        assert (rows.shape, rows.context, rows.dtype) == ((0, 5), mx.cpu(1), expected)
    for shape in ((0, 4), (2, 0, 4), (0, 5)):
        corners = rois.from_xywh(empty(shape, dtype))
        assert isinstance(corners, mx.nd.NDArray)
        assert (corners.shape, corners.context, corners.dtype) == (shape, mx.cpu(1), expected)


def test_the_context_is_that_of_the_first_ndarray():
    """Even if it has no boxes."""
    rows = rois.from_list([empty((0, 4), "float32"), BOXES])
    assert rows.context == mx.cpu(1)


def test_empty_arrays_of_mxnet_have_no_level_and_pass_the_check():
    for shape in ((0, 4), (2, 0, 4), (0, 5)):
        boxes = empty(shape, "float32")
        assert rois.assign_levels(boxes).shape == (shape[:-1] if shape[-1] == 4 else (0,))
        rois.check(boxes, (480, 640))


@pytest.mark.parametrize(
    "wrong, message",
    [
        (
            lambda: rois.from_list([BOXES, BOXES[:, :3]]),
            r"from_list: boxes\[1\] has shape \(4, 3\)",
        ),
        (lambda: rois.from_list([[0, 0, 1, 1]]), r"from_list: boxes\[0\] has shape \(4,\), exp"),
        (lambda: rois.from_counts(ROWS, [4]), r"from_counts: rois has shape \(4, 5\), expected"),
        (lambda: rois.from_counts(BOXES, 4), r"from_counts: rois_num has shape \(\), expected"),
        (lambda: rois.from_counts(BOXES, [1, 2]), r"from_counts: rois_num is \[1, 2\], expected"),
        (lambda: rois.from_counts(BOXES, [5, -1]), r"from_counts: rois_num is \[5, -1\], expected"),
        (lambda: rois.from_counts(BOXES, [3.5, 0.5]), r"from_counts: rois_num is \[3.5, 0.5\]"),
        (lambda: rois.from_batch(BOXES), r"from_batch: boxes has shape \(4, 4\), expected"),
        (
            lambda: rois.from_batch(BOXES[None], [1, 1, 0]),
            r"from_batch: valid has shape \(3,\), expected \(1, 4\)",
        ),
        (
            lambda: rois.from_list([BOXES, ROTATED]),
            r"from_list: boxes\[1\] has shape \(4, 5\), expected \(L, 4\), or \(L, 5\) if all",
        ),
        (lambda: rois.assign_levels(BOXES[:, :3]), r"assign_levels: rois has shape \(4, 3\), exp"),
    ],
)
def test_refused(wrong, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        wrong()


def test_levels():
    side = np.array([1, 55, 56, 111, 112, 223, 224, 447, 448, 5000])
    boxes = np.stack([0 * side, 0 * side, side, side], axis=1)
    expected = [2, 2, 2, 2, 3, 3, 4, 4, 5, 5]
    assert rois.assign_levels(boxes).tolist() == expected
    assert rois.assign_levels(rois.from_counts(boxes, [10])).tolist() == expected
    assert rois.assign_levels(boxes.reshape(2, 5, 4)).tolist() == [expected[:5], expected[5:]]
    assert rois.assign_levels([[9, 9, 2, 2]]).tolist() == [2]
    assert rois.assign_levels(boxes, k_min=3, k_max=4).tolist() == np.clip(expected, 3, 4).tolist()


def test_levels_are_those_of_the_operator():
    """At sizes where the level changes, above and below by less than its 1e-6, and of odd boxes."""
    sides = [
        edge * factor for edge in (112, 224, 448) for factor in (1, 1 - 5e-7, 1 - 2e-6, 1 + 2e-6)
    ]
    sides += [223.9999, 1e-30, 1e30]
    odd = [[np.nan, 0, 9, 9], [0, 0, np.inf, np.inf], [0, 0, np.inf, 0], [9, 9, 0, 0]]
    boxes = np.array([[0, 0, side, side] for side in sides] + odd)
    maps = [mx.nd.full((1, 1, 1, 1), level, dtype="float64") for level in (2, 3, 4, 5)]
    scales = [2.0**-level for level in (2, 3, 4, 5)]
    rows = mx.nd.array(np.insert(boxes, 0, 0, axis=1), dtype="float64")
    pooled = gluon_roi.nd.PyramidROIAlign(maps, rows, 1, scales, sampling_ratio=1).asnumpy()
    usable = np.isfinite(boxes).all(axis=1) & (boxes[:, 2] < 1e30)
    levels = rois.assign_levels(boxes)
    reads = pooled.ravel()[usable] > 0
    assert levels[usable][reads].tolist() == pooled.ravel()[usable][reads].tolist()
    assert levels[sides.index(223.9999)] == 4
    assert levels[len(sides) :].tolist() == [2, 5, 2, 2]


def sizes_near_thresholds():
    """Rows of boxes of float64, whose sizes are above or below a level's only in that type."""
    rng = np.random.RandomState(0)
    sides = rng.choice([112.0, 224.0, 448.0], 2000) * (1 - 1e-6) + rng.uniform(-2e-5, 2e-5, 2000)
    first = rng.uniform(0, 300, (2000, 2))
    return np.hstack([np.zeros((2000, 1)), first, first + sides[:, None]])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_levels_do_not_depend_on_the_type_of_the_maps(dtype):
    rows = sizes_near_thresholds()
    maps = [mx.nd.full((1, 1, 800 >> n, 800 >> n), n, dtype=dtype) for n in range(4)]
    scales = [2.0**-level for level in (2, 3, 4, 5)]
    boxes = mx.nd.array(rows, dtype="float64")
    pooled = gluon_roi.nd.PyramidROIAlign(maps, boxes, 1, scales, sampling_ratio=1).asnumpy()
    assert (pooled.ravel() + 2).tolist() == rois.assign_levels(rows).tolist()


@pytest.mark.parametrize("make", [np.array, mx.nd.array], ids=["numpy", "mxnet"])
@pytest.mark.parametrize("shape", [(4, 4), (2, 2, 4), (4, 5)])
def test_corners_from_widths_and_heights(make, shape):
    given = (ROWS if shape[1] == 5 else BOXES).reshape(shape)
    expected = given.copy()
    expected[..., -2:] += given[..., -4:-2]
    corners = rois.from_xywh(make(given))
    assert isinstance(corners, type(make(given)))
    np.testing.assert_array_equal(
        np.asarray(getattr(corners, "asnumpy", lambda: corners)()), expected
    )


GOOD = np.array([[0, 10, 20, 300, 200], [1, 0, 0, 640, 480], [-1, np.nan, -1, 0.5, 9000]])


@pytest.mark.parametrize("shape", [(480, 640), (480, 640, 3), (2, 3, 480, 640)])
@pytest.mark.parametrize("form", [GOOD, mx.nd.array(GOOD), GOOD[:2, 1:], GOOD[None, :2, 1:]])
def test_usual_boxes_pass_the_check(form, shape):
    rois.check(form, shape, spatial_scale=1 / 16)


# name -> boxes, spatial_scale, message
SUSPICIOUS = {
    "normalised": ([[0, 0.1, 0.2, 0.5, 1]], None, "no coordinate is above 1: .* multiply x by 640"),
    "x, y, width, height": (
        [[0, 300, 200, 100, 50]],
        None,
        r"box \[300.* call gluon_roi.rois.from",
    ),
    "inverted": ([[0, 600, 400, 500, 50]], None, r"box \[600.* expected x1 <= x2 and y1 <= y2"),
    "another size": (
        [[0, 10, 20, 1200, 900]],
        None,
        "reach to x = 1200, y = 900, but the image has",
    ),
    "cells": ([[0, i, i, i + 9, i + 9] for i in range(9)], 1 / 16, "look like cells of the map"),
    "not finite": ([[0, np.inf, 20, 300, 200]], None, r"box \[inf, 20.0.* is not finite"),
    "a stride": ([[0, 10, 20, 300, 200]], 16, "spatial_scale is 16, expected .* such as 1 / 16"),
    "a score in front": (
        [[0.5, 10, 20, 300, 200]],
        None,
        "first column holds 0.5, expected a batch",
    ),
    "three columns": ([[10, 20, 300]], None, r"rois has shape \(1, 3\), expected"),
}


@pytest.mark.parametrize("case", SUSPICIOUS)
def test_another_form_of_boxes_is_named(case):
    boxes, scale, message = SUSPICIOUS[case]
    with pytest.raises(ValueError, match=f"^rois.check: .*{message}"):
        rois.check(np.array(boxes), (480, 640), scale)


def test_image_shape_of_another_length_is_rejected():
    with pytest.raises(ValueError, match=r"^rois.check: image_shape is \(480,\), expected"):
        rois.check(GOOD, (480,))
