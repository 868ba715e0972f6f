# SPDX-License-Identifier: Apache-2.0
"""The edge-case contract: padding, unusable, huge, inverted and empty boxes, NaN cells."""

import runpy
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from operators import BY_NAME, OPERATORS, ROWS
from support.cases import HEIGHT, PRECISION, WIDTH, assert_near, feature_map, row_id
from support.processes import forked

import gluon_roi

POOLED, SCALE = (3, 3), 0.5
SCRIPTS = Path(__file__).parents[1] / "scripts"
#: The quick half keeps float32.
every = pytest.mark.parametrize(
    "op, arguments, dtype",
    [
        pytest.param(*row, dtype, marks=[] if dtype == "float32" else [pytest.mark.slow])
        for row in ROWS
        for dtype in ("float32", "float64", "float16")
    ],
    ids=row_id,
)


def run(op, data, rois, arguments, ctx, pooled=POOLED, rois_dtype=None, scale=SCALE):
    """(out, d_data, d_rois) as NumPy arrays, for d_out = 1."""
    x = mx.nd.array(data, ctx=ctx, dtype=data.dtype)
    rois_dtype = rois_dtype or ("float64" if data.dtype == np.float64 else "float32")
    r = mx.nd.array(rois, ctx=ctx, dtype=rois_dtype)
    x.attach_grad()
    r.attach_grad()
    if op.rois_grad:
        arguments = {**arguments, "rois_grad": True}
    with autograd.record():
        out = op.function(x, r, pooled, scale, **arguments)
    out.backward()
    return out.asnumpy(), x.grad.asnumpy(), r.grad.asnumpy()


def map_of(op, arguments, dtype, channels=3):
    return feature_map(op.channels(channels, POOLED, arguments), dtype)


@every
def test_padding_rows(op, arguments, dtype, ctx):
    """Any negative index, with any coordinates: a row of zeros, no gradient."""
    data = map_of(op, arguments, dtype)
    padding = op.rois(
        [[-1, 0, 0, 9, 9], [-7, 1, 2, 3, 4], [-1, np.nan, np.inf, 0, 0], [-0.5, 0, 0, 9, 9]]
    )
    out, d_data, d_rois = run(op, data, padding, arguments, ctx)
    assert (out == 0).all() and (d_data == 0).all() and (d_rois == 0).all()
    roi = op.rois([[1, 0, 0, 9, 9]])
    alone = run(op, data, roi, arguments, ctx)
    mixed = run(op, data, [padding[0], roi[0], padding[1]], arguments, ctx)
    np.testing.assert_array_equal(mixed[0][1], alone[0][0])
    np.testing.assert_array_equal(mixed[1], alone[1])
    np.testing.assert_array_equal(mixed[2][1], alone[2][0])


@every
def test_unusable_coordinates(op, arguments, dtype, ctx):
    """NaN or infinity anywhere in a box: a row of NaN, gradients of 0."""
    data = map_of(op, arguments, dtype)
    rois = []
    for value in (np.nan, np.inf, -np.inf):
        for column in range(1, op.coordinates + 1):
            rois.append(op.rois([[0.0, 2, 2, 9, 9]])[0])
            rois[-1][column] = value
    out, d_data, d_rois = run(op, data, rois, arguments, ctx)
    assert np.isnan(out).all() and (d_data == 0).all() and (d_rois == 0).all()


@every
def test_huge_boxes(op, arguments, dtype, ctx):
    """Coordinates up to 1e20 saturate: the reference's values, in bounded time."""
    data = map_of(op, arguments, dtype)
    rois = []
    for size in (1e5, 1e9, 1e20, 3e38):
        rois += [
            [0, -size, -size, size, size],
            [1, 0, 0, size, size],
            [0, -size, 2, 5, 9],
            [1, size, size, size, size],
            [0, size, -size, -size, size],
            [1, -size, -size, -size / 2, -size / 2],
        ]
    rois = op.rois(rois).astype("float64" if dtype == "float64" else "float32")
    began = time.perf_counter()
    out, d_data, d_rois = run(op, data, rois, arguments, ctx)
    # Not a timing: an unbounded loop over 1e20 samples would not end at all.
    assert time.perf_counter() - began < 60
    assert np.isfinite(out).all() and np.isfinite(d_data).all() and np.isfinite(d_rois).all()
    expected = op.expected(data, rois, POOLED, SCALE, **arguments)
    assert_near(out, expected, PRECISION[dtype].forward)


