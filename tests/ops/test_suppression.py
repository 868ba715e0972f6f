# SPDX-License-Identifier: Apache-2.0
"""BoxNMS and Proposal: MXNet's own, a plain loop, gradients, NaN, symbols, errors, C."""

from __future__ import annotations

import itertools
from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.suppressed import CALLS, NMS, PROPOSALS, SOFT, Suppressed
from support.turns import in_turn
from suppression import arrays_of, record_of

import gluon_roi
from gluon_roi import reference

box_nms: Any = gluon_roi.nd.BoxNMS
proposal: Any = gluon_roi.nd.Proposal
expected_proposals: Any = reference.proposal
DTYPES = ("float32", "float64", "float16")
#: The type in which boxes of each type are computed.
GEOMETRY = {"float16": "float32"}


# ---- Values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, dtype", in_turn(NMS, DTYPES, every=len(DTYPES)))
def test_box_nms_is_the_plain_loop(name, dtype, ctx):
    """The same rows, in the same order, and the record of them; rows are converted exactly.

    Scores that a soft method lowers differ by roundings of exp, far below that of float32.
    """
    call = CALLS[name]
    (data,) = arrays_of(call, dtype, ctx)
    geometry = GEOMETRY.get(dtype, dtype)
    out, record = reference.box_nms(data.asnumpy(), **call.parameters, geometry=geometry)
    got = box_nms(data, **call.parameters).asnumpy()
    if name in SOFT and dtype == "float64":
        np.testing.assert_allclose(got, out, 1e-14)
    else:
        np.testing.assert_array_equal(got, out.astype(dtype))
    got = record_of(data, **call.parameters)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, record)
    if name not in ("none", "nothing"):
        assert 0 < (record >= 0).mean() < 0.9


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PROPOSALS)
def test_proposal_is_the_plain_loop(name, dtype, ctx):
    call = CALLS[name]
    inputs = arrays_of(call, dtype, ctx)
    expected = expected_proposals(*inputs, **call.parameters, geometry=dtype)
    got = proposal(*inputs, **call.parameters, output_score=True)
    np.testing.assert_allclose(got[0].asnumpy(), expected[0], 2e-6, 1e-4)
    np.testing.assert_array_equal(got[1].asnumpy(), expected[1])
    alone = proposal(*inputs, **call.parameters)
    np.testing.assert_array_equal(alone.asnumpy(), got[0].asnumpy())


@pytest.mark.parametrize("name", PROPOSALS)
def test_proposals_of_float16(name, ctx):
    """Computed in float32, and rounded once."""
    call = CALLS[name]
    inputs = arrays_of(call, "float16", ctx)
    got = proposal(*inputs, **call.parameters, output_score=True)
    wide = [array.astype("float32") for array in inputs]
    for half, whole in zip(got, proposal(*wide, **call.parameters, output_score=True)):
        np.testing.assert_array_equal(half.asnumpy(), whole.asnumpy().astype("float16"))


def test_worked_numbers(ctx):
    rows = mx.nd.array([[0.5, 0, 0, 4, 4], [0.9, 0, 0, 4, 5], [0.8, 10, 0, 14, 4]], ctx=ctx)
    out = box_nms(rows, coord_start=1, score_index=0).asnumpy()
    np.testing.assert_array_equal(out, np.vstack([rows.asnumpy()[1:], np.full((1, 5), -1)]))
    scores = mx.nd.array([0, 0, 1, 0], ctx=ctx).reshape((1, 2, 1, 2))
    info = mx.nd.array([[16, 32, 1]], ctx=ctx)
    for place, move, expected in ((0, 0.5, [8, 0, 23, 15]), (2, np.log(2), [0, 0, 23, 15])):
        moves = mx.nd.zeros((1, 4, 1, 2), ctx=ctx)
        moves[0, place, 0, 0] = move
        out = proposal(scores, moves, info, scales=(1,), ratios=(1,), rpn_post_nms_top_n=1)
        assert out.asnumpy().round(4).tolist() == [[0, *expected]]


# ---- Rotated boxes -------------------------------------------------------------------------------


