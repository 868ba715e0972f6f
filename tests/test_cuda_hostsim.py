"""The CUDA kernels, run on the CPU: every operator against its CPU half.

The same .cu files that nvcc compiles are compiled by g++ against tests/hostsim/cuda_runtime.h, which
runs the threads of a block one at a time, in three orders. The last test repeats all others under
AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import ctypes
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


@pytest.fixture(autouse=True, params=ORDERS)
def order(request, monkeypatch):
    """The order in which the threads of a block run between two barriers."""
    monkeypatch.setenv("GLUON_ROI_HOSTSIM_ORDER", request.param)


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
    rows = int(np.prod(rois.shape[:-1]))
    group = (p.group_height or p.pooled_height) * (p.group_width or p.pooled_width) \
        if op == "ps_roi_pool" else p.pooled_height * p.pooled_width
    channels = data.shape[1] // group if op.startswith("ps_") else data.shape[1]
    out = np.full((rows, channels, p.pooled_height, p.pooled_width), 99, data.dtype)
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
def test_against_cpu(library, op, arguments, dtype):
    for channels, pooled in SHAPES:
        scale = SCALES[channels % len(SCALES)]
        data = feature_map(op.channels(channels, pooled, arguments), dtype)
        rois = all_rois(scale, "float64" if dtype == "float64" else "float32")
        symbol = c_api.SYMBOLS[op.name]
        p = c_api.params(symbol, pooled, scale, **arguments_of(op, arguments))
        compare(library, symbol, p, data, rois, dtype)
