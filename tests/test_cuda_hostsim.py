"""The CUDA kernels, run on the CPU: every operator against its CPU half.

The same .cu files that nvcc compiles are compiled by g++ against tests/hostsim/cuda_runtime.h, which
runs the threads of a block one at a time, in three orders. The last test repeats all others under
AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import c_api
import numpy as np
import pytest
from cases import BATCH, HEIGHT, PRECISION, ROWS, SCALES, WIDTH, all_rois, feature_map, row_id

HOSTSIM = Path(__file__).parent / "hostsim"
#: Set by the last test: a library to use instead of building one.
READY = os.environ.get("GLUON_ROI_HOSTSIM_LIBRARY")
DTYPES = ("float32", "float64", "float16")
ORDERS = ("forward", "reverse", "random")
#: Output channels and pooled size: around a block of kTileChannels and of kUnroll, more bins than
#: a batch of ROIPool's backward pass, and more than the threads of a forward block.
SHAPES = ((9, (2, 3)), (3, (7, 7)), (1, (17, 16)))


def build(folder: Path, *flags: str) -> Path:
    subprocess.run([HOSTSIM / "build.sh", folder, *flags], check=True)
    return folder / "libgluon_roi_hostsim.so"


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> c_api.Library:
    return c_api.Library(READY or build(tmp_path_factory.mktemp("hostsim")))


@pytest.fixture(params=ORDERS)
def order(request, monkeypatch):
    """The order in which the threads of a block run between two barriers."""
    monkeypatch.setenv("GLUON_ROI_HOSTSIM_ORDER", request.param)
    return request.param


def run(library, op, p, data, rois, d_out=None, rois_num=None, cuda=True):
    """(out,) or, with d_out, (d_data, d_rois) of one call on arrays in host memory."""
    inputs = c_api.Inputs(*map(c_api.tensor, (data, rois, rois_num)))
    backward = d_out is not None
    device = c_api.Device(c_api.CUDA if cuda else c_api.CPU)
    size = library.workspace(op, p, inputs, backward, device.type)
    # Exactly what was asked for, in memory of its own, full of rubbish.
    workspace = np.full(max(size, 1), 0xA5, np.uint8)
    device.workspace, device.workspace_size = workspace.ctypes.data, size
    if backward:
        results = np.full(data.shape, 99, data.dtype), np.full(rois.shape, 99, rois.dtype)
        library.backward(op, p, inputs, d_out, *results, device)
        return results
    out = np.full(c_api.output_shape(op, p, data, rois), 99, data.dtype)
    library.forward(op, p, inputs, out, device)
    return (out,)


def assert_same(actual, expected, tolerance, normwise=False):
    """Equal but for the order of sums; NaN equals NaN."""
    actual, expected = actual.astype("float64"), expected.astype("float64")
    scale = max(1, np.nanmax(np.abs(expected), initial=0)) if normwise else 1
    np.testing.assert_allclose(actual, expected, tolerance, tolerance * scale)


def compare(library, op, p, data, rois, dtype, rois_num=None):
    """Forward and backward of both halves; returns what the CUDA half gave."""
    precision = PRECISION[dtype]
    (out,) = run(library, op, p, data, rois, rois_num=rois_num)
    (expected,) = run(library, op, p, data, rois, rois_num=rois_num, cuda=False)
    assert_same(out, expected, precision.forward)
    d_out = np.random.RandomState(1).randn(*out.shape).astype(dtype)
    gradients = run(library, op, p, data, rois, d_out, rois_num)
    for actual, wanted in zip(gradients, run(library, op, p, data, rois, d_out, rois_num, False)):
        assert_same(actual, wanted, precision.backward, normwise=True)
    return (out, *gradients)


def arguments_of(op, arguments):
    return {**arguments, "rois_grad": 1} if op.rois_grad else arguments


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_against_cpu(library, op, arguments, dtype, order):
    for channels, pooled in SHAPES:
        scale = SCALES[channels % len(SCALES)]
        data = feature_map(op.channels(channels, pooled, arguments), dtype)
        rois = all_rois(scale, "float64" if dtype == "float64" else "float32")
        symbol = c_api.SYMBOLS[op.name]
        p = c_api.params(symbol, pooled, scale, **arguments_of(op, arguments))
        compare(library, symbol, p, data, rois, dtype)


@pytest.mark.parametrize("op", c_api.PARAMS)
def test_roi_forms(library, op):
    """(K, 5), (N, R, 4), (K, 4) with rois_num and float16 rois are the same rows."""
    boxes = np.array([[[1, 2, 9, 8], [0, 0, 17, 12]], [[-3, -3, 5, 5], [8, 2, 12, 9]]], "float32")
    data = feature_map(6 if op.startswith("ps_") else 3)
    p = c_api.params(op, (2, 3), 0.9)
    index = np.repeat(np.arange(2), 2)[:, None]
    rows = np.hstack([index, boxes.reshape(4, 4)]).astype("float32")
    out, d_data, _ = compare(library, op, p, data, rows, "float32")
    forms = [(boxes, None), (rows.astype("float16"), None), (rows.astype("float64"), None)]
    for counts in ("int32", "int64", "float32", "float64"):
        forms.append((boxes.reshape(4, 4), np.array([2, 2], counts)))
    for rois, counts in forms:
        same = compare(library, op, p, data, rois, "float32", counts)
        np.testing.assert_array_equal(same[0], out)
        np.testing.assert_array_equal(same[1], d_data)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_awkward_rows(library, op, arguments, dtype, order):
    """NaN, infinite, enormous coordinates; batch indices that name no image."""
    symbol = c_api.SYMBOLS[op.name]
    p = c_api.params(symbol, (2, 3), 0.5, **arguments_of(op, arguments))
    data = feature_map(op.channels(2, (2, 3), arguments), dtype)
    good = [
        *([0, *box] for box in ([1, 1, 9, 9], [-1e20, 2, 1e20, 9], [3, 1e20, 9, -1e20])),
        *([1, *box] for box in ([1e9, 1e9, 2e9, 2e9], [-1e6, -1e6, 1e6, 1e6], [-3e38, 0, 3e38, 9])),
        *([0, 1, value, 9, 9] for value in (np.nan, np.inf, -np.inf)),
        [1, np.nan, 1, 9, 9],
        [-1, 1, 1, 9, 9],
        [-np.inf, 1, 1, 9, 9],
        [-0.5, 1, 1, 9, 9],
    ]
    bad = [[index, 1, 1, 9, 9] for index in (BATCH, 0.5, np.nan, np.inf, 1e30)]
    rois = np.array(good + bad, "float64" if dtype == "float64" else "float32")
    compare(library, symbol, p, data, rois[: len(good)], dtype)
    # The rows that the CPU refuses are NaN, and count as padding in the gradients.
    (out,) = run(library, symbol, p, data, rois)
    assert np.isnan(out[len(good) :]).all()
    d_out = np.random.RandomState(2).randn(*out.shape).astype(dtype)
    d_data, d_rois = run(library, symbol, p, data, rois, d_out)
    assert (d_rois[len(good) :] == 0).all()
    rois[len(good) :, 0] = -1
    expected, _ = run(library, symbol, p, data, rois, d_out)
    np.testing.assert_array_equal(d_data, expected)


@pytest.mark.parametrize("op", ("roi_align", "ps_roi_align"))
@pytest.mark.parametrize("arguments", ({}, {"sampling_ratio": 2}, {"aligned": 1}), ids=row_id)
def test_large_tables(library, op, arguments):
    """More taps than shared memory holds, and boxes far larger than the map, in float and double."""
    rng = np.random.RandomState(3)
    centre = rng.uniform(-50, 2500, (12, 2))
    half = 10 ** rng.uniform(0, 9, (12, 2))
    boxes = np.hstack([centre - half, centre + half])
    for swap in (0, 1):
        boxes[swap::4, [0, 2]] = boxes[swap::4, [2, 0]]
    rois = np.vstack([[0, 0, 0, 2400, 1], np.insert(boxes, 0, 0, axis=1)])
    p = c_api.params(op, (1, 3), 1.0, rois_grad=1, **arguments)
    for dtype in ("float32", "float64"):
        data = rng.randn(1, 3, 2, 2400).astype(dtype)
        compare(library, op, p, data, rois.astype(dtype), dtype)


@pytest.mark.parametrize("op", c_api.PARAMS)
def test_bins_without_shared_memory(library, op):
    """Edges and taps of 1 x 1100 bins do not fit into shared memory."""
    data = np.random.RandomState(4).randn(1, 1100 if op.startswith("ps_") else 1, 3, 40)
    rois = np.array([[0, 1, 0, 30, 2], [0, -5, 0, 50, 4.0]])
    compare(library, op, c_api.params(op, (1, 1100), 1.0), data, rois, "float64")


@pytest.mark.parametrize("op", c_api.PARAMS)
def test_nothing_to_do(library, op):
    """No rows: nothing is launched forward, and backward writes zeros."""
    data, rois = feature_map(6), np.zeros((0, 5), "float32")
    p = c_api.params(op, (2, 3), 1.0)
    (out,) = run(library, op, p, data, rois)
    d_data, _ = run(library, op, p, data, rois, out)
    assert out.size == 0
    assert (d_data == 0).all()
    # And no channels: the gradient of the rois is still written.
    data, rois = np.zeros((1, 0, 4, 4), "float32"), np.array([[0, 0, 0, 3, 3]], "float32")
    (out,) = run(library, op, p, data, rois)
    _, d_rois = run(library, op, p, data, rois, out)
    assert (d_rois == 0).all()


def test_map_without_cells(library):
    """A map of no rows gives 0, and reads nothing."""
    data, rois = np.zeros((1, 6, 0, 5), "float32"), np.array([[0, -1, -1, 3, 3]], "float32")
    for op in c_api.PARAMS:
        (out,) = run(library, op, c_api.params(op, (2, 3), 1.0), data, rois)
        assert (out == 0).all()


def test_refused_launch(library):
    """An error of a launch comes back as a sentence; nothing was touched."""
    data = c_api.Tensor(1, c_api.DTYPES["float32"], 4, (1, 1, 1 << 30, 1 << 20))
    rois = np.array([[0, 0, 0, 3, 3]], "float32")
    inputs = c_api.Inputs(data, c_api.tensor(rois), c_api.Tensor())
    p = c_api.params("roi_pool", (1, 1), 1.0)
    workspace = np.zeros(library.workspace("roi_pool", p, inputs, True, c_api.CUDA), np.uint8)
    device = c_api.Device(c_api.CUDA, None, workspace.ctypes.data, workspace.size)
    d_out = np.zeros((1, 1, 1, 1), "float32")
    with pytest.raises(c_api.Error, match="ROIPool: needs 8796093022208 thread blocks") as error:
        library.call(
            "roi_pool_backward",
            *map(c_api.ctypes.byref, (p, inputs, c_api.tensor(d_out), data)),
            None,
            c_api.ctypes.byref(device),
        )
    assert error.value.code == c_api.INVALID
    device.workspace_size -= 1
    with pytest.raises(c_api.Error, match="workspace: expected .* bytes, got"):
        library.backward("roi_pool", p, inputs, d_out, d_out, None, device)


@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_order_does_not_show(library, op, arguments, monkeypatch):
    """The same bytes whatever the order of threads: no element has two writers."""
    symbol = c_api.SYMBOLS[op.name]
    p = c_api.params(symbol, (3, 2), 0.3, **arguments_of(op, arguments))
    data = feature_map(op.channels(3, (3, 2), arguments))
    rois = all_rois(0.3)
    results = []
    for order in ORDERS:
        monkeypatch.setenv("GLUON_ROI_HOSTSIM_ORDER", order)
        (out,) = run(library, symbol, p, data, rois)
        results.append((out, *run(library, symbol, p, data, rois, out)))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.tobytes() == b.tobytes()


@pytest.mark.skipif(READY is not None, reason="runs inside itself")
def test_sanitizers(tmp_path):
    """Everything above once more, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    library = build(tmp_path, "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    compiler = os.environ.get("CXX", "g++")
    runtimes = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        "GLUON_ROI_HOSTSIM_LIBRARY": str(library),
        "LD_PRELOAD": " ".join(runtimes),
        # Python itself leaks; fibers have stacks of their own.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