@every
def test_huge_scales(op, arguments, dtype, ctx):
    """Up to 1e30. (Box gradients, as large as the scale, may overflow their type.)"""
    data = map_of(op, arguments, dtype)
    rois = op.rois([[0, 1, 2, 5, 9], [1, -4, -4, 4, 4], [0, 0, 0, 0, 0], [-1, 0, 0, 9, 9]])
    for scale in (1e10, 1e20, 1e30):
        near = rois.astype("float64")
        near[:, 1:5] /= scale
        for boxes in (rois, near.astype(rois.dtype)):
            out, d_data, d_rois = run(op, data, boxes, arguments, ctx, scale=scale)
            assert np.isfinite(out).all() and np.isfinite(d_data).all()
            assert not np.isnan(d_rois).any()
    for scale in (1.1e30, 1e39, 1.7e308):
        with pytest.raises(mx.MXNetError, match="spatial_scale: expected a .* > 0, at most 1e30"):
            run(op, data, rois, arguments, ctx, scale=scale)


@pytest.mark.parametrize("width", [1e-6, 1e-12, 1e-14, 2e-16, 3e-17, 1e-20])
def test_tiny_boxes_of_pr_roi_pool(width, ctx):
    """The mean of ones is 1, and that of a ramp moves as the box does, also in bins of a point."""
    starts = np.array([0, 0.1, 1 - 1e-16, 1.3, 3.9])
    starts = starts[starts + width > starts]
    rois = np.array([[0, x, y, x + width, y + width] for x in starts for y in starts])
    op = BY_NAME["PrROIPool"]
    ones = run(op, np.ones((1, 1, 6, 6)), rois, {}, ctx, scale=1.0)
    np.testing.assert_allclose(ones[0], 1, rtol=1e-15)
    ramp = np.arange(6.0) + 10 * np.arange(6.0)[:, None]
    out, _, d_rois = run(op, ramp[None, None], rois, {}, ctx, (1, 1), scale=1.0)
    np.testing.assert_allclose(out[:, 0, 0, 0], rois[:, 1] + 10 * rois[:, 2], 1e-15, 11 * width)
    np.testing.assert_allclose(d_rois[:, 1:3] + d_rois[:, 3:], [[1, 10]] * len(rois), rtol=1e-14)
    expected = op.expected_gradients(np.ones_like(out), ramp[None, None], rois, (1, 1), 1.0)[1]
    np.testing.assert_allclose(d_rois, expected, rtol=1e-14)


FAR = {
    "ROIAlign float32": (1e6, 3e-5),
    "ROIAlign float64": (1e14, 1e-13),
    "PrROIPool float32": (1e20, 3e-5),
    "PrROIPool float64": (1e20, 1e-13),
}


@pytest.mark.parametrize("name", FAR)
def test_boxes_that_reach_far(name, ctx):
    """The mean of ones is the share of the map, up to the distance in docs/operators.md."""
    distance, tolerance = FAR[name]
    op, dtype = name.split()
    size = 1000
    ones = mx.nd.ones((1, 1, size, size), ctx=ctx, dtype=dtype)
    # ROIAlign's samples count up to one cell beyond the border, PrROIPool's surface half of it.
    counted = size + 1 if op == "ROIAlign" else size
    for far in 10.0 ** np.arange(4, np.log10(distance) + 0.5):
        rois = mx.nd.array([[0, -far, 0, far, size - 1]], ctx=ctx, dtype=dtype)
        out = getattr(gluon_roi.nd, op)(ones, rois, 1, 1.0).asnumpy().item()
        assert out * 2 * far == pytest.approx(counted, rel=tolerance), far