def test_rotated_worked_numbers(ctx):
    """A cross overlaps by 1 / 3; the same box may be written with another angle."""
    rows = mx.nd.array(
        [
            [0.5, 9, 9, 4, 2, 0],
            [0.9, 9, 9, 4, 2, 90],
            [0.8, 9, 9, 2, 4, -360],
            [0.4, 20, 9, 4, 2, 7],
        ],
        ctx=ctx,
    )
    more = {"score_index": 0, "coord_start": 1, "in_format": "rotated", "out_format": "rotated"}
    for threshold, kept in ((0.3, [1, 3]), (0.34, [1, 0, 3]), (1, [1, 2, 0, 3])):
        out, indices = box_nms(rows, threshold, return_indices=True, **more)
        assert [int(i) for i in indices.asnumpy().ravel() if i >= 0] == kept
        np.testing.assert_array_equal(out[: len(kept)].asnumpy(), rows.asnumpy()[kept])


def test_upright_boxes_with_an_angle(ctx):
    """Rotated boxes with the angles 0, 180 and, their sides exchanged, 90 are upright ones."""
    rng = np.random.RandomState(0)
    rows = np.zeros((300, 7))
    rows[:, 1] = rng.permutation(300) / 300
    rows[:, 2:4], rows[:, 4:6] = rng.randint(0, 60, (300, 2)), 2 * rng.randint(1, 12, (300, 2))
    rows[100:200, 6] = 180
    upright = mx.nd.array(rows[:, :6], ctx=ctx, dtype="float64")
    rows[200:, 4:6], rows[200:, 6] = rows[200:, [5, 4]], -90
    rotated = mx.nd.array(rows, ctx=ctx, dtype="float64")
    for threshold in (0.01, 0.3, 0.6):
        expected = record_of(upright, overlap_thresh=threshold, in_format="center")
        more = {"in_format": "rotated", "out_format": "rotated"}
        got = record_of(rotated, overlap_thresh=threshold, **more)
        np.testing.assert_array_equal(got, expected)
        assert 0.1 < (got >= 0).mean() < 0.99


# ---- Soft methods --------------------------------------------------------------------------------


def plain_loop(scores, overlaps, decay, min_score):
    """Bodla et al. 2017, figure 2: indices and scores."""
    scores, kept = np.array(scores, "float64"), []
    while scores.max() >= min_score:
        best = int(scores.argmax())
        kept.append((best, scores[best]))
        scores = scores * decay(overlaps[best])
        scores[[index for index, _ in kept]] = -1
    return kept


@pytest.mark.parametrize("form", ["center", "rotated"])
@pytest.mark.parametrize("method", ["linear", "gaussian"])
def test_soft_methods_are_the_papers(method, form, ctx):
    """Ties included: rows of equal scores, also of lowered ones, keep their order."""
    rng = np.random.RandomState(0)
    decay = {
        "linear": lambda overlap: np.where(overlap > np.float32(0.3), 1 - overlap, 1),
        "gaussian": lambda overlap: np.exp(-(overlap**2) / 0.4),
    }[method]
    for dtype in ("float64", "float32"):
        rows = np.round(4 * rng.uniform(10, 40, (80, 6 if form == "rotated" else 5))) / 4
        rows[:, 0], rows[:, 1:3] = rng.randint(1, 9, 80) / 8, 3 * rows[:, 1:3]
        rows[40:] = rows[:40]
        data = mx.nd.array(rows, ctx=ctx, dtype=dtype)
        boxes = data[:, 1:]
        overlaps = gluon_roi.nd.BoxIoU(
            boxes.astype("float64"), boxes.astype("float64"), format=form
        )
        expected = plain_loop(rows[:, 0], overlaps.asnumpy(), decay, 0.05)
        more = {"in_format": form, "out_format": form, "coord_start": 1, "score_index": 0}
        out, indices = box_nms(
            data, 0.3, **more, method=method, sigma=0.4, min_score=0.05, return_indices=True
        )
        count = len(expected)
        assert 20 < count < 80
        assert indices.asnumpy()[:count, 0].tolist() == [index for index, _ in expected]
        assert (indices.asnumpy()[count:] == -1).all() and (out.asnumpy()[count:] == -1).all()
        tolerance = 1e-14 if dtype == "float64" else 1e-7
        np.testing.assert_allclose(
            out.asnumpy()[:count, 0], [score for _, score in expected], tolerance
        )
        np.testing.assert_array_equal(
            out.asnumpy()[:count, 1:], rows[[index for index, _ in expected], 1:].astype(dtype)
        )


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_rotated_report(dtype, ctx):
    """mmcv 1663: rotated suppression of float16 kept all of these. Two of them are two others."""
    rows = np.array(
        [
            [233.25, 276.0, 160.0, 50.625, -3.0371, 0.9858],
            [233.625, 276.75, 160.875, 52.6562, -2.998, 0.6021],
            [261.0, 326.25, 146.625, 46.4062, -2.9844, 0.9854],
            [261.0, 326.75, 147.375, 47.9062, -2.9648, 0.9453],
        ]
    )
    rows[:, 4] = -np.degrees(rows[:, 4])
    _, indices = gluon_roi.nd.BoxNMS(
        mx.nd.array(rows, ctx=ctx, dtype=dtype),
        score_index=5,
        coord_start=0,
        in_format="rotated",
        out_format="rotated",
        return_indices=True,
    )
    assert indices.asnumpy().ravel().tolist() == [0, 2, -1, -1]


