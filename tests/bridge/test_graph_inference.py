# SPDX-License-Identifier: Apache-2.0
"""Shapes and types in graphs: inference, refusals, no RoIs, special memory, threads."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from in_graphs import HYBRIDIZE, POOLED, SCALE, SCRIPTS, channels_of, operators
from mxnet import autograd, gluon
from support.cases import feature_map

import gluon_roi


@pytest.mark.night
def test_a_program_exports_the_same_file_each_time():
    command = [sys.executable, str(SCRIPTS / "print_symbols.py")]
    runs = [subprocess.run(command, check=True, capture_output=True).stdout for _ in range(2)]
    assert runs[0] == runs[1] and len(runs[0]) > 1000


@operators
def test_infer_shape(op):
    x, rois, counts = mx.sym.var("data"), mx.sym.var("rois"), mx.sym.var("counts")
    symbol = op.function(x, rois, POOLED, SCALE)
    shape = (2, channels_of(op), 5, 5)
    box = op.coordinates
    assert symbol.infer_shape(data=shape, rois=(4, box + 1))[1] == [(4, 3, *POOLED)]
    assert symbol.infer_shape(data=shape, rois=(2, 7, box))[1] == [(14, 3, *POOLED)]
    counted = op.function(x, rois, POOLED, SCALE, rois_num=counts)
    shapes = {"data": shape, "rois": (4, box), "counts": (2,)}
    assert counted.infer_shape(**shapes)[1] == [(4, 3, *POOLED)]


@pytest.mark.night
@pytest.mark.parametrize("form", ["computed", "variable", "with parameters"])
def test_any_shapes_and_types_may_be_unknown(form):
    """Ours and MXNet's switched, in a process of its own: unknown or an error, never a crash.

    Nothing is bound without the shape of an input, and the error names it.
    """
    command = [sys.executable, str(SCRIPTS / "partial_shapes.py"), form]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout.endswith("alive\n"), done.stderr[-2000:]


@operators
def test_infer_shape_partial_never_fails(op):
    """Whatever is missing, the rest is inferred; without a rank MXNet 1.9.1 itself would crash."""
    x, rois, counts = mx.sym.var("data"), mx.sym.var("rois"), mx.sym.var("counts")
    shape = (2, channels_of(op), 5, 5)
    plain = op.function(x, rois, POOLED, SCALE)
    counted = op.function(x, rois, POOLED, SCALE, rois_num=counts)
    computed = op.function(mx.sym.relu(x), rois * 1, POOLED, SCALE)
    known: dict[str, tuple]
    for known, expected in (
        ({}, (0, 0)),
        ({"data": shape}, (0, 3)),
        ({"rois": (4, op.coordinates + 1)}, (4, 0)),
    ):
        for symbol in (plain, computed):
            assert symbol.infer_shape_partial(**known)[1] == [(*expected, *POOLED)]
            with mx.util.np_shape():
                rows, channels = (n or -1 for n in expected)
                bins = POOLED if channels > 0 else (-1, -1)
                assert symbol.infer_shape_partial(**known)[1] == [(rows, channels, *bins)]
            # Whatever stands behind the operator does not fail either.
            for inside in (False, True):
                with mx.util.np_shape(inside):
                    dense = mx.sym.FullyConnected(symbol, num_hidden=8, name="dense")
                    weight = 3 * POOLED[0] * POOLED[1] if expected[1] else -1 if inside else 0
                    assert dense.infer_shape_partial(**known)[0][2] == (8, weight)
                    after = mx.sym.Convolution(symbol, kernel=(1, 1), num_filter=8, name="after")
                    after.infer_shape_partial(**known)
    for known, expected in (
        ({}, (0, 0)),
        ({"rois": (4, op.coordinates)}, (4, 0)),
        ({"counts": (2,)}, (0, 0)),
        ({"data": shape}, (0, 3)),
    ):
        assert counted.infer_shape_partial(**known)[1] == [(*expected, *POOLED)]
    # A consumer sees a rank as well.
    after = mx.sym.Convolution(plain, kernel=(1, 1), num_filter=8, name="after")
    assert after.infer_shape_partial(data=shape)[0][2] == (8, 3, 1, 1)


def switched(operator, *names, **parameters):
    inputs = [mx.sym.relu(mx.sym.var(names[0])), *map(mx.sym.var, names[1:])]
    return gluon_roi.optimize(operator(*inputs, **parameters))


@pytest.mark.parametrize(
    "make, shape",
    [
        (lambda: gluon_roi.sym.BoxNMS(mx.sym.var("data")), ()),
        (lambda: gluon_roi.sym.BoxNMS(mx.sym.var("data") * 1), ()),
        (lambda: gluon_roi.sym.BoxIoU(mx.sym.var("lhs"), mx.sym.var("rhs")), ()),
        (lambda: switched(mx.sym.contrib.box_nms, "data"), ()),
        (
            lambda: switched(
                mx.sym.ROIPooling, "data", "rois", pooled_size=POOLED, spatial_scale=1.0
            ),
            (0, 0, *POOLED),
        ),
        (
            lambda: switched(
                mx.sym.contrib.DeformableConvolution,
                *("data", "offset", "weight"),
                kernel=(3, 3),
                num_filter=4,
                no_bias=True,
            ),
            (0, 4, 0, 0),
        ),
    ],
    ids=["BoxNMS", "computed", "BoxIoU", "box_nms", "ROIPooling", "DeformableConvolution"],
)
def test_infer_shape_partial_with_nothing_known(make, shape):
    """An open shape, as MXNet's operators give; () is one without a rank."""
    symbol = make()
    assert symbol.infer_shape_partial()[1] == [shape]
    # The input that tells a rank to MXNet is none of the caller's.
    assert set(symbol.list_arguments()) <= {"data", "rois", "offset", "weight", "lhs", "rhs"}