@every
def test_inverted_and_empty_boxes(op, arguments, dtype, ctx):
    data = map_of(op, arguments, dtype)
    rois = op.rois(
        [
            [0, 9, 9, 2, 2],
            [1, 9, 2, 2, 9],
            [0, 4, 4, 4, 4],
            [1, 4.5, 4.5, 4.5, 4.5],
            [0, 0, 0, 0, 0],
        ]
    ).astype("float64" if dtype == "float64" else "float32")
    out, d_data, d_rois = run(op, data, rois, arguments, ctx)
    assert_near(out, op.expected(data, rois, POOLED, SCALE, **arguments), PRECISION[dtype].forward)
    assert np.isfinite(d_data).all() and np.isfinite(d_rois).all()


@pytest.mark.parametrize("name", ["ROIAlign", "PSROIAlign", "PyramidROIAlign", "RotatedROIAlign"])
def test_empty_boxes_with_aligned(name, ctx):
    """The value at their point, for any sampling_ratio; padding rows are zeros.

    torchvision 0.29.1 returns the same with sampling_ratio=2. With an adaptive one its roi_align
    returns 0 and its ps_roi_align NaN.
    """
    ramp = mx.nd.arange(16, ctx=ctx).reshape((1, 1, 4, 4))
    data = ramp.tile((1, 4, 1, 1)) if name == "PSROIAlign" else ramp
    data.attach_grad()
    box = [2, 1, 0, 0, 0] if name == "RotatedROIAlign" else [2, 1, 2, 1]
    rois = mx.nd.array([[0, *box], [-1, *box]], ctx=ctx)
    maps, scale = ([data], (1.0,)) if name == "PyramidROIAlign" else (data, 1.0)
    for sampling_ratio in (-1, 0, 2):
        with autograd.record():
            out = getattr(gluon_roi.nd, name)(
                maps, rois, 2, scale, sampling_ratio=sampling_ratio, aligned=True
            )
        out.backward()
        assert out.asnumpy().reshape(2, 4).tolist() == [[3.5] * 4, [0] * 4]
        assert data.grad.sum().asscalar() == 4


@every
def test_outside_the_map(op, arguments, dtype, ctx):
    data = map_of(op, arguments, dtype)
    far = op.rois([[0, -90, -90, -50, -50], [1, 200, 2, 240, 9], [0, 3, 200, 9, 240]])
    out, d_data, d_rois = run(op, data, far, arguments, ctx)
    assert (out == 0).all() and (d_data == 0).all() and (d_rois == 0).all()


@every
def test_nan_cells_outside_do_not_leak(op, arguments, dtype, ctx):
    """Cells that a RoI does not read may hold anything."""
    data = map_of(op, arguments, dtype)
    roi = op.rois([[0, 6, 6, 14, 14]])  # cells 3 to 7
    clean = run(op, data, roi, arguments, ctx)[0]
    for poison in (np.nan, np.inf):
        poisoned = data.copy()
        poisoned[:, :, :2] = poisoned[:, :, 9:] = poison
        poisoned[:, :, :, :2] = poisoned[:, :, :, 9:] = poison
        poisoned[1] = poison
        np.testing.assert_array_equal(run(op, poisoned, roi, arguments, ctx)[0], clean)