def test_upright_reports(ctx):
    """mmcv 1239: boxes that are apart stay at a threshold of 0. mmcv 1476: inverted ones, too."""
    rng = np.random.RandomState(0)
    corner = 2 * np.indices((20, 20)).reshape(2, -1).T
    scores = rng.rand(400, 1)
    for sides in (rng.uniform(0.1, 1.9, (400, 2)), rng.uniform(-9, -0.1, (400, 2))):
        rows = np.hstack([scores, corner, corner + sides])
        out = gluon_roi.nd.BoxNMS(mx.nd.array(rows, ctx=ctx), 0.0, score_index=0, coord_start=1)
        expected = np.sort(scores.ravel())[::-1].astype("float32")
        np.testing.assert_array_equal(out.asnumpy()[:, 0], expected)


@pytest.mark.parametrize("method", ["linear", "gaussian"])
def test_soft_report(method, ctx):
    """mmcv 1726: where all scores are below min_score, no row is kept."""
    rows = mx.nd.array([[0.298848, 0, 0, 4, 4], [0.25, 0, 0, 4, 5]], ctx=ctx)
    more = {"score_index": 0, "coord_start": 1, "method": method}
    assert (gluon_roi.nd.BoxNMS(rows, min_score=0.3, **more) == -1).asnumpy().all()


def test_soft_worked_numbers(ctx):
    """Rows overlap by 16 / 20; the other class is not lowered."""
    rows = mx.nd.array(
        [[0, 0.5, 0, 0, 4, 4], [0, 0.75, 0, 0, 4, 5], [1, 0.25, 0, 0, 4, 4]], ctx=ctx
    )

    def scores(**parameters):
        return box_nms(rows, id_index=0, **parameters)[:, 1].asnumpy().astype("float64").round(4)

    assert scores(method="linear").tolist() == [0.75, 0.25, 0.1]
    assert scores(method="linear", overlap_thresh=0.8).tolist() == [0.75, 0.5, 0.25]
    assert scores(method="linear", min_score=0.2).tolist() == [0.75, 0.25, -1]
    wanted = [0.75, 0.25, round(0.5 * np.exp(-0.64 / 0.5), 4)]
    assert scores(method="gaussian").tolist() == wanted
    assert scores(method="gaussian", overlap_thresh=0.99).tolist() == wanted
    assert scores(method="gaussian", force_suppress=True, min_score=0).tolist()[0] == 0.75


def test_gradient_of_lowered_scores(mxnet_cpu):
    """Finite differences: exact for scores, as long as their order stays."""
    for name in SOFT:
        call = CALLS[name]
        rows = call.arrays("float64")[0]
        rows[..., 1] = (
            np.random.RandomState(0).permutation(rows[..., 1].size).reshape(rows.shape[:-1])
        )
        rows[..., 1] = rows[..., 1] / rows[..., 1].size + 0.1
        data = mx.nd.array(rows, dtype="float64")
        data.attach_grad()
        with autograd.record():
            out = box_nms(data, **call.parameters)
        slope = np.zeros(out.shape)
        slope[..., 1] = np.random.RandomState(1).randn(*out.shape[:-1])
        out.backward(mx.nd.array(slope, dtype="float64"))
        for place in range(0, rows[..., 1].size, 7):
            moved = rows.copy().reshape(-1, rows.shape[-1])
            moved[place, 1] += 1e-9
            moved = mx.nd.array(moved.reshape(rows.shape), dtype="float64")
            change = (box_nms(moved, **call.parameters) - out).asnumpy() * slope
            gradient = data.grad.asnumpy().reshape(-1, rows.shape[-1])[place, 1]
            assert change.sum() / 1e-9 == pytest.approx(gradient, abs=1e-5), (name, place)


