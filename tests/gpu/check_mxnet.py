# SPDX-License-Identifier: Apache-2.0
"""The operators on mx.gpu(0) against the same calls on the CPU, forward and backward.

With --own it uses none of MXNet's own kernels: arrays are copied from NumPy, head gradients are
given, and results are read back. So it also runs where MXNet's kernels do not (compute capability
9.0 and newer), as long as MXNet's context, streams and dispatcher work. It then leaves out graphs,
whose guards are MXNet's identity, and the gradient of BoxNMS, whose hidden record MXNet gives a
gradient of zeros.

    python tests/gpu/check_mxnet.py [--own]
"""

import argparse
import sys
from pathlib import Path
from typing import Callable

import mxnet as mx
import numpy as np

import gluon_roi

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from operators import ROWS  # noqa: E402
from support.cases import PRECISION, SCALES, feature_map, row_id  # noqa: E402
from support.deformed import CALLS as SAMPLED  # noqa: E402
from support.overlapped import CALLS as OVERLAPPED  # noqa: E402
from support.suppressed import CALLS as SUPPRESSED  # noqa: E402

POOLED = (2, 3)


def run(function, ctx, arrays, *d_outs):
    """(*outputs, *gradients of arrays) as NumPy arrays. Without d_outs, the outputs alone."""
    inputs = [mx.nd.array(array, ctx=ctx, dtype=array.dtype) for array in arrays]
    # What the operator leaves untouched shows.
    gradients = [mx.nd.array(np.full(a.shape, 9), ctx=ctx, dtype=a.dtype) for a in arrays]
    mx.autograd.mark_variables(inputs, gradients)
    with mx.autograd.record():
        outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    if not d_outs:
        return tuple(array.asnumpy() for array in outputs)
    heads = [mx.nd.array(array, ctx=ctx, dtype=array.dtype) for array in d_outs]
    mx.autograd.backward(outputs, heads)
    return tuple(array.asnumpy() for array in (*outputs, *gradients))


def call(op, ctx, data, rois, d_out, scale, **arguments):
    """(out, d_data, d_rois). Without d_out, (out,)."""
    d_outs = () if d_out is None else (d_out,)
    return run(
        lambda x, r: op.function(x, r, POOLED, scale, **arguments), ctx, [data, rois], *d_outs
    )


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


def check_samples(call, dtype):
    arrays, d_out = call.arrays(dtype), call.d_out(dtype)

    def sampled(*inputs):
        return gluon_roi.nd.DeformableSampling(*inputs, **call.parameters)

    (out, *gradients), (expected, *wanted), again = (
        run(sampled, ctx, arrays, d_out) for ctx in (mx.gpu(0), mx.cpu(), mx.gpu(0))
    )
    assert near(out, expected, PRECISION[dtype].forward), "out"
    for name, actual, exact in zip(("data", "offset", "mask"), gradients, wanted):
        assert near(actual, exact, PRECISION[dtype].backward), f"d_{name}"
    assert all(a.tobytes() == b.tobytes() for a, b in zip((out, *gradients), again)), "again"


def check_suppression(call, dtype, own):
    """The same rows are kept; exp may differ in the last bits of a proposal."""
    arrays, proposals = call.arrays(dtype), call.op == "proposal"
    more = {"output_score": True} if proposals else {}

    def kept(*inputs):
        return getattr(gluon_roi.nd, call.name)(*inputs, **call.parameters, **more)

    d_outs = call.d_outs(list(run(kept, mx.cpu(), arrays))) if proposals or not own else []
    device, host = (run(kept, ctx, arrays, *d_outs) for ctx in (mx.gpu(0), mx.cpu()))
    for actual, expected in zip(device, host):
        assert near(actual, expected, 1e-6)


def check_overlaps(call, dtype):
    """The same bytes."""
    arrays = call.arrays(dtype)

    def overlaps(*inputs):
        return gluon_roi.nd.BoxIoU(*inputs, **call.parameters)

    device, host = (run(overlaps, ctx, arrays)[0] for ctx in (mx.gpu(0), mx.cpu()))
    assert device.tobytes() == host.tobytes()


def check_forms(op, own):
    """Counts, boxes per image, a bad batch index and, if not `own`, a static graph."""
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
    outs = [batched, counted]
    if not own:
        net = op.block(POOLED, 0.9)
        net.hybridize(static_alloc=True, static_shape=True)
        outs.append(net(x, mx.nd.array(rows, ctx=mx.gpu(0))))
    for out in outs:
        assert near(out.asnumpy(), expected, PRECISION["float32"].forward)
    rows[1, 0] = 7
    out = function(x, mx.nd.array(rows, ctx=mx.gpu(0)), POOLED, 0.9).asnumpy()
    assert np.isnan(out[1]).all() and near(out[2:], expected[2:], PRECISION["float32"].forward)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--own", action="store_true", help="without MXNet's own kernels")
    own = parser.parse_args().own
    if mx.context.num_gpus() == 0:
        print("check_mxnet: skipped, this MXNet sees no GPU")
        return 0
    checks: list[tuple[str, Callable, tuple]] = []
    for dtype in PRECISION:
        for op, row in ROWS:
            checks.append((f"{op.name} {row_id(row)} {dtype}", check_values, (op, row, dtype)))
        for name, moved in SAMPLED.items():
            checks.append((f"samples {name} {dtype}", check_samples, (moved, dtype)))
        for name, kept in SUPPRESSED.items():
            checks.append((f"suppression {name} {dtype}", check_suppression, (kept, dtype, own)))
        for name, boxes in OVERLAPPED.items():
            checks.append((f"overlaps {name} {dtype}", check_overlaps, (boxes, dtype)))
    for op in {id(o): o for o, _ in ROWS}.values():
        checks.append((f"{op.name} forms", check_forms, (op, own)))
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