@pytest.mark.parametrize(
    "op, arguments", [r for r in ROWS if r[0].takes("sampling_ratio")], ids=row_id
)
def test_zero_weight_is_not_read(op, arguments, ctx):
    """A sample exactly on a cell does not touch the next one, NaN or not."""
    data = map_of(op, arguments, "float32")
    default = gluon_roi.library.operators()[op.name].parameters["aligned"]
    aligned = arguments.get("aligned", default == "True")
    # One sample a bin, at cell 4 exactly.
    corner = 4 - 0.5 + (0.5 if aligned else 0)
    low, high = corner / SCALE, (corner + 1) / SCALE
    roi = op.rois([[0, low, low, high, high]])
    exact = {**arguments, "sampling_ratio": 1}
    channels = op.channels(3, (1, 1), arguments)
    data = data[:, :channels]
    poisoned = data.copy()
    poisoned[:, :, 5:] = poisoned[:, :, :, 5:] = np.nan
    out = run(op, poisoned, roi, exact, ctx, pooled=(1, 1))[0]
    np.testing.assert_array_equal(out, run(op, data, roi, exact, ctx, pooled=(1, 1))[0])
    np.testing.assert_array_equal(out.ravel(), data[0, :, 4, 4])


def test_max_pooling_of_nan(ctx):
    """NaN cells are ignored; a bin of NaN cells only is the lowest number, as in MXNet."""
    data = np.full((1, 1, 4, 4), np.nan, "float32")
    data[0, 0, 2, 3] = -5
    rois = mx.nd.array([[0, 0, 0, 3, 3]], ctx=ctx)
    x = mx.nd.array(data, ctx=ctx)
    out = gluon_roi.nd.ROIPool(x, rois, 2, 1.0).asnumpy().ravel()
    np.testing.assert_array_equal(out, mx.nd.ROIPooling(x, rois, (2, 2), 1.0).asnumpy().ravel())
    assert out[3] == -5


def test_first_maximum_wins(ctx):
    """Equal maxima: the first in row-major order gets the gradient."""
    x = mx.nd.ones((1, 1, 6, 6), ctx=ctx)
    x.attach_grad()
    with autograd.record():
        out = gluon_roi.nd.ROIPool(x, mx.nd.array([[0, 0, 0, 5, 5]], ctx=ctx), 2, 1.0)
    out.backward()
    expected = np.zeros((6, 6))
    expected[::3, ::3] = 1
    np.testing.assert_array_equal(x.grad.asnumpy()[0, 0], expected)


def test_float16_sums_in_float32(ctx):
    """The mean of 64 x 64 cells that are 1.5; summed in float16 it would be 1.0."""
    x = mx.nd.full((1, 1, 64, 64), 1.5, ctx=ctx, dtype="float16")
    for op in OPERATORS:
        rois = mx.nd.array(op.rois([[0, 0, 0, 63, 63]]), ctx=ctx)
        assert op.function(x, rois, 1, 1.0).asscalar() == 1.5


def test_float16_gradients_add_up_in_float32(ctx):
    """4096 shares of 1 on one cell; added in float16 they would stop at 2048."""
    x = mx.nd.zeros((1, 1, 2, 2), ctx=ctx, dtype="float16")
    rois = mx.nd.array([[0, 0, 0, 0, 0]] * 4096, ctx=ctx)
    for name in ("ROIPool", "PSROIPool"):
        x[:] = 1
        x.attach_grad()
        with autograd.record():
            out = getattr(gluon_roi.nd, name)(x, rois, 1, 1.0)
        out.backward()
        assert x.grad.asnumpy()[0, 0, 0, 0] == 4096


def test_more_rois_than_float16_counts(ctx):
    """Batch indices come from float32: image 2049 is not image 2048."""
    x = mx.nd.arange(2050, ctx=ctx).reshape((2050, 1, 1, 1)).astype("float64").tile((1, 1, 3, 3))
    for op in OPERATORS:
        rois = mx.nd.array(op.rois([[2049, 1, 1, 2, 2]]), ctx=ctx)
        assert op.function(x, rois, 1, 1.0).asscalar() == 2049


def test_tiny_maps(ctx):
    """Maps of one row, one column or one cell."""
    upright = np.array([[0, 0, 0, 3, 3], [0, -2, -2, 9, 9], [0, 1, 1, 1, 1]], "float32")
    for height, width in ((1, 1), (1, WIDTH), (HEIGHT, 1), (2, 2)):
        for op, arguments in ROWS:
            data, rois = map_of(op, arguments, "float32")[:1, :, :height, :width], op.rois(upright)
            out = run(op, data, rois, arguments, ctx)[0]
            expected = op.expected(data, rois, POOLED, SCALE, **arguments)
            assert_near(out, expected, PRECISION["float32"].forward)


