# SPDX-License-Identifier: Apache-2.0
"""Live comparison with other implementations: MXNet's own operators, torchvision, Paddle."""

import importlib.util
import itertools

import mxnet as mx
import numpy as np
import pytest
from golden import record
from operators import OPERATORS, ROWS
from support.cases import (
    AGREEMENT_FUSED,
    BATCH,
    BLOCKS,
    HEIGHT,
    SCALES,
    WIDTH,
    assert_agrees,
    feature_map,
    for_mxnet,
    row_id,
    turned,
)
from support.turns import in_turn
from test_golden import tolerance_of

import gluon_roi


def forward_backward(function, data, rois, d_out=None, backward=True):
    """Output, gradient, and magnitudes summed in the gradient, of function(data, rois)."""
    x = mx.nd.array(data, dtype=data.dtype)
    x.attach_grad()
    with mx.autograd.record():
        y = function(x, mx.nd.array(rois, dtype=rois.dtype))
    if not backward:
        return y.asnumpy(), None, None
    d_out = np.random.RandomState(1).randn(*y.shape) if d_out is None else d_out
    y.backward(mx.nd.array(np.abs(d_out), dtype=data.dtype), retain_graph=True)
    d_terms = x.grad.asnumpy()
    y.backward(mx.nd.array(d_out, dtype=data.dtype))
    return y.asnumpy(), x.grad.asnumpy(), d_terms


# ---- MXNet ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row, size, scale",
    in_turn(
        ROWS,
        BLOCKS,
        SCALES,
        every=3,
        of=[
            (row, size, scale)
            for row, size, scale in itertools.product(ROWS, BLOCKS, SCALES)
            if row[0].in_mxnet(size[1], row[1])
        ],
    ),
    ids=row_id,
)
def test_mxnet(row, size, scale):
    (operator, arguments), (wanted, pooled) = row, size
    data = feature_map(operator.channels(wanted, pooled, arguments))
    rois = for_mxnet(operator.all_rois(scale))
    function = operator.function
    backward = operator.mxnet_backward
    theirs, d_theirs, _ = forward_backward(
        lambda x, r: operator.mxnet(x, r, pooled, scale, **arguments), data, rois, None, backward
    )
    ours, d_ours, d_terms = forward_backward(
        lambda x, r: function(x, r, pooled, scale, **arguments), data, rois
    )
    if not operator.linear:  # it gives values of the map as they are
        np.testing.assert_array_equal(ours, theirs)
    else:
        assert_agrees(ours, theirs, data)
    if backward:
        assert_agrees(d_ours, d_theirs, d_terms)


@pytest.mark.parametrize(
    "operator, arguments", [r for r in ROWS if r[0].in_mxnet((2, 2), r[1])], ids=row_id
)
def test_mxnet_in_float64(operator, arguments):
    """At a scale and a size at which MXNet's float64 bins are its float32 bins."""
    pooled, scale = (2, 2), 1 / 16
    data = feature_map(operator.channels(3, pooled, arguments), "float64")
    rois = for_mxnet(operator.all_rois(scale, "float64"))
    function = operator.function
    backward = operator.mxnet_backward
    theirs = forward_backward(
        lambda x, r: operator.mxnet(x, r, pooled, scale, **arguments), data, rois, None, backward
    )
    ours = forward_backward(lambda x, r: function(x, r, pooled, scale, **arguments), data, rois)
    for a, b in zip(ours if backward else ours[:1], theirs):
        np.testing.assert_allclose(a, b, 1e-12, 1e-12)


@pytest.mark.parametrize(
    "scale, expected", [(1.0, [[14, 16], [26, 28]]), (0.7, [[7, 9], [19, 21]])]
)
def test_documented_example_of_mxnet_roi_pooling(scale, expected):
    data = mx.nd.arange(48).reshape((1, 1, 8, 6))
    out = gluon_roi.nd.ROIPool(data, mx.nd.array([[0, 0, 0, 4, 4]]), (2, 2), scale)
    assert out.asnumpy().tolist() == [[expected]]


def test_documented_example_of_paddle_roi_pool():
    data = mx.nd.arange(1, 17).reshape((1, 1, 4, 4))
    rois = mx.nd.array([[1, 1, 2, 2], [1.5, 1.5, 3, 3]])
    out = gluon_roi.nd.ROIPool(data, rois, 1, 1.0, rois_num=mx.nd.array([2], dtype="int32"))
    assert out.asnumpy().ravel().tolist() == [11, 16]


def test_documented_example_of_paddle_psroi_pool():
    data, rois = mx.nd.random.uniform(shape=(2, 490, 28, 28)), mx.nd.array([[1, 5, 8, 10]] * 5)
    counts = mx.nd.array([3, 2], dtype="int32")
    out = gluon_roi.nd.PSROIPool(data, rois, (7, 7), 1.0, rois_num=counts)
    assert out.shape == (5, 10, 7, 7)