@operators
def test_infer_type(op):
    symbol = op.function(mx.sym.var("data"), mx.sym.var("rois"), POOLED, SCALE)
    for dtype, rois in (("float16", "float32"), ("float32", "float32"), ("float64", "float64")):
        types = symbol.infer_type(data=dtype)
        assert [np.dtype(t).name for t in types[0]] == [dtype, rois]
        assert np.dtype(types[1][0]).name == dtype


@operators
def test_no_rois_under_np_shape(op, ctx):
    """K = 0 gives (0, C, P, Q) and a gradient of zeros."""
    with mx.util.np_shape():
        x = mx.nd.array(feature_map(channels_of(op)), ctx=ctx)
        x.attach_grad()
        x.grad[:] = 99
        with autograd.record():
            empty = mx.nd.zeros((0, op.coordinates + 1), ctx=ctx)
            out = op.function(x, empty, POOLED, SCALE)
        assert out.shape == (0, 3, *POOLED)
        out.backward()
        assert (x.grad.asnumpy() == 0).all()


@pytest.mark.parametrize("mode", [*HYBRIDIZE, "block", "executor"])
@operators
def test_no_rois_outside_np_shape(op, mode, ctx):
    """An error from array code, which could do nothing with the result; the result from a graph.

    Neither harms what comes after it, inside or outside.
    """

    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x, rois):
            return op.of(F.gluon_roi)(F.relu(x), rois, POOLED, SCALE)

    with mx.util.np_shape():
        empty = mx.nd.zeros((0, op.coordinates + 1), ctx=ctx)
    x = mx.nd.array(feature_map(channels_of(op)), ctx=ctx)
    rois = mx.nd.array(op.all_rois(SCALE), ctx=ctx)
    net: Any = Net()
    if mode in ("imperative", "block"):
        net = op.block(POOLED, SCALE)
        net.hybridize(mode == "block")
    elif mode == "executor":
        symbol = net(mx.sym.var("x"), mx.sym.var("rois"))

        def net(x, rois):
            return symbol.bind(ctx, {"x": x, "rois": rois}).forward()[0]

    else:
        net.hybridize(**HYBRIDIZE[mode] or {})

    def without_rois():
        assert net(x, empty).asnumpy().shape == (0, 3, *POOLED)

    for _ in range(2):
        for _ in range(3):
            if mode in ("imperative", "block"):
                message = rf"rois has shape \(0, {op.coordinates + 1}\), expected at least one row,"
                with pytest.raises(mx.MXNetError, match=message):
                    without_rois()
            else:
                without_rois()
        with mx.util.np_shape():
            without_rois()
        assert np.isfinite(net(x, rois).asnumpy()).all()


@pytest.mark.parametrize("mode", ["imperative", "block"])
@operators
def test_refused_shapes(op, mode, ctx):
    """The same error each time, and nothing after it is harmed.

    A CachedOp of MXNet takes shapes that were refused for known ones the next time.
    """
    net = op.block(POOLED, SCALE)
    net.hybridize(mode == "block")
    x = mx.nd.array(feature_map(channels_of(op)), ctx=ctx)
    rois = mx.nd.array(op.all_rois(SCALE), ctx=ctx)
    for _ in range(2):
        for _ in range(4):
            with pytest.raises(mx.MXNetError, match=r"rois has shape \(2, 9\), expected \(K, "):
                net(x, mx.nd.ones((2, 9), ctx=ctx))
        assert np.isfinite(net(x, rois).asnumpy()).all()


@pytest.mark.parametrize("kind", ["cpu_pinned", "cpu_shared"])
@pytest.mark.parametrize("mode", HYBRIDIZE)
@operators
def test_special_memory_of_the_cpu(op, mode, kind):
    """Such as batches of a DataLoader with worker processes."""
    ctx = mx.Context(kind)
    x, rois = (mx.nd.array(a, ctx=ctx) for a in (feature_map(channels_of(op)), op.all_rois(SCALE)))
    pool = op.block(POOLED, SCALE)
    if (flags := HYBRIDIZE[mode]) is not None:
        pool.hybridize(**flags)
    results = []
    for a, b in ((x, rois), (x.as_in_context(mx.cpu()), rois.as_in_context(mx.cpu()))):
        a.attach_grad()
        with autograd.record():
            out = pool(a, b)
        out.backward()
        results.append((out.asnumpy(), a.grad.asnumpy(), pool(a, b).asnumpy()))
    for special, plain in zip(*results):
        np.testing.assert_array_equal(special, plain)


@pytest.mark.parametrize("prefix", [None, ""])
@operators
def test_symbols_in_other_threads(op, prefix):
    """MXNet's names belong to threads, and are made at first use."""

    def build():
        x, rois = mx.sym.var("data"), mx.sym.var("rois")
        symbols = [op.function(x, rois, POOLED, SCALE)]
        symbols.append(op.block(POOLED, SCALE, prefix=prefix)(x, rois))
        return [symbol.name for symbol in symbols]

    with ThreadPoolExecutor(1) as pool:
        names = pool.submit(build).result()
    assert names[0] == f"{op.name.lower()}0" and names[0] != names[1]
