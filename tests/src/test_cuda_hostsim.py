# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels, run on the CPU: every operator against its CPU kernel.

The .cu files that nvcc compiles are compiled by g++ against tests/hostsim/cuda_runtime.h, which
runs the threads of a block one at a time, in random order. By day each check has one type of data.
The tests of every night have all types, compare three orders, which must not matter, and repeat all
under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import presets
import pytest
from operators import ROWS
from support.cases import all_rois, feature_map, row_id
from support.deformed import CALLS as SAMPLED
from support.kernel_checks import CHECKS, DTYPES, Kernels, arguments_of
from support.suppressed import CALLS as SUPPRESSED

from testing import c_api

pytestmark = pytest.mark.slow

HOSTSIM = Path(__file__).parents[1] / "hostsim"
#: Set by the last test: a library to use instead of building one.
READY = os.environ.get("GLUON_ROI_HOSTSIM_LIBRARY")
#: Of the threads of a block between two barriers,
ORDER = "reverse" if READY else "random"
#: and if results must not depend on it. Under sanitizers one order reads and writes it all.
ORDERS = (ORDER,) if READY else ("forward", "reverse", "random")
#: The command of the compiler, which may bring flags.
COMPILER = os.environ.get("CXX", "g++").split()


@pytest.fixture(scope="session")
def kernels() -> Kernels:
    return Kernels(c_api.Library(READY or presets.build("hostsim") / "libgluon_roi.so"))


def marked_checks():
    """Names of checks; of those that differ in the type of data, two are for the night, in turn."""
    numbers: dict[str, int] = {}
    for name in CHECKS:
        check, _, dtype = name.rpartition("-")
        number = numbers.setdefault(check, len(numbers))
        by_night = dtype in DTYPES and dtype != DTYPES[number % len(DTYPES)]
        yield pytest.param(name, marks=[pytest.mark.night] * by_night)


@pytest.mark.parametrize("check", list(marked_checks()))
def test_kernels(kernels, check, monkeypatch):
    monkeypatch.setenv("GLUON_ROI_HOSTSIM_ORDER", ORDER)
    CHECKS[check](kernels)


@pytest.mark.night
@pytest.mark.parametrize("op, arguments", ROWS, ids=row_id)
def test_bytes_do_not_depend_on_the_order_of_threads(kernels, op, arguments, monkeypatch):
    """The same bytes for any order of threads: no element has two writers."""
    symbol = kernels.library.symbols[op.name]
    p = kernels.library.params(symbol, (3, 2), 0.3, **arguments_of(op, arguments))
    data = feature_map(op.channels(3, (3, 2), arguments))
    rois = op.all_rois(0.3)
    results = []
    for order in ORDERS:
        monkeypatch.setenv("GLUON_ROI_HOSTSIM_ORDER", order)
        (out,) = kernels.run(symbol, p, data, rois)
        results.append((out, *kernels.run(symbol, p, data, rois, out)))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.tobytes() == b.tobytes()


@pytest.mark.night
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_bin_offsets_do_not_depend_on_the_order_of_threads(kernels, dtype, monkeypatch):
    """DeformableROIAlign with offsets and a mask."""
    op, rois, rng = "deformable_roi_align", all_rois(0.3), np.random.RandomState(5)
    p = kernels.library.params(op, (3, 2), 0.3, gamma=0.3, aligned=1, rois_grad=1)
    shapes = {"offset": (len(rois), 2, 3, 2), "mask": (len(rois), 1, 3, 2)}
    more = {name: rng.randn(*shape).astype(dtype) for name, shape in shapes.items()}
    results = []
    for order in ORDERS:
        monkeypatch.setenv("GLUON_ROI_HOSTSIM_ORDER", order)
        (out,) = kernels.run(op, p, feature_map(3, dtype), rois, **more)
        results.append((out, *kernels.run(op, p, feature_map(3, dtype), rois, out, **more)))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.tobytes() == b.tobytes()


@pytest.mark.night
@pytest.mark.parametrize("name", SAMPLED)
def test_bytes_of_samples_do_not_depend_on_the_order_of_threads(kernels, name, monkeypatch):
    results = []
    for order in ORDERS:
        monkeypatch.setenv("GLUON_ROI_HOSTSIM_ORDER", order)
        results.append(kernels.samples(SAMPLED[name], "float32", cuda=True))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.tobytes() == b.tobytes()