def test_soft_methods_and_odd_scores(ctx):
    """Infinity stays, and what it becomes at an overlap of 1 is no number, and dropped."""
    rows = mx.nd.array([[np.inf, 0, 0, 4, 4], [np.inf, 0, 0, 4, 4], [1, 8, 8, 9, 9]], ctx=ctx)
    more = {"coord_start": 1, "score_index": 0}
    out = box_nms(rows, method="linear", **more)[:, 0].asnumpy().tolist()
    assert out == [np.inf, 1, -1]
    out = box_nms(rows, method="gaussian", **more)[:, 0].asnumpy().tolist()
    assert out == [np.inf, np.inf, 1]
    lost = mx.nd.array([[0.5, 0, 0, 4, 4], [0.4, 0, np.nan, 4, 4]], ctx=ctx)
    np.testing.assert_array_equal(
        box_nms(lost, method="gaussian", **more).asnumpy(), lost.asnumpy()
    )


# ---- Indices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NMS)
def test_indices(name, ctx):
    """The indices are the record of a symbol, for arrays of both kinds, symbols and networks."""
    call = CALLS[name]
    (data,) = arrays_of(call, "float32", ctx)
    parameters = {**call.parameters, "return_indices": True}
    expected = box_nms(data, **call.parameters).asnumpy(), record_of(data, **call.parameters)
    block = gluon_roi.BoxNMS(**parameters)
    block.hybridize()
    symbol = gluon_roi.sym.BoxNMS(mx.sym.var("data"), **parameters)
    assert len(symbol.list_outputs()) == 2
    targets = [mx.nd.zeros(data.shape, ctx=ctx), mx.nd.zeros(expected[1].shape, ctx, "int32")]
    numpy_results = mx.npx.gluon_roi.BoxNMS(data.as_np_ndarray(), **parameters)
    assert all(isinstance(result, mx.np.ndarray) for result in numpy_results)
    for results in (
        box_nms(data, **parameters),
        numpy_results,
        block(data),
        symbol.bind(ctx, {"data": data}).forward(),
        box_nms(data, out=targets, **parameters),
        targets,
    ):
        out, indices = (result.asnumpy() for result in results)
        np.testing.assert_array_equal(out, expected[0])
        np.testing.assert_array_equal(indices, expected[1])
        assert indices.dtype == np.int32


def test_gradient_behind_indices(ctx):
    (data,) = arrays_of(CALLS["plain"], "float32", ctx)
    data.attach_grad()
    with autograd.record():
        out, indices = box_nms(data, return_indices=True)
    out.backward()
    kept = indices.asnumpy().ravel()
    expected = np.isin(np.arange(len(kept)), kept).reshape(data.shape[:-1])
    np.testing.assert_array_equal(
        data.grad.asnumpy(), np.broadcast_to(expected[..., None], data.shape)
    )


# ---- MXNet's own ---------------------------------------------------------------------------------


