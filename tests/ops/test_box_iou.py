# SPDX-License-Identifier: Apache-2.0
"""BoxIoU: MXNet's own, exact arithmetic, public reports, NaN, symbols, errors, C."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from support.overlapped import CALLS
from support.overlaps import HOSTILE, exact_overlap, random_pairs

import gluon_roi
from gluon_roi import reference
from testing import c_api

box_iou: Any = gluon_roi.nd.BoxIoU
DTYPES = ("float32", "float64", "float16")
#: The type in which upright boxes of each type are computed.
GEOMETRY = {"float16": "float32"}


def overlaps(one, other, dtype="float64", **parameters):
    """BoxIoU of rotated boxes, row by row."""
    arrays = (mx.nd.array(np.atleast_2d(a), dtype=dtype) for a in (one, other))
    return box_iou(*arrays, format="rotated", aligned=True, **parameters).asnumpy()


# ---- Values --------------------------------------------------------------------------------------


def test_worked_numbers(ctx):
    def call(lhs, rhs, **parameters):
        arrays = (mx.nd.array([a], ctx=ctx, dtype="float64") for a in (lhs, rhs))
        return box_iou(*arrays, **parameters).asnumpy().tolist()

    assert call([0, 0, 4, 4], [0, 0, 4, 5]) == [[0.8]]
    assert call([2, 2, 4, 4], [2, 2.5, 4, 5], format="center") == [[0.8]]
    crossed = [0, 0, 4, 2, 0], [0, 0, 4, 2, 90]
    assert call(*crossed, format="rotated") == [[1 / 3]]
    assert call(*crossed, format="rotated", mode="iof") == [[0.5]]
    assert call(*crossed, format="rotated", aligned=True) == [1 / 3]
    diamond = [0, 0, 2, 2, 0], [0, 0, 2**0.5, 2**0.5, 45]  # its corners touch the sides
    assert call(*diamond, format="rotated")[0][0] == pytest.approx(0.5, abs=1e-15)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_is_the_reference(name, dtype, ctx):
    call = CALLS[name]
    arrays = [mx.nd.array(a, ctx=ctx, dtype=dtype) for a in call.arrays(dtype)]
    parameters: dict[str, Any] = {**call.parameters, "geometry": GEOMETRY.get(dtype, dtype)}
    expected = reference.box_iou(*arrays, **parameters)
    out = box_iou(*arrays, **call.parameters)
    assert out.shape == call.out and out.dtype == np.dtype(dtype)
    tolerance = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(out.asnumpy(), expected, tolerance, tolerance)
    if call.parameters.get("format") != "rotated":
        np.testing.assert_array_equal(out.asnumpy(), expected.astype(dtype))
    if name != "one":
        assert 0.02 < (expected > 0).mean() < 0.98


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", ["corner", "center"])
def test_is_mxnets(form, dtype, mxnet_cpu):
    """The same bytes wherever its result is one from 0 to 1."""
    rng = np.random.RandomState(0)
    for scale in (1, 1e-18, 1e6, 1e15, 1e-25):
        lhs, rhs = (rng.randint(-9, 30, (n, 4)) * scale for n in (40, 70))
        lhs[:20, 2:] = np.abs(lhs[:20, 2:])
        lhs[5:9] = rhs[5:9]
        arrays = [mx.nd.array(a, dtype=dtype) for a in (lhs, rhs)]
        theirs = mx.nd.contrib.box_iou(*arrays, format=form).asnumpy()
        ours = box_iou(*arrays, format=form).asnumpy()
        sound = (theirs >= 0) & (theirs <= 1)
        assert sound.mean() > 0.9
        assert ours[sound].tobytes() == theirs[sound].tobytes()
        assert ((ours >= 0) & (ours <= 1)).all()


@pytest.mark.parametrize("form", ["corner", "center"])
def test_switch(form, mxnet_cpu):
    """optimize and replace_builtins take contrib.box_iou: the same bytes, and gradients stay."""
    arrays = [mx.nd.array(a) for a in CALLS[form].arrays("float32")]
    expected = mx.nd.contrib.box_iou(*arrays, format=form).asnumpy()
    theirs = mx.sym.contrib.box_iou(mx.sym.var("lhs"), mx.sym.var("rhs"), format=form)
    symbol = gluon_roi.optimize(theirs)
    counts = {name: uses for name, uses in gluon_roi.count(symbol).items() if uses}
    assert counts == {"_gluon_roi_BoxIoU": 1}
    (out,) = symbol.bind(mx.cpu(), dict(zip(("lhs", "rhs"), arrays))).forward()
    assert out.asnumpy().tobytes() == expected.tobytes()
    with pytest.raises(ValueError, match="the symbol has no RoI operator"):
        gluon_roi.optimize(theirs, rois_only=True)
    arrays[0].attach_grad("add")
    arrays[0].grad[:] = 3
    with gluon_roi.replace_builtins(), autograd.record():
        out = mx.nd.contrib.box_iou(*arrays, format=form)
    out.backward()
    assert out.asnumpy().tobytes() == expected.tobytes()
    assert (arrays[0].grad == 3).asnumpy().all()


# ---- Exact arithmetic ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exact_arithmetic(dtype):
    """Random and hostile pairs: the error, the order of the boxes, the range."""
    one, other = random_pairs(0, 900, dtype)
    expected = np.array([exact_overlap(*pair) for pair in zip(one.tolist(), other.tolist())])
    got, swapped = overlaps(one, other, dtype), overlaps(other, one, dtype)
    rounding = 2.0**-24 if dtype == "float32" else 0
    np.testing.assert_allclose(got, expected, 0, 1e-9 + rounding)
    assert got.tobytes() == swapped.tobytes()
    assert got.min() >= 0 and got.max() <= 1
    kinds = len(HOSTILE) + 1
    assert (got[0::kinds] == 1).all()  # a box with itself


@pytest.mark.night
def test_exact_arithmetic_of_many_pairs():
    """A new seed in each run, which is printed."""
    script = Path(__file__).parents[1] / "scripts/exact_overlaps.py"
    command = [sys.executable, str(script), "1000000"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=10000)
    print(done.stdout)
    assert done.returncode == 0 and "seed" in done.stdout, done.stdout


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_box_with_itself(dtype):
    """Exactly 1, however the box is written."""
    rng = np.random.RandomState(0)
    boxes = np.round(8 * rng.uniform(1, 100, (500, 5))) / 8
    boxes[:, 0] += 512
    boxes[:, 4] = rng.randint(-360, 360, 500)
    exchanged = boxes[:, [0, 1, 3, 2, 4]]
    turned = {0: boxes, 90: exchanged, -90: exchanged, 180: boxes, 360: boxes, -1080: boxes}
    for degrees, same in turned.items():
        same = same + np.array([0, 0, 0, 0, degrees])
        assert (overlaps(boxes, same, dtype) == 1).all(), degrees


@pytest.mark.parametrize("ratio", [1e6, 1e11, 1e13])
def test_four_ways_to_write_a_box(ratio):
    """The same bytes, also of boxes so thin that the last digit of an angle counts."""
    rng = np.random.RandomState(0)
    one, other = rng.uniform(1, 2, (2, 300, 5))
    for boxes in (one, other):
        boxes[:, 2] *= ratio
        # Multiples of 1/8 do not round when turned.
        boxes[:, 4] = rng.randint(-720, 720, 300) / 8
    other[:150, 4] = one[:150, 4] + rng.randint(-1, 2, 150) / 8
    expected = overlaps(one, other)
    assert (expected > 0).all()
    exchanged = other[:, [0, 1, 3, 2, 4]]
    for degrees, same in {90: exchanged, -90: exchanged, 180: other, -180: other}.items():
        np.testing.assert_array_equal(overlaps(one, same + [0, 0, 0, 0, degrees]), expected)


#: Boxes of public reports on detectron2, mmcv (whose angles are clockwise radians) and others, and
#: their exact overlaps. Reported were 0.2655, 0.6002, 0.5848, 0.3333, -12128368, 6.0509, 1.35,
#: 0.3333 and 371957. detectron2's 1207 in simpler numbers, 1266 and "large, close" are from its
#: tests.
REPORTS: dict[str, tuple] = {
    "detectron2 4961": (
        [1010.5, 860.00012207, 12.20655537, 48.82622528, 55.00798035],
        [1022, 870.49993896, 10.81665134, 43.26660919, 56.30992889],
        0.3688,  # counter-clockwise, as documented there; clockwise it would be 0
    ),
    "detectron2 1207": ([160, 153, 230, 23, -37], [190, 127, 80, 21, -46], 0.0),
    "detectron2 1207, simpler": ([3, 3, 8, 2, -45], [6, 0, 8, 2, -45], 0.0),
    "detectron2 1266": (
        [160, 153, 230, 23, -37],
        [
            -1.117407639806935e17,
            1.3858420478349148e18,
            1000.0000610351562,
            1000.0000610351562,
            1612,
        ],
        0.0,
    ),
    "detectron2, large, close": (
        [299.5, 417.370422, 600, 364.259186, 27.1828],
        [299.5, 417.370422, 600, 364.259155, 27.1828],
        364.259155 / 364.259186,
    ),
    "detectron2 2154": (
        [296.6620178222656, 458.73883056640625, 23.515729904174805, 47.677001953125, 0.08795166],
        [296.66201, 458.73882000000003, 23.51573, 47.67702, 0.087951],
        0.999998,
    ),
    "detectron2 2167": (
        [2563.744628906, 1436.790161132, 2174.703369140, 214.095001220, 115.118347167],
        [2563.744628906, 1436.790283203, 2174.702880859, 214.094955444, 115.118354797],
        0.999999,
    ),
    "mmcv 2621": (
        [0, 0, 180.6422271729, 136.3633728027, -np.degrees(0.9559648633)],
        [0, 0, 180.6422271729, 136.3633728027, -np.degrees(0.9559648633)],
        1.0,
    ),
    "mmcv 2952": (
        [135.07, 406.72, 7.9445e-7, 1971.1, -np.degrees(1.7708)],
        [151.0080, 436.2173, 302.0159, 313.7347, -np.degrees(3.1184)],
        0.0,
    ),
    "mmcv 2952, longer": (
        [135.07, 406.72, 7.9445e-7, 1.9711e10, -np.degrees(1.7708)],
        [151.0080, 436.2173, 302.0159, 313.7347, -np.degrees(3.1184)],
        0.0,
    ),
    "mmcv 3311": ([1, 1, 3, 4, -np.degrees(0.5)], [0, 2, 2, 5, -np.degrees(0.3)], 0.3708),
    "RRPN 44": ([46.83, 44.03, 3.9, 1.63, 0], [46.83, 44.03, 1.63, 3.9, np.degrees(1.45)], 0.8548),
    "rotated_maskrcnn 9": (
        [50.7325, 50.7325, 100.7325, 300.7325, -3.4],
        [50.7325, 50.7325, 100.7325, 300.7325, -3.4],
        1.0,
    ),
    "rotated_maskrcnn 46": (
        [672.4067, 290.7776, 791.0275, 38.9333, 34.1454],
        [672.4067, 290.7776, 791.0275, 38.9333, 34.1454],
        1.0,
    ),
    "Rotated_IoU 39": ([4, 5, 8, 10, 0], [3, 4, 6, 8, 0], 0.6),
    "mmrotate 26": (
        [903.34, 1034.4, 1.81e-7, 1e-7, -np.degrees(-0.312)],
        [848.87, 699.89, 468.54, 307.43, -np.degrees(-1.4008)],
        0.0,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("report", REPORTS)
def test_public_reports(report, dtype):
    one, other = (np.array(box, dtype) for box in REPORTS[report][:2])
    expected = exact_overlap(one, other)
    assert expected == pytest.approx(REPORTS[report][2], abs=5e-5)
    assert overlaps(one, other, dtype)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_growing_box(dtype):
    """mmcv 2621, a comment: the overlap jumped while one side of a box grew by 20."""
    box = np.array([339.15, 230.95, 308.218364151133, 33.12346705650146, 0])
    box[4] = -np.degrees(1.5331517813945545)
    others = np.repeat(box[None], 41, 0)
    others[:, 2] += np.arange(-20, 21)
    ratio = others[:, 2] / box[2]  # one box contains the other
    expected = np.minimum(ratio, 1 / ratio)
    got = overlaps(np.repeat(box[None], 41, 0), others, dtype)
    np.testing.assert_allclose(got, expected, 0, 1e-6)


# ---- NaN, infinity, empty boxes ------------------------------------------------------------------

NUMBERS = [np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, -3, 7.5, 1e20, -1e20, 3e38, 1e8, 1 / 3]


@pytest.mark.parametrize("mode", ["iou", "iof"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["corner", "center", "rotated"])
def test_hostile_numbers(form, dtype, mode):
    """Always from 0 to 1; 0 with an empty, inverted, infinite or not-a-number box."""
    rng = np.random.RandomState(1)
    width = 5 if form == "rotated" else 4
    with np.errstate(over="ignore"):
        lhs, rhs = (rng.choice(NUMBERS, (n, width)).astype(dtype) for n in (60, 200))
    out = box_iou(*(mx.nd.array(a, dtype=dtype) for a in (lhs, rhs)), format=form, mode=mode)
    out = out.asnumpy()
    assert ((out >= 0) & (out <= 1)).all()
    assert (out[np.isnan(lhs).any(1)] == 0).all() and (out[:, np.isnan(rhs).any(1)] == 0).all()
    if form != "corner":
        assert (out[~(lhs[:, 2:4] > 0).all(1)] == 0).all()
        assert (out[:, np.isinf(rhs[:, 2:4]).any(1)] == 0).all() or mode == "iof"
    if form == "rotated":
        assert (out[np.isinf(lhs[:, 4])] == 0).all()


# ---- Gradients, graphs, arrays -------------------------------------------------------------------


def test_has_no_gradient(ctx):
    """Not even where gradients of other users are added."""
    arrays = [mx.nd.array(a, ctx=ctx) for a in CALLS["rotated"].arrays("float32")]
    for array in arrays:
        array.attach_grad("add")
    with autograd.record():
        out = box_iou(*arrays, format="rotated").sum() + sum((2 * a).sum() for a in arrays)
    out.backward()
    for array in arrays:
        assert (array.grad == 2).asnumpy().all()


class Network(gluon.HybridBlock):
    def hybrid_forward(self, F, lhs, rhs):
        return F.gluon_roi.BoxIoU(F.relu(lhs), rhs, format="rotated").max(axis=1)


@pytest.mark.parametrize("static_alloc", [False, True])
def test_networks(static_alloc, ctx, tmp_path):
    arrays = [
        mx.nd.array(np.abs(a), ctx=ctx) for a in CALLS["first rotated area"].arrays("float32")
    ]
    net = Network()
    expected = net(*arrays).asnumpy()
    net.hybridize(static_alloc=static_alloc)
    for _ in range(2):
        np.testing.assert_array_equal(net(*arrays).asnumpy(), expected)
    net.export(str(tmp_path / "net"))
    loaded = gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data0", "data1"])
    np.testing.assert_array_equal(loaded(*arrays).asnumpy(), expected)
    block = gluon_roi.BoxIoU("rotated")
    block.hybridize(static_alloc=static_alloc)
    np.testing.assert_array_equal(block(*arrays).max(axis=1).asnumpy(), expected)


@pytest.mark.parametrize("lhs", [(3,), (2, 3), (2, 1, 2, 3), (1, 2, 1, 1, 3)])
@pytest.mark.parametrize("rhs", [(2,), (2, 2, 2, 1, 2)])
def test_leading_dimensions(lhs, rhs, ctx):
    """Any number; shapes of symbols follow, also in part."""
    one, other = (
        mx.nd.array(np.random.RandomState(n).uniform(1, 9, (*lead, 5)), ctx=ctx)
        for n, lead in enumerate((lhs, rhs))
    )
    expected = box_iou(one.reshape((-1, 5)), other.reshape((-1, 5)), format="rotated")
    out = box_iou(one, other, format="rotated")
    assert out.shape == lhs + rhs
    np.testing.assert_array_equal(out.asnumpy().ravel(), expected.asnumpy().ravel())
    symbol = gluon_roi.sym.BoxIoU(mx.sym.var("a"), mx.sym.var("b"), format="rotated")
    for inside in (False, True):
        with mx.util.np_shape(inside):
            assert symbol.infer_shape(a=one.shape, b=other.shape)[1] == [lhs + rhs]
            unknown = -1 if inside else 0
            partial = symbol.infer_shape_partial(a=(unknown, *one.shape[1:]), b=other.shape)[1]
            assert partial[0][1:] == (lhs + rhs)[1:]
    (bound,) = symbol.bind(ctx, {"a": one, "b": other}).forward()
    np.testing.assert_array_equal(bound.asnumpy(), out.asnumpy())


def test_numpy_arrays_and_out(ctx):
    arrays = [mx.nd.array(a, ctx=ctx) for a in CALLS["corner"].arrays("float32")]
    expected = box_iou(*arrays).asnumpy()
    out = mx.npx.gluon_roi.BoxIoU(*(a.as_np_ndarray() for a in arrays))
    assert isinstance(out, mx.np.ndarray)
    np.testing.assert_array_equal(out.asnumpy(), expected)
    for _ in range(3):
        target = mx.nd.zeros(expected.shape, ctx=ctx)
        assert box_iou(*arrays, out=target) is target
        np.testing.assert_array_equal(target.asnumpy(), expected)


def test_empty_arrays(ctx):
    with mx.util.np_shape():
        for shapes in (((0, 5), (3, 5)), ((3, 5), (0, 5)), ((2, 0, 5), (0, 5))):
            arrays = [mx.nd.zeros(shape, ctx=ctx) for shape in shapes]
            out = box_iou(*arrays, format="rotated")
            assert out.shape == shapes[0][:-1] + shapes[1][:-1]


# ---- Errors --------------------------------------------------------------------------------------

WRONG: dict[str, tuple[tuple, tuple, dict, str]] = {
    "rank": ((4,), (3, 4), {}, "lhs has shape (4), expected at least 2 dimensions (..., 4)"),
    "columns": ((3, 5), (3, 4), {}, "lhs has 5 numbers in each row, expected 4 in the formats"),
    "rotated": (
        (3, 5),
        (3, 4),
        {"format": "rotated"},
        "rhs has 4 numbers in each row, expected 5: centre x, y, width, height, angle",
    ),
    "format": ((3, 4), (3, 4), {"format": "xywh"}, "argument format: expected 'corner' or 'cen"),
    "mode": ((3, 4), (3, 4), {"mode": "giou"}, "argument mode: expected 'iou' or 'iof', got"),
    "aligned": ((3, 4), (2, 4), {"aligned": True}, "rhs has 2 boxes, expected 3 as lhs, because"),
    "unknown": ((3, 4), (2, 4), {"aligned": "x"}, "argument aligned: expected True or False, got"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors(wrong, ctx):
    lhs, rhs, arguments, message = WRONG[wrong]
    arrays = (mx.nd.zeros(shape, ctx=ctx) for shape in (lhs, rhs))
    with pytest.raises(mx.MXNetError, match=f"^BoxIoU: {re.escape(message)}"):
        box_iou(*arrays, **arguments).wait_to_read()


def test_wrong_types(ctx):
    lhs, rhs = mx.nd.zeros((2, 4), ctx=ctx), mx.nd.zeros((2, 4), ctx=ctx, dtype="float64")
    with pytest.raises(mx.MXNetError, match="BoxIoU: rhs has dtype float64, expected float32 as l"):
        box_iou(lhs, rhs).wait_to_read()
    with pytest.raises(TypeError, match="BoxIoU: argument rhs: expected a mxnet.ndarray"):
        box_iou(lhs, np.zeros((2, 4)))


# ---- The C interface -----------------------------------------------------------------------------

LIBRARY = c_api.Library(gluon_roi.library.PATH)
CPU = c_api.Device(c_api.CPU)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_c_interface(name, dtype):
    """The same bytes as through MXNet; gradients are zeros."""
    call = CALLS[name]
    arrays = call.arrays(dtype)
    expected = box_iou(*(mx.nd.array(a, dtype=dtype) for a in arrays), **call.parameters)
    p = LIBRARY.operators["box_iou"].params_of(**call.parameters)
    out = np.full(call.out, 99, dtype)
    LIBRARY.forward("box_iou", p, c_api.tensors(*arrays), out, CPU)
    assert out.tobytes() == expected.asnumpy().tobytes()
    gradients = [np.full_like(a, 99) for a in arrays]
    LIBRARY.backward("box_iou", p, c_api.tensors(*arrays), out, gradients, CPU)
    assert all((gradient == 0).all() for gradient in gradients)


def test_c_interface_has_four_dimensions():
    p = LIBRARY.operators["box_iou"].params_of()
    inputs = c_api.tensors(np.zeros((1, 1, 1, 4), "f4"), np.zeros((1, 1, 4), "f4"))
    with pytest.raises(c_api.Error, match="BoxIoU: expected an output of at most 4 dimensions"):
        LIBRARY.forward("box_iou", p, inputs, np.zeros((1, 1, 1, 1), "f4"), CPU)