@pytest.mark.parametrize("turns", range(4))
def test_documented_example_of_detectron2(turns):
    """Its ROIAlignRotated: the box turns one way, what it sees the other."""
    data = mx.nd.arange(25).reshape((1, 1, 5, 5))
    rois = mx.nd.array([[0, 2, 2, 2, 2, 90 * turns]])
    out = gluon_roi.nd.RotatedROIAlign(data, rois, 4, 1.0, aligned=True)
    expected = [[4.5, 5, 5.5, 6], [7, 7.5, 8, 8.5], [9.5, 10, 10.5, 11], [12, 12.5, 13, 13.5]]
    np.testing.assert_allclose(out.asnumpy()[0, 0], np.rot90(expected, -turns), rtol=1e-6)


def test_documented_example_of_mmcv():
    data, rois = mx.nd.array([[[[1, 2], [3, 4]]]]), mx.nd.array([[0, 0.5, 0.5, 1, 1, 0]])
    out = gluon_roi.nd.RotatedROIAlign(data, rois, 2, 1.0, sampling_ratio=2, aligned=True)
    assert out.asnumpy().ravel().tolist() == [1, 1.25, 1.5, 1.75]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("arguments", [{}, {"sampling_ratio": 2}, {"aligned": True}], ids=row_id)
def test_without_an_angle_it_is_roi_align(arguments, dtype):
    """Output and gradient of data; 0 and any whole turns."""
    data, scale = feature_map(17, dtype), 0.3
    # Sides have at least a cell: both operators enlarge smaller boxes, but only this one keeps the
    # centre. Corners are random, because rounding decides whether a sample exactly on the border of
    # the map counts.
    rng = np.random.RandomState(0)
    low = rng.uniform((-6, -6), (WIDTH, HEIGHT), (60, 2))
    boxes = np.hstack([low, low + rng.uniform(1.1, 15, (60, 2))]) / scale
    rois = np.hstack([np.arange(60)[:, None] % BATCH, boxes])
    rois = rois.astype("float64" if dtype == "float64" else "float32")
    rotated = turned(rois)
    rotated[:, 5] = np.resize([0, 360, -720], len(rotated))
    wanted, d_wanted, d_terms = forward_backward(
        lambda x, r: gluon_roi.nd.ROIAlign(x, r, (3, 5), scale, **arguments), data, rois
    )
    out, d_data, _ = forward_backward(
        lambda x, r: gluon_roi.nd.RotatedROIAlign(x, r, (3, 5), scale, **arguments), data, rotated
    )
    # The positions are rounded differently: 20 cells to the last bit.
    tolerance = {"float64": 1e-13, "float32": AGREEMENT_FUSED, "float16": 1e-3}[dtype]
    assert_agrees(out, wanted, data, tolerance)
    assert_agrees(d_data, d_wanted, d_terms, tolerance)


@pytest.mark.parametrize("op", [op for op in OPERATORS if op.ramps], ids=lambda op: op.name)
def test_ramp(op):
    """The ramp 0..15 on 4 x 4, in every channel."""
    for box, scale, arguments, expected in op.ramps:
        channels = op.channels(1, (2, 2), arguments)
        data = mx.nd.arange(16).reshape((1, 1, 4, 4)).tile((1, channels, 1, 1))
        out = op.function(data, mx.nd.array([[0, *box]]), 2, scale, **arguments)
        assert out.asnumpy().ravel().tolist() == expected


# ---- torchvision, Paddle and mmcv ----------------------------------------------------------------


@pytest.fixture(params=record.PEERS)
def peer(request):
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed; test_golden.py has what it gave elsewhere")
    return request.param


def compare(peer, case, data, rois, d_out):
    theirs, d_theirs = record.PEERS[peer](case, data, rois, d_out)
    function = getattr(gluon_roi.nd, case["operator"])
    ours, d_ours, d_terms = forward_backward(
        lambda x, r: function(x, r, tuple(case["pooled"]), case["scale"], **case["ours"]),
        data,
        rois,
        d_out,
    )
    assert_agrees(ours, theirs, data, tolerance_of(case))
    if case["gradient"]:
        assert_agrees(d_ours, d_theirs, d_terms, tolerance_of(case))


def test_recorded_cases(peer):
    """The cases of the golden files, with the installed version."""
    for case in record.cases(peer):
        compare(peer, case, *record.inputs(case))


def test_larger_cases(peer):
    """Every box of the tables that has a size, more channels, float32."""
    for case in record.cases(peer):
        if case["dtype"] != "float32":
            continue
        operator = next(o for o in OPERATORS if o.name == case["operator"])
        pooled = tuple(case["pooled"])
        data = feature_map(operator.channels(17, pooled, case["ours"]))
        rois = for_mxnet(operator.all_rois(case["scale"]))
        if peer == "paddle" and case["theirs"].get("aligned"):
            # Its gradient is wrong below one cell.
            sides = (rois[:, 3:] - rois[:, 1:3]) * case["scale"]
            rois = rois[(sides > 1.001).all(axis=1)]
        rois = rois[np.argsort(rois[:, 0], kind="stable")]
        assert set(rois[:, 0]) == set(range(BATCH))
        d_out = np.random.RandomState(2).randn(len(rois), 17, *pooled).astype("float32")
        compare(peer, case, data, rois, d_out)