VARIED = [
    dict(zip(("overlap_thresh", "valid_thresh", "topk", "id_index", "force_suppress"), values))
    for values in itertools.product(
        (0.5, 0.3, 0, 1, -1), (0, 0.4), (-1, 20), (-1, 0), (False, True)
    )
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("formats", list(itertools.product(("corner", "center"), repeat=2)))
def test_box_nms_is_mxnets(formats, dtype, mxnet_cpu):
    """The same bytes on random rows: ties, inverted and equal boxes, thresholds of all kinds."""
    rng = np.random.RandomState(0)
    for seed, parameters in enumerate(VARIED):
        shape = (int(rng.randint(1, 4)), int(rng.choice([1, 2, 15, 60, 200])), 6)
        parameters = {**parameters, "in_format": formats[0], "out_format": formats[1]}
        call = Suppressed("box_nms", shape, parameters)
        rows = call.arrays(dtype, seed)[0]
        if seed % 4 == 0:  # infinite scores and sides, coordinates that round
            rows[..., 1::7, 1] = np.inf
            rows[..., 2::9, 4] = np.inf
            rows[..., 3::9, 2:] = 1e8
        data = mx.nd.array(rows, dtype=dtype)
        theirs = mx.nd.contrib.box_nms(data, **parameters).asnumpy()
        assert box_nms(data, **parameters).asnumpy().tobytes() == theirs.tobytes(), parameters


#: Powers of ten at which areas are ordinary, subnormal, 0 and infinite.
SCALES = {
    "float32": (0, 15, 19, 25, -19, -22, -40),
    "float64": (0, 150, 154, 200, -154, -160, -320),
}


@pytest.mark.parametrize("dtype", SCALES)
def test_overlaps_at_the_threshold(dtype, mxnet_cpu):
    """The same bytes if an overlap equals the threshold, or misses it by a rounding.

    Only two boxes meet, one of the first half and one of the second: no other is near them.
    """
    rng = np.random.RandomState(0)
    for scale, _ in itertools.product(SCALES[dtype], range(20)):
        low, side = np.outer(100 * np.arange(32), [1, 0]), rng.randint(4, 12, (32, 2))
        one, other = rng.randint(0, 16), rng.randint(16, 32)
        low[other] = low[one] + rng.randint(0, 4, 2)
        common = np.prod(np.minimum(low + side, low[one] + side[one])[other] - low[other])
        ratio = np.float32(common / (side[one].prod() + side[other].prod() - common))
        scores = np.linspace(1, 0.5, 32)[:, None]
        rows = np.hstack([0 * scores, scores, low * 10.0**scale, (low + side) * 10.0**scale])
        with np.errstate(over="ignore", under="ignore"):
            data = mx.nd.array(rows.astype(dtype), dtype=dtype)
        for beside in (ratio - 1, ratio, ratio + 1):
            threshold = float(np.nextafter(ratio, np.float32(beside)))
            theirs = mx.nd.contrib.box_nms(data, overlap_thresh=threshold).asnumpy()
            ours = box_nms(data, overlap_thresh=threshold).asnumpy()
            assert ours.tobytes() == theirs.tobytes(), (scale, threshold)


@pytest.mark.parametrize("name", PROPOSALS)
def test_proposal_is_mxnets(name, mxnet_cpu):
    """The same bytes: MultiProposal of any batch, Proposal of one image."""
    call = CALLS[name]
    inputs = arrays_of(call, "float32", mx.cpu())
    more = {**call.parameters, "output_score": True}
    theirs = mx.nd.contrib.MultiProposal(*inputs, **more)
    for got, wanted in zip(proposal(*inputs, **more), theirs):
        assert got.asnumpy().tobytes() == wanted.asnumpy().tobytes()
    one = [array[:1] for array in inputs]
    theirs = mx.nd.contrib.Proposal(*one, **more)
    for got, wanted in zip(proposal(*one, **more), theirs):
        assert got.asnumpy().tobytes() == wanted.asnumpy().tobytes()


# ---- torchvision's -------------------------------------------------------------------------------


def torchvision_kept(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> list[int]:
    """torchvision's nms on the CPU, from its source: the threshold is a float64 for every dtype.

    Version 0.29.1 itself kept the same boxes of all lists of `whole_pixel_lists`, in both dtypes.
    """
    x1, y1, x2, y2 = boxes.T
    area = (x2 - x1) * (y2 - y1)
    width = np.minimum(x2[:, None], x2) - np.maximum(x1[:, None], x1)
    height = np.minimum(y2[:, None], y2) - np.maximum(y1[:, None], y1)
    common = width.clip(0) * height.clip(0)
    overlaps = common / (area[:, None] + area - common)
    suppresses = overlaps.astype("float64") > threshold
    suppressed, kept = np.zeros(len(boxes), bool), []
    for i in np.argsort(-scores):
        if not suppressed[i]:
            kept.append(int(i))
            suppressed |= suppresses[i]
    return kept


def whole_pixel_lists() -> Iterator[tuple[float, np.ndarray, np.ndarray]]:
    """420 thresholds, each with 200 boxes whose corners are whole pixels, and their scores."""
    rng = np.random.RandomState(0)
    for i in range(420):
        low, side = rng.randint(0, 40, (200, 2)), rng.randint(4, 24, (200, 2))
        yield (2 + i % 7) / 10, np.hstack([low, low + side]), rng.permutation(200) / 200


@pytest.mark.parametrize(
    "dtype, differ",
    [
        ("float32", {0.2: 34, 0.3: 27, 0.4: 48, 0.5: 0, 0.6: 32, 0.7: 0, 0.8: 12}),
        ("float64", {0.2: 0, 0.3: 0, 0.4: 0, 0.5: 0, 0.6: 0, 0.7: 12, 0.8: 0}),
    ],
)
def test_thresholds_of_torchvision(dtype, differ, ctx):
    """A threshold is rounded to float32, as MXNet does; torchvision does not on its CPU.

    The lists that differ are those of the page. In float32, torchvision's boxes are those of the
    largest float32 up to the threshold.
    """

    def kept(threshold: float) -> list[int]:
        out = box_nms(data, overlap_thresh=threshold, valid_thresh=-1, coord_start=1, score_index=0)
        return [ranks[score] for score in out[:, 0].asnumpy().tolist() if score != -1]

    counts = dict.fromkeys(differ, 0)
    for threshold, boxes, scores in whole_pixel_lists():
        rows = np.hstack([scores[:, None], boxes]).astype(dtype)
        data = mx.nd.array(rows, dtype=dtype, ctx=ctx)
        ranks = {score: i for i, score in enumerate(rows[:, 0].tolist())}
        wanted = torchvision_kept(rows[:, 1:], rows[:, 0], threshold)
        counts[threshold] += kept(threshold) != wanted
        if dtype == "float32":
            rounded = np.float32(threshold)
            above = float(rounded) > threshold
            below = np.nextafter(rounded, np.float32(0)) if above else rounded
            assert kept(float(below)) == wanted
    assert counts == differ


# ---- Gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name, dtype", in_turn(NMS, DTYPES, every=len(DTYPES)))
def test_gradient(name, dtype, ctx):
    """Rows are scattered back; grad_req='add' and several users add."""
    call = CALLS[name]
    (data,) = arrays_of(call, dtype, ctx)
    out, record = reference.box_nms(
        data.asnumpy(), **call.parameters, geometry=GEOMETRY.get(dtype, dtype)
    )
    d_out = np.random.RandomState(1).randint(-8, 8, data.shape).astype(dtype)
    factors = np.ones(record.shape[:-1])
    if name in SOFT:
        scores, score_index = data.asnumpy().astype("float64"), 1
        scores = scores.reshape(-1, scores.shape[-1])[record[..., 0], score_index]
        factors = np.where(record[..., 0] >= 0, out[..., score_index] / scores, 1)
        assert 0 < factors.min() < 0.9
    expected = reference.box_nms_backward(d_out, record, factors)
    for users, grad_req in ((1, "write"), (1, "add"), (9, "write")):
        data.attach_grad(grad_req)
        data.grad[:] = 3
        with autograd.record():
            out = sum(box_nms(data, **call.parameters) for _ in range(users))
        out.backward(mx.nd.array(d_out, ctx=ctx, dtype=dtype))
        before = 3 if grad_req == "add" else 0
        got, wanted = data.grad.asnumpy(), users * expected + before
        if name in SOFT:
            tolerance = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-2}[dtype]
            np.testing.assert_allclose(got, wanted, tolerance, tolerance)
        else:
            np.testing.assert_array_equal(got, wanted)


def test_proposals_have_no_gradient(ctx):
    """Not even where gradients of other users are added."""
    call = CALLS["corners"]
    inputs = arrays_of(call, "float32", ctx)
    for array in inputs:
        array.attach_grad("add")
    with autograd.record():
        out = proposal(*inputs, **call.parameters).sum() + sum((2 * a).sum() for a in inputs)
    out.backward()
    for array in inputs:
        assert (array.grad == 2).asnumpy().all()


@pytest.mark.parametrize("static_alloc", [False, True])
def test_blocks(static_alloc, ctx):
    """Nine users of one array in a hybridized network, and its export."""

    class Network(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            x = F.relu(x)
            return sum(F.gluon_roi.BoxNMS(x, topk=30) for _ in range(9))

    data = arrays_of(CALLS["plain"], "float32", ctx)[0]
    results = []
    for hybrid in (False, True):
        net = Network()
        if hybrid:
            net.hybridize(static_alloc=static_alloc)
        data.attach_grad()
        with autograd.record():
            out = net(data)
        out.backward()
        results.append((out.asnumpy(), data.grad.asnumpy()))
    for a, b in zip(*results):
        np.testing.assert_array_equal(a, b)
    assert results[0][1].max() == 9
    maps = arrays_of(CALLS["corners"], "float32", ctx)
    for shown in (False, True):
        block = gluon_roi.Proposal(**CALLS["corners"].parameters, output_score=shown)
        plain = block(*maps)
        block.hybridize(static_alloc=static_alloc)
        for a, b in zip(*([r] if not shown else r for r in (plain, block(*maps)))):
            np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


# ---- NaN and infinity ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["corner", "center"])
def test_nan_and_infinity_in_rows(form, dtype, ctx):
    """Scores: NaN is not valid, infinity is first. A box with a NaN overlaps nothing."""
    box = [2.0, 2, 6, 6]
    rows = [[0, score, *box] for score in (0.5, np.nan, np.inf, -np.inf, 0.25)]
    rows += [
        [0, 0.75, *(np.nan if n == lost else v for n, v in enumerate(box))] for lost in range(4)
    ]
    rows += [[kind, 0.1, *box] for kind in (np.nan, -(2.0**31), np.inf, 1, 1.5)]
    with np.errstate(over="ignore"):
        data = mx.nd.array(np.array([rows]).astype(dtype), ctx=ctx, dtype=dtype)
    kept = {False: [2, 5, 6, 7, 8, 9, 12], True: [2, 5, 6, 7, 8]}
    for force, wanted in kept.items():
        more = {"id_index": 0, "force_suppress": force, "in_format": form, "out_format": form}
        record = record_of(data, **more).ravel()
        assert record[record >= 0].tolist() == wanted
        for thresh in (-1, 0, 1):
            geometry = GEOMETRY.get(dtype, dtype)
            parameters = {**more, "overlap_thresh": thresh}
            out, record = reference.box_nms(data.asnumpy(), **parameters, geometry=geometry)
            np.testing.assert_array_equal(box_nms(data, **parameters).asnumpy(), out)
            np.testing.assert_array_equal(record_of(data, **parameters), record)


def test_nan_and_infinity_in_maps(ctx):
    """A score of NaN counts as -infinity; a box that a NaN moves comes before, with score -1."""
    scores = np.zeros((1, 2, 1, 6), "float32")
    scores[0, 1, 0] = [np.nan, np.inf, -np.inf, 0.5, 0.75, -2]
    moves = np.zeros((1, 4, 1, 6), "float32")
    moves[0, 0, 0, 3] = np.nan
    moves[0, 2, 0, 4] = np.inf
    info = np.array([[16, 96, 1]], "float32")
    parameters: dict[str, Any] = {
        "scales": (1,),
        "ratios": (1,),
        "rpn_post_nms_top_n": 6,
        "rpn_min_size": 2,
        "threshold": 0.9,
    }
    inputs = [mx.nd.array(a, ctx=ctx) for a in (scores, moves, info)]
    got = proposal(*inputs, **parameters, output_score=True)
    for one, wanted in zip(got, expected_proposals(*inputs, **parameters, geometry="float32")):
        np.testing.assert_array_equal(one.asnumpy(), wanted)
    assert got[0][:, 1].asnumpy()[:2].tolist() == [16, 0]
    np.testing.assert_array_equal(got[1][:, 0].asnumpy()[:4], [np.inf, 0.75, -1, -2])


def test_large_numbers_of_rows(ctx):
    """The record is right where data's type cannot count: above 2048 rows in float16."""
    rows = np.zeros((2, 3000, 6), "float16")
    rows[..., 1] = 1
    rows[..., 2] = np.arange(3000) % 60
    rows[..., 3] = np.arange(3000) // 60 % 50
    rows[..., 4:] = rows[..., 2:4] + 0.5
    data = mx.nd.array(rows, ctx=ctx, dtype="float16")
    np.testing.assert_array_equal(record_of(data).ravel(), np.arange(6000))
    data.attach_grad()
    with autograd.record():
        out = box_nms(data)
    out.backward(mx.nd.array(rows, ctx=ctx, dtype="float16"))
    np.testing.assert_array_equal(data.grad.asnumpy(), rows)