def test_maps_without_cells(ctx):
    """H, W or the batch may be 0 under np_shape: zeros, or a named row, never a read."""
    with mx.util.np_shape():
        for op in OPERATORS:
            channels = op.channels(2, POOLED, {})
            call = op.function
            for shape in ((1, channels, 0, 5), (1, channels, 5, 0), (1, channels, 0, 0)):
                x = mx.nd.zeros(shape, ctx=ctx)
                x.attach_grad()
                with autograd.record():
                    roi = mx.nd.array(op.rois([[0, 0, 0, 1, 1]]), ctx=ctx)
                    out = call(x, roi, POOLED, SCALE)
                out.backward()
                assert (out.asnumpy() == 0).all() and x.grad.shape == shape
            x = mx.nd.zeros((0, channels, 5, 5), ctx=ctx)
            padding = mx.nd.array(op.rois([[-1, 0, 0, 1, 1]]), ctx=ctx)
            assert (call(x, padding, POOLED, SCALE).asnumpy() == 0).all()
            with pytest.raises(mx.MXNetError, match="expected an integer below 0"):
                call(x, padding + 1, POOLED, SCALE).wait_to_read()


@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_earlier_calls_do_not_change_wide_boxes(op, arguments, ctx):
    """Boxes so wide that coordinates round to whole cells: no tap reads what no call has packed."""
    pooled, height, width = (3, 5), 13, 29
    channels = op.channels(1, pooled, arguments)
    rng = np.random.RandomState(0)
    centre = rng.uniform(0, 29, (64, 2))
    half = 10 ** rng.uniform(6, 9, (64, 2)) * rng.choice([1, 1, 1, -1], (64, 2))
    boxes = np.hstack([centre - half, centre + half])
    boxes[0] = [-96368077.4, -10359542.9, 24092021.2, 5179813.23]
    ones = mx.nd.ones((1, channels, height, width), ctx=ctx)
    small = mx.nd.array(op.rois([[0, 0, 0, 28, 12]]), ctx=ctx)
    call = op.function
    for box in boxes:
        rois = mx.nd.array(op.rois([[0, *box]]), ctx=ctx)
        results = []
        for before in (0, np.nan):
            call(ones * before, small, pooled, 1.0, **arguments).wait_to_read()
            results.append(call(ones, rois, pooled, 1.0, **arguments).asnumpy())
        np.testing.assert_array_equal(*results)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [30, pytest.param(180, marks=pytest.mark.night)])
def test_nothing_crashes(rounds):
    """Hostile boxes, in a separate process: results or MXNetErrors, never a crash."""

    def run():
        sys.argv = ["", "0", str(rounds)]
        runpy.run_path(str(SCRIPTS / "hostile_calls.py"))

    status, shown, error = forked(run)
    assert status == 0 and shown.strip() == "alive", error[-2000:]


@pytest.mark.parametrize("op", OPERATORS, ids=row_id)
def test_calls_from_several_python_threads(op, ctx):
    """Calls with equal arguments share compiled calls, for any shapes; some are refused."""

    def call(count):
        if count == 0:
            with pytest.raises(mx.MXNetError, match="rois has shape"):
                run(op, feature_map(9), op.all_rois(SCALE)[:, :3], {}, ctx)
            return []
        return run(op, feature_map(9 * count), op.all_rois(SCALE)[: 2 * count], {}, ctx)

    counts = [0, 1, 2, 3, 4] * 20
    alone = {count: call(count) for count in set(counts)}
    with ThreadPoolExecutor(4) as pool:
        for count, results in zip(counts, pool.map(call, counts)):
            for got, expected in zip(results, alone[count]):
                np.testing.assert_array_equal(got, expected)
