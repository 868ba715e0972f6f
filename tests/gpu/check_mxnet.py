# SPDX-License-Identifier: Apache-2.0
"""The operators on mx.gpu(0) against the same calls on the CPU, forward and backward.

It uses none of MXNet's own kernels: arrays are copied from NumPy, head gradients are given, and
results are read back. So it also runs where MXNet's kernels do not (sm_89 and newer), as long as
MXNet's context, streams and dispatcher work.

    python tests/gpu/check_mxnet.py
"""

import sys
from pathlib import Path
from typing import Callable

import mxnet as mx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from cases import PRECISION, SCALES, feature_map, row_id  # noqa: E402
from operators import ROWS  # noqa: E402

POOLED = (2, 3)


def call(op, ctx, data, rois, d_out, scale, **arguments):
    """(out, d_data, d_rois) as NumPy arrays. Without d_out, (out,)."""
    x = mx.nd.array(data, ctx=ctx, dtype=data.dtype)
    r = mx.nd.array(rois, ctx=ctx, dtype=rois.dtype)
    # What the operator leaves untouched shows.
    gradients = [mx.nd.array(np.full(a.shape, 9), ctx=ctx, dtype=a.dtype) for a in (data, rois)]
    mx.autograd.mark_variables([x, r], gradients)
    with mx.autograd.record():
        out = op.function(x, r, POOLED, scale, **arguments)
    if d_out is None:
        return (out.asnumpy(),)
    out.backward(mx.nd.array(d_out, ctx=ctx, dtype=d_out.dtype))
    return tuple(array.asnumpy() for array in (out, *gradients))


def near(a, b, tolerance):
    scale = max(1.0, np.nanmax(np.abs(b.astype(np.float64)), initial=0.0))
    return np.allclose(
        a.astype(np.float64), b.astype(np.float64), tolerance, tolerance * scale, equal_nan=True
    )


def check_values(op, arguments, dtype):
    scale = SCALES[len(dtype) % len(SCALES)]
    data = feature_map(op.channels(17, POOLED, arguments), dtype)
    rois = op.all_rois(scale, "float64" if dtype == "float64" else "float32")
    if op.rois_grad:
        arguments = {**arguments, "rois_grad": True}
    shape = call(op, mx.cpu(), data, rois, None, scale, **arguments)[0].shape
    d_out = np.random.RandomState(1).randn(*shape).astype(dtype)
    host, device = (
        call(op, ctx, data, rois, d_out, scale, **arguments) for ctx in (mx.cpu(), mx.gpu(0))
    )
    again = call(op, mx.gpu(0), data, rois, d_out, scale, **arguments)
    assert near(device[0], host[0], PRECISION[dtype].forward), "out"
    assert near(device[1], host[1], PRECISION[dtype].backward), "d_data"
    assert near(device[2], host[2], PRECISION[dtype].backward), "d_rois"
    assert all(a.tobytes() == b.tobytes() for a, b in zip(device, again)), "not repeatable"


def check_forms(op):
    """Counts, boxes per image, a bad batch index and a static graph."""
    data = feature_map(op.channels(3, POOLED, {}))
    rows = np.array([[0, 1, 2, 9, 8], [0, 0, 0, 17, 12], [1, -3, -3, 5, 5], [1, 8, 2, 12, 9]])
    rows = op.rois(rows).astype("float32")
    boxes = rows[:, 1:].reshape(2, 2, op.coordinates)
    expected = call(op, mx.cpu(), data, rows, None, 0.9)[0]
    x = mx.nd.array(data, ctx=mx.gpu(0))
    function = op.function
    batched = function(x, mx.nd.array(boxes, ctx=mx.gpu(0)), POOLED, 0.9)
    counts = mx.nd.array([2, 2], ctx=mx.gpu(0), dtype="int32")
    flat = mx.nd.array(boxes.reshape(4, op.coordinates), ctx=mx.gpu(0))
    d_x = mx.nd.array(np.full(data.shape, 9), ctx=mx.gpu(0))
    mx.autograd.mark_variables([x], [d_x])
    with mx.autograd.record():
        counted = function(x, flat, POOLED, 0.9, rois_num=counts)
    counted.backward(mx.nd.array(np.ones(counted.shape), ctx=mx.gpu(0)))
    ones = np.ones(expected.shape, "float32")
    d_data = call(op, mx.cpu(), data, rows, ones, 0.9)[1]
    assert near(d_x.asnumpy(), d_data, PRECISION["float32"].backward)
    net = op.block(POOLED, 0.9)
    net.hybridize(static_alloc=True, static_shape=True)
    static = net(x, mx.nd.array(rows, ctx=mx.gpu(0)))
    for out in (batched, counted, static):
        assert near(out.asnumpy(), expected, PRECISION["float32"].forward)
    rows[1, 0] = 7
    out = function(x, mx.nd.array(rows, ctx=mx.gpu(0)), POOLED, 0.9).asnumpy()
    assert np.isnan(out[1]).all() and near(out[2:], expected[2:], PRECISION["float32"].forward)


def main() -> int:
    if mx.context.num_gpus() == 0:
        print("check_mxnet: skipped, this MXNet sees no GPU")
        return 0
    checks: list[tuple[str, Callable, tuple]] = [
        (f"{op.name} {row_id(arguments)} {dtype}", check_values, (op, arguments, dtype))
        for op, arguments in ROWS
        for dtype in PRECISION
    ]
    checks += [
        (f"{op.name} forms", check_forms, (op,)) for op in {id(o): o for o, _ in ROWS}.values()
    ]
    failed = 0
    for name, check, arguments in checks:
        try:
            check(*arguments)
        except (AssertionError, mx.MXNetError) as error:
            failed += 1
            print(f"FAILED {name}: {error}")
    print(f"check_mxnet: {len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
