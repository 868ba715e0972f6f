# SPDX-License-Identifier: Apache-2.0
"""Values and gradients of every operator against the NumPy reference, for every dtype."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd
from operators import BY_NAME, OPERATORS, ROWS
from support.cases import POOLED, PRECISION, SCALES, assert_near, blocks_of, feature_map, row_id

#: Of which the quick half keeps float32.
DTYPES = (
    "float32",
    pytest.param("float64", marks=pytest.mark.slow),
    pytest.param("float16", marks=pytest.mark.slow),
)
#: Channels and pooled sizes of gradients.
BACKWARD_BLOCKS = ((1, (1, 1)), (16, (2, 3)), (17, (7, 7)))
#: Those whose boxes have no angle, so that their corners limit what they read.
UPRIGHT = [op for op in OPERATORS if op.coordinates == 4]


def call(op, data, rois, pooled, scale, **arguments):
    return op.function(data, rois, pooled, scale, **arguments)


def gradients(op, data, rois, d_out, pooled, scale, **arguments):
    """(out, d_data, d_rois) of one recorded call on NDArrays."""
    data.attach_grad()
    rois.attach_grad()
    # What the operator leaves untouched shows.
    data.grad[:] = 99
    rois.grad[:] = 99
    with autograd.record():
        out = call(op, data, rois, pooled, scale, **arguments)
    out.backward(d_out)
    return out, data.grad, rois.grad


def both_passes(op, data, rois, d_out, pooled, scale, ctx, **arguments):
    """(out, d_data) of one recorded call, from and to NumPy."""
    x, r, slope = (mx.nd.array(a, ctx=ctx, dtype=a.dtype) for a in (data, rois, d_out))
    out, d_data, _ = gradients(op, x, r, slope, pooled, scale, **arguments)
    return out.asnumpy(), d_data.asnumpy()


def inputs(op, ctx, channels, pooled, scale, dtype, arguments, every=1):
    """Map and every n-th box, as arrays of NumPy and of MXNet."""
    data = feature_map(op.channels(channels, pooled, arguments), dtype)
    rois = op.all_rois(scale, "float64" if dtype == "float64" else "float32")[::every]
    return (
        data,
        rois,
        mx.nd.array(data, ctx=ctx, dtype=data.dtype),
        mx.nd.array(rois, ctx=ctx, dtype=rois.dtype),
    )


def sizes_by_day(blocks, op, arguments, dtype):
    """The sizes of a row by day: the rows of an operator share them in float32.

    Other types meet one size, in turn.
    """
    if dtype == "float32":
        rows = min(len(op.arguments), len(blocks))
        return blocks[op.arguments.index(arguments) % rows :: rows]
    turn = (ROWS.index((op, arguments)) + (dtype == "float16")) % len(blocks)
    return blocks[turn : turn + 1]


def boxes_by_day(pooled):
    """Every box has few bins by day, and every third box, some of each kind, has many."""
    return 3 if pooled[0] >= 7 else 1


def check_forward(op, arguments, dtype, ctx, blocks, boxes=lambda pooled: 1):
    for channels, pooled in blocks:
        scale = SCALES[channels % len(SCALES)]
        sizes = channels, pooled, scale, dtype, arguments
        data, rois, x, r = inputs(op, ctx, *sizes, boxes(pooled))
        expected = op.expected(data, rois, pooled, scale, **arguments)
        actual = call(op, x, r, pooled, scale, **arguments)
        assert actual.dtype == data.dtype
        assert_near(actual, expected, PRECISION[dtype].forward)


def check_backward(op, arguments, dtype, ctx, blocks, boxes=lambda pooled: 1):
    for channels, pooled in blocks:
        scale = SCALES[channels % len(SCALES)]
        sizes = channels, pooled, scale, dtype, arguments
        data, rois, x, r = inputs(op, ctx, *sizes, boxes(pooled))
        more = {**arguments, "rois_grad": True} if op.rois_grad else arguments
        shape = op.expected(data[:, :, :1, :1], rois, pooled, scale, **arguments).shape
        d_out = np.random.RandomState(1).randn(*shape).astype(dtype)
        d_data, d_rois = op.expected_gradients(d_out, data, rois, pooled, scale, **arguments)
        _, actual, actual_rois = gradients(
            op, x, r, mx.nd.array(d_out, ctx=ctx, dtype=dtype), pooled, scale, **more
        )
        assert actual.dtype == data.dtype
        assert actual_rois.dtype == rois.dtype
        tolerance = PRECISION[dtype].backward
        assert_near(actual, d_data, tolerance * max(1, np.abs(d_data).max()))
        assert_near(actual_rois, d_rois, tolerance * max(1, np.abs(d_rois).max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_forward(op, arguments, dtype, ctx):
    blocks = sizes_by_day(blocks_of(op), op, arguments, dtype)
    check_forward(op, arguments, dtype, ctx, blocks, boxes_by_day)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_backward(op, arguments, dtype, ctx):
    blocks = sizes_by_day(BACKWARD_BLOCKS, op, arguments, dtype)
    check_backward(op, arguments, dtype, ctx, blocks, boxes_by_day)


@pytest.mark.night
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_all_sizes(op, arguments, dtype, ctx):
    check_forward(op, arguments, dtype, ctx, blocks_of(op))
    check_backward(op, arguments, dtype, ctx, BACKWARD_BLOCKS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name, channels, pooled, group",
    [
        ("PSROIPool", 17, (2, 9), None),
        ("PSROIPool", 5, (3, 20), (1, 10)),
        ("PSROIPool", 4, (2, 3), (1, 11)),  # groups without a bin
        ("PSROIPool", 1, (1, 12), None),
        ("PSROIAlign", 18, (1, 17), None),
        ("PSROIAlign", 2, (2, 9), None),
    ],
)
def test_wide_groups(name, channels, pooled, group, dtype, ctx):
    """More groups in a row than a task takes at a time, for full and for partial channel blocks."""
    op = BY_NAME[name]
    arguments = {} if group is None else {"group_size": group}
    data = feature_map(channels * np.prod(group or pooled), dtype)
    rois = op.all_rois(1 / 4, "float64" if dtype == "float64" else "float32")
    expected = op.expected(data, rois, pooled, 1 / 4, **arguments)
    d_out = np.random.RandomState(1).randn(*expected.shape).astype(dtype)
    d_data, _ = op.expected_gradients(d_out, data, rois, pooled, 1 / 4, **arguments)
    out, actual = both_passes(op, data, rois, d_out, pooled, 1 / 4, ctx, **arguments)
    assert_near(out, expected, PRECISION[dtype].forward)
    assert_near(actual, d_data, PRECISION[dtype].backward * max(1, np.abs(d_data).max()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.name)
def test_parts_of_the_rois(op, dtype, ctx):
    """Tables of a part of the RoIs at a time, where the maps are small: the same bytes.

    With many more images, which no RoI is on, the maps are large enough for all at once.
    """
    pooled, scale = (2, 3), 1 / 16
    data = feature_map(op.channels(4, pooled, {}), dtype)
    images = len(data)
    rois = np.tile(op.all_rois(scale, "float64" if dtype == "float64" else "float32"), (8, 1))
    rois = np.random.RandomState(4).permutation(rois)
    more = np.concatenate([data, np.ones((160, *data.shape[1:]), dtype)])
    d_out = np.random.RandomState(5).randn(len(rois), 4, *pooled).astype(dtype)

    out, d_data = both_passes(op, data, rois, d_out, pooled, scale, ctx)
    expected, d_expected = both_passes(op, more, rois, d_out, pooled, scale, ctx)
    assert out.tobytes() == expected.tobytes()
    assert d_data.tobytes() == d_expected[:images].tobytes()
    assert not d_expected[images:].any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", UPRIGHT, ids=lambda op: op.name)
def test_columns_that_no_roi_reaches(op, dtype, ctx):
    """The same bytes on a wider map, of which fewer rows fit the cache at a time."""
    pooled, scale = (3, 2), 1 / 2
    random = np.random.RandomState(6)
    data = random.randn(2, op.channels(3, pooled, {}), 160, 40).astype(dtype)
    wider = np.concatenate([data, np.ones((*data.shape[:3], 600), dtype)], axis=3)
    x1, y1 = random.uniform(0, 40, 100), random.uniform(-20, 330, 100)
    sides = random.uniform(2, 36, 100), random.uniform(2, 200, 100)
    rois = np.stack([random.randint(0, 2, 100), x1, y1, x1 + sides[0], y1 + sides[1]], axis=1)
    d_out = random.randn(100, 3, *pooled).astype(dtype)

    out, d_data = both_passes(op, data, rois, d_out, pooled, scale, ctx)
    expected, d_expected = both_passes(op, wider, rois, d_out, pooled, scale, ctx)
    assert out.tobytes() == expected.tobytes()
    assert d_data.tobytes() == d_expected[..., :40].tobytes()
    assert not d_expected[..., 40:].any()


@pytest.mark.parametrize("op, arguments", [row for row in ROWS if row[0].linear], ids=row_id)
def test_adjoint(op, arguments, ctx):
    """<op(x), g> = <x, op^T(g)> for the operators that are linear in data."""
    for pooled in POOLED:
        data, rois, x, r = inputs(op, ctx, 5, pooled, 1 / 16, "float64", arguments)
        with autograd.predict_mode():
            shape = call(op, x, r, pooled, 1 / 16, **arguments).shape
        d_out = mx.nd.array(np.random.RandomState(2).randn(*shape), ctx=ctx, dtype="float64")
        out, d_data, _ = gradients(op, x, r, d_out, pooled, 1 / 16, **arguments)
        left = (out * d_out).sum().asscalar()
        right = (x * d_data).sum().asscalar()
        assert left == pytest.approx(right, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_numeric_gradient(op, arguments, ctx):
    """Central differences of data, one direction at a time, in float64."""
    pooled, scale = (2, 3), 0.3
    data, rois, x, r = inputs(op, ctx, 2, pooled, scale, "float64", arguments)
    out = call(op, x, r, pooled, scale, **arguments)
    d_out = mx.nd.array(np.random.RandomState(3).randn(*out.shape), ctx=ctx, dtype="float64")
    _, d_data, _ = gradients(op, x, r, d_out, pooled, scale, **arguments)
    step = 1e-6
    for seed in range(5):
        direction = np.random.RandomState(seed).randn(*data.shape)
        ends = [
            call(
                op,
                mx.nd.array(data + sign * step * direction, ctx=ctx, dtype="float64"),
                r,
                pooled,
                scale,
                **arguments,
            )
            for sign in (1, -1)
        ]
        numeric = ((ends[0] - ends[1]) * d_out).sum().asscalar() / (2 * step)
        analytic = (d_data.asnumpy() * direction).sum()
        assert numeric == pytest.approx(analytic, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("op, arguments", [row for row in ROWS if row[0].rois_grad], ids=row_id)
def test_numeric_roi_gradient(op, arguments, ctx):
    """Central differences of the box, in float64, away from the edges of cells."""
    pooled, scale, step = (2, 3), 0.5, 1e-6
    data = feature_map(op.channels(3, pooled, arguments), "float64")
    rng = np.random.RandomState(4)
    low = rng.uniform((-2, -2), (20, 14), (12, 2))
    rois = np.hstack([np.arange(12)[:, None] % 2, low, low + rng.uniform(0.5, 18, (12, 2))])
    rois = op.rois(rois)
    x = mx.nd.array(data, ctx=ctx, dtype="float64")
    out = call(op, x, mx.nd.array(rois, ctx=ctx, dtype="float64"), pooled, scale, **arguments)
    d_out = rng.randn(*out.shape)
    _, _, d_rois = gradients(
        op,
        x,
        mx.nd.array(rois, ctx=ctx, dtype="float64"),
        mx.nd.array(d_out, ctx=ctx, dtype="float64"),
        pooled,
        scale,
        rois_grad=True,
        **arguments,
    )
    d_rois = d_rois.asnumpy()
    assert (d_rois[:, 0] == 0).all()
    for column in range(1, rois.shape[1]):
        ends = []
        for sign in (1, -1):
            moved = rois.copy()
            moved[:, column] += sign * step
            moved = mx.nd.array(moved, ctx=ctx, dtype="float64")
            ends.append(call(op, x, moved, pooled, scale, **arguments).asnumpy())
        numeric = ((ends[0] - ends[1]) * d_out).sum(axis=(1, 2, 3)) / (2 * step)
        np.testing.assert_allclose(numeric, d_rois[:, column], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", OPERATORS, ids=row_id)
def test_a_channel_alone_has_the_same_bytes(op, ctx):
    """Channels are computed in blocks or one by one, whichever is faster."""
    pooled, scale, channels = (3, 2), 1.0, 18
    group = op.channels(1, pooled, {})
    data = feature_map(op.channels(channels, pooled, {}))
    rois = np.vstack([op.all_rois(scale)] * 4)
    d_out = np.random.RandomState(1).randn(len(rois), channels, *pooled)

    def arrays(c):
        """Output and data gradient of the channels in the slice c."""
        maps = slice(c.start * group, c.stop * group)
        x, r = mx.nd.array(data[:, maps], ctx=ctx), mx.nd.array(rois, ctx=ctx)
        out, d_data, _ = gradients(
            op, x, r, mx.nd.array(d_out[:, c], ctx=ctx, dtype="float32"), pooled, scale
        )
        return out.asnumpy(), d_data.asnumpy()

    whole = arrays(slice(0, channels))
    for c in (0, 15, 17):
        out, d_data = arrays(slice(c, c + 1))
        assert out.tobytes() == whole[0][:, c : c + 1].tobytes()
        assert d_data.tobytes() == whole[1][:, c * group : (c + 1) * group].tobytes()


@pytest.mark.parametrize("op", OPERATORS, ids=row_id)
def test_roi_forms(op, ctx):
    """(K, 5), (N, R, 4), (K, 4) with rois_num and float16 rois give the same rows and gradients."""
    boxes = np.array(
        [
            [[1, 2, 9, 8], [0, 0, 17, 12], [3, 3, 4, 4]],
            [[-3, -3, 5, 5], [8, 2, 12, 9], [6, 1, 9, 3]],
        ]
    )
    pooled, arguments = (2, 3), {"rois_grad": True} if op.rois_grad else {}
    data = feature_map(op.channels(3, pooled, {}))
    x = mx.nd.array(data, ctx=ctx)
    index = np.repeat(np.arange(2), 3)[:, None]
    rows = op.rois(np.hstack([index, boxes.reshape(6, 4)]))
    boxes = rows[:, 1:].reshape(2, 3, op.coordinates)
    rows = mx.nd.array(rows, ctx=ctx)
    d_out = mx.nd.array(np.random.RandomState(5).randn(6, 3, *pooled), ctx=ctx)
    out, d_data, d_rois = gradients(op, x, rows, d_out, pooled, 0.9, **arguments)
    d_data, d_rois = d_data.copy(), d_rois[:, 1:].copy()

    batched = mx.nd.array(boxes, ctx=ctx)
    same = gradients(op, x, batched, d_out, pooled, 0.9, **arguments)
    for a, b in zip(
        (out, d_data, d_rois), (same[0], same[1], same[2].reshape((6, op.coordinates)))
    ):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())

    flat = mx.nd.array(boxes.reshape(6, op.coordinates), ctx=ctx)
    for dtype in ("int32", "int64", "float32"):
        counts = mx.nd.array([3, 3], ctx=ctx, dtype=dtype)
        same = gradients(op, x, flat, d_out, pooled, 0.9, rois_num=counts, **arguments)
        for a, b in zip((out, d_data, d_rois), same):
            np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())

    half = call(op, x, rows.astype("float16"), pooled, 0.9)
    np.testing.assert_array_equal(half.asnumpy(), out.asnumpy())


@pytest.mark.parametrize("op", OPERATORS, ids=row_id)
def test_block_equals_function(op, ctx):
    """A block, its function, positional and keyword arguments and out= are one operator."""
    pooled = (2, 3)
    x = mx.nd.array(feature_map(op.channels(3, pooled, {})), ctx=ctx)
    rois = mx.nd.array(op.all_rois(0.3), ctx=ctx)
    expected = call(op, x, rois, pooled, 0.3).asnumpy()
    function = op.function
    block = op.block(pooled_size=pooled, spatial_scale=0.3)
    out = mx.nd.full(expected.shape, 99, ctx=ctx)
    function(data=x, rois=rois, pooled_size=pooled, spatial_scale=0.3, out=out)
    for actual in (block(x, rois), out, op.of(mx.nd.gluon_roi)(x, rois, pooled, 0.3)):
        np.testing.assert_array_equal(actual.asnumpy(), expected)
    assert repr(block).startswith(f"{op.name}(pooled_size=(2, 3), spatial_scale=")
    assert len(block.collect_params().keys()) == 0