@pytest.mark.night
@pytest.mark.parametrize("name", SUPPRESSED)
def test_bytes_of_suppression_do_not_depend_on_the_order_of_threads(kernels, name, monkeypatch):
    results = []
    for order in ORDERS:
        monkeypatch.setenv("GLUON_ROI_HOSTSIM_ORDER", order)
        call = SUPPRESSED[name]
        results.append(kernels.suppressed(call, call.arrays("float32"), cuda=True))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            assert a.tobytes() == b.tobytes()


def test_refused_launch(kernels):
    """An error of a launch, or of its workspace, comes back as a sentence; nothing is touched."""
    library = kernels.library
    fields = c_api.DTYPES["float32"], 4, (1, 1, 1 << 30, 1 << 20)
    data = c_api.Tensor(1 << 61, *fields)
    rois = np.array([[0, 0, 0, 3, 3]], "float32")
    inputs = (c_api.Tensor * 2)(data, c_api.tensor(rois))
    p = library.params("roi_pool", (1, 1), 1.0)
    workspace = np.zeros(library.workspace("roi_pool", p, inputs, True, c_api.CUDA), np.uint8)
    device = c_api.Device(c_api.CUDA, None, workspace.ctypes.data, workspace.size)
    d_out = c_api.tensor(np.zeros((1, 1, 1, 1), "float32"))
    # No memory is there, nor would any be touched.
    gradients = (c_api.Tensor * 2)(c_api.Tensor(1 << 62, *fields), c_api.Tensor())
    arguments = ctypes.byref(p), inputs, 2, ctypes.byref(d_out), gradients, ctypes.byref(device)
    with pytest.raises(c_api.Error, match="ROIPool: needs 8796093022208 thread blocks") as error:
        library.call("roi_pool_backward", *arguments)
    assert error.value.code == c_api.INVALID
    device.workspace_size -= 1
    with pytest.raises(c_api.Error, match="device workspace: expected .* bytes, got"):
        library.call("roi_pool_backward", *arguments)


@pytest.mark.night
@pytest.mark.parametrize(
    "body, message",
    [
        ("if (threadIdx.x == 1) return;", "divergent __syncthreads"),
        ("__shared__ int cells[2]; cells[threadIdx.x] = 1;", "global-buffer-overflow"),
        ("out[threadIdx.x + 1] = 1;", "heap-buffer-overflow"),
        ("", ""),
    ],
    ids=("divergent barrier", "shared memory", "global memory", "sound"),
)
@pytest.mark.skipif(READY is not None, reason="needs no library")
def test_simulator_finds_faults(tmp_path, body, message):
    """Planted faults end the process, with a message that names them."""
    source = tmp_path / "kernel.cu"
    source.write_text(
        "#include <cuda_runtime.h>\n"
        f"__global__ void kernel(int* out) {{ {body} __syncthreads(); out[threadIdx.x] += 1; }}\n"
        "int main() {\n"
        "  int* out = new int[4]();\n"
        "  void* arguments[] = {&out};\n"
        "  cudaLaunchKernel(kernel, dim3(1), dim3(4), arguments, 0, nullptr);\n"
        "  return out[0] + out[3] == 2 ? 0 : 1;\n"
        "}\n"
    )
    command = ["-std=c++17", "-g", "-fsanitize=address", f"-I{HOSTSIM}", "-x", "c++", str(source)]
    subprocess.run([*COMPILER, *command, "-o", tmp_path / "kernel"], check=True)
    done = subprocess.run(
        [tmp_path / "kernel"],
        env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode == 0) == (message == "")
    assert message in done.stderr


@pytest.mark.night
@pytest.mark.skipif(READY is not None, reason="runs inside itself")
def test_sanitizers():
    """The same once more, under AddressSanitizer and UndefinedBehaviorSanitizer."""
    library = str(presets.build("hostsim-asan") / "asan/libgluon_roi.so")
    runtimes = [
        subprocess.run(
            [*COMPILER, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        "GLUON_ROI_HOSTSIM_LIBRARY": library,
        "LD_PRELOAD": " ".join(runtimes),
        # Python itself leaks; fibers have stacks of their own.
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
