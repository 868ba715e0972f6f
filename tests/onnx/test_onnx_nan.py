# SPDX-License-Identifier: Apache-2.0
"""NaN scores and classes in exported detectors, in every runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import gluon_roi

pytest.importorskip("onnx")

from testing.onnx_runtimes import check  # noqa: E402

S, NAN = mx.sym, np.nan
RUNTIMES = pytest.mark.parametrize("runtime", check.RUNTIMES)


def _found(runtime: str, symbol: Any, path: Path, *inputs: np.ndarray, **options: Any) -> Any:
    pytest.importorskip(runtime)
    gluon_roi.onnx.export(symbol, [value.shape for value in inputs], path, **options)
    return check.RUNTIMES[runtime](str(path), 1)(*inputs)[0]


def _boxes(number: int) -> np.ndarray:
    """Boxes side by side, each a quarter beyond the one before."""
    corner = np.arange(number)[:, None] * [6.0, 0.0]
    return np.hstack([corner, corner + 8])


# ---- box_nms -------------------------------------------------------------------------------------


@RUNTIMES
@pytest.mark.parametrize("valid_thresh", [0.0, 0.25, -1.0])
def test_suppression_of_rows_without_a_score(valid_thresh, runtime, tmp_path):
    rows = np.hstack(
        [np.zeros((6, 1)), [[0.5], [NAN], [0.75], [np.inf], [-np.inf], [0.3]], _boxes(6)]
    )
    rows = rows.astype("float32")
    attributes: dict[str, Any] = {
        "overlap_thresh": 0.9,
        "valid_thresh": valid_thresh,
        "id_index": 0,
    }
    symbol = S.contrib.box_nms(S.var("rows"), **attributes)
    found = _found(runtime, symbol, tmp_path / "model.onnx", rows)
    assert found[:, 1].tolist() == [np.inf, 0.75, 0.5, rows[5, 1], -1, -1]
    assert found[:4, 2].tolist() == [18, 12, 0, 30]
    expected = gluon_roi.nd.BoxNMS(mx.nd.array(rows), **attributes).asnumpy()
    np.testing.assert_array_equal(found, expected)


#: Classes, and which of six equal boxes with falling scores are kept.
CLASSES: dict[str, tuple[list, list]] = {
    "NaN": ([NAN, 0, NAN, 0, 1, NAN], [0, 1, 4]),
    "far apart": ([0, 2**31, -(2**31), 16777216, 0, -7e9], [0, 1, 3]),
    "infinite": ([np.inf, -np.inf, NAN, 3, 3, np.inf], [0, 3]),
    "fractions": ([0.9, -0.9, 0, 1.5, 1, -1], [0, 3, 5]),
}


@RUNTIMES
@pytest.mark.parametrize("name", CLASSES)
def test_suppression_within_any_class(name, runtime, tmp_path):
    classes, kept = CLASSES[name]
    scores = np.arange(6, 0, -1)[:, None] / 8
    rows = np.hstack([np.array(classes)[:, None], scores, np.tile([2, 3, 9, 8], (6, 1))])
    rows = rows.astype("float32")
    attributes: dict[str, Any] = {"id_index": 0, "background_id": -5}
    symbol = S.contrib.box_nms(S.var("rows"), **attributes)
    for is_dynamic in (False, True):
        found = _found(
            runtime, symbol, tmp_path / "model.onnx", rows, dynamic=[(0,) if is_dynamic else ()]
        )
        assert found[: len(kept), 1].tolist() == scores[kept, 0].tolist()
        assert (found[len(kept) :] == -1).all()
        expected = gluon_roi.nd.BoxNMS(mx.nd.array(rows), **attributes).asnumpy()
        np.testing.assert_array_equal(found, expected)


@RUNTIMES
def test_suppression_of_boxes_with_nan(runtime, tmp_path):
    """They overlap nothing."""
    boxes = np.tile([2.0, 3, 9, 8], (9, 1))
    for number in range(8):
        boxes[number, number % 4] = NAN
    rows = np.hstack([np.zeros((9, 1)), np.arange(9, 0, -1)[:, None] / 8, boxes]).astype("float32")
    symbol = S.contrib.box_nms(S.var("rows"), id_index=0)
    found = _found(runtime, symbol, tmp_path / "model.onnx", rows)
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_array_equal(gluon_roi.nd.BoxNMS(mx.nd.array(rows)).asnumpy(), rows)


# ---- Proposal ------------------------------------------------------------------------------------


@RUNTIMES
@pytest.mark.parametrize("iou_loss", [False, True])
def test_proposals_of_cells_with_nan(iou_loss, runtime, tmp_path):
    """A NaN score is the last of all; a box that NaN moves has the score -1."""
    random = np.random.RandomState(0)
    scores = (random.permutation(2 * 2 * 3 * 4) / 64).reshape(2, 2, 3, 4).astype("float32")
    moves = (random.randn(2, 4, 3, 4) * 0.2).astype("float32")
    scores[:, 1, 0, 0] = NAN
    scores[0, 1, 2, 3] = NAN
    moves[0, :, 1, 1] = NAN
    moves[1, 0, 1, 2] = NAN
    moves[1, 3, 2, 2] = NAN
    info = np.array([[48, 64, 1], [48, 64, 1]], "float32")
    attributes: dict[str, Any] = {
        "scales": (1,), "ratios": (1,), "rpn_post_nms_top_n": 12, "rpn_min_size": 2,
        "threshold": 0.9, "iou_loss": iou_loss, "output_score": True,
    }  # fmt: skip
    symbol = S.contrib.MultiProposal(S.var("cls"), S.var("box"), S.var("info"), **attributes)
    arrays = [mx.nd.array(value) for value in (scores, moves, info)]
    rois, given = gluon_roi.nd.Proposal(*arrays, **attributes)
    pytest.importorskip(runtime)
    path = tmp_path / "model.onnx"
    inputs = (scores, moves, info)
    gluon_roi.onnx.export(symbol, [value.shape for value in inputs], path)
    found, found_scores = check.RUNTIMES[runtime](str(path), 1)(*inputs)
    expected = rois.asnumpy()
    assert np.isnan(expected).any() and not np.isnan(expected[0]).any()
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_array_equal(found_scores, given.asnumpy())


# ---- MultiBoxDetection ---------------------------------------------------------------------------


@RUNTIMES
@pytest.mark.parametrize("nms_threshold", [0.5, -1])
def test_detections_of_nan_scores(nms_threshold, runtime, tmp_path):
    """A class whose score is NaN is none; a row of such classes alone is invalid."""
    scores = np.array(
        [[[0.1] * 6, [NAN, 0.3, NAN, 0.2, NAN, 0.9], [0.5, NAN, NAN, 0.6, 0.005, 0.9]]], "float32"
    )
    anchors = (_boxes(6) / 64)[None].astype("float32")
    moves = np.zeros((1, 24), "float32")
    attributes = {"nms_threshold": nms_threshold, "threshold": 0.01}
    symbol = S.contrib.MultiBoxDetection(*map(S.var, "abc"), **attributes)
    found = _found(runtime, symbol, tmp_path / "model.onnx", scores, moves, anchors)
    order = [3, 2, 0, 1] if nms_threshold > 0 else [0, 1, 2, 3]
    expected = np.array([[1, 0.5], [0, 0.3], [1, 0.6], [0, 0.9]], "float32")[order]
    assert found[0, :4, :2].tolist() == expected.tolist()
    assert (found[0, 4:] == -1).all()
    arrays = map(mx.nd.array, (scores, moves, anchors))
    theirs = mx.nd.contrib.MultiBoxDetection(*arrays, **attributes).asnumpy()
    np.testing.assert_allclose(found, theirs, atol=1e-6)


# ---- Comparisons ---------------------------------------------------------------------------------


@RUNTIMES
def test_comparisons_with_nan(runtime, tmp_path):
    """Only `not equal` is true of NaN, on each side, and of scalars."""
    x, y = S.var("x"), S.var("y")
    made = [x > y, x >= y, x < y, x <= y, x == y, x != y]
    made += [x > 1, x >= 1, x < 1, x <= 1, x == 1, x != 1]
    symbol = S.stack(*made, axis=0)
    values = np.array([NAN, -np.inf, 1, 2, np.inf], "float32")
    first, second = (side.ravel() for side in np.meshgrid(values, values))
    found = _found(runtime, symbol, tmp_path / "model.onnx", first, second)
    pairs = [(first, second), (first, np.float32(1))]
    expected = [
        test(left, right)
        for left, right in pairs
        for test in (np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal)
    ]
    np.testing.assert_array_equal(found, np.array(expected, "float32"))
