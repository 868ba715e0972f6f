# SPDX-License-Identifier: Apache-2.0
"""The CUDA build, on a machine without a GPU: it compiles, links, loads, and works on the CPU."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import presets
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NVCC = shutil.which(
    "nvcc", path=os.environ.get("CUDA_HOME", "") + "/bin" + os.pathsep + os.environ["PATH"]
)
needs_nvcc = pytest.mark.skipif(
    NVCC is None or not presets.find_nvcc(), reason="nvcc is not installed, or GLUON_ROI_CUDA=0"
)
#: Registers that a kernel may lose to memory, in bytes: a few addresses around a loop.
SPILLS = 128


@pytest.fixture(scope="module")
def library() -> Path:
    """The library for a debugger; its CUDA kernels are compiled as in the other builds."""
    return presets.build("debug", target="gluon_roi") / "libgluon_roi.so"


@needs_nvcc
def test_every_architecture(library):
    """Machine code for every architecture of the toolkit, PTX of the newest, hardly a spill.

    GLUON_ROI_CUDA_ARCHS names fewer, where the build is to be fast.
    """
    version = subprocess.check_output([str(NVCC), "--version"], text=True)
    found = re.search(r"release (\d+)", version)
    assert found
    archs = ["75", "80", "86", "89", "90"]
    if int(found[1]) < 13:
        archs = ["60", "70", *(archs if int(found[1]) == 12 else archs[:3])]
    archs = re.findall(r"\d+", os.environ.get("GLUON_ROI_CUDA_ARCHS", "")) or archs
    logs = list(library.parent.rglob("*.cu.o.log"))
    assert len(logs) == len(list((ROOT / "src").rglob("*.cu")))
    for log in logs:
        text = log.read_text()
        assert "warning" not in text
        if log.name.startswith("launch."):  # the one file without a kernel
            continue
        assert set(re.findall(r"for 'sm_(\d+)'", text)) == set(archs)
        spills = [int(count) for count in re.findall(r"(\d+) bytes spill stores", text)]
        assert spills and max(spills) <= SPILLS, log
    ptx = f"code=[compute_{archs[-1]},sm_{archs[-1]}]"
    assert ptx in (library.parent / "compile_commands.json").read_text()


@needs_nvcc
def test_dependencies(library):
    """Nothing of CUDA or of a driver is needed to load the library."""
    table = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True)
    needed = set(re.findall(r"\(NEEDED\).*\[(\w+(?:\+\+|-[\w-]+)?)\.so", table.stdout))
    assert needed <= {"libstdc++", "libm", "libgomp", "libgcc_s", "libc", "ld-linux-x86-64"}
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    )
    allowed = r"(initialize|gluon_roi_|_op|_part|_pass|_msg)"
    for line in symbols.stdout.splitlines():
        assert re.match(allowed, line.split()[-1]), line


@pytest.fixture(scope="module")
def run(library, tmp_path_factory):
    """Start Python with arguments in a folder where the package has the library with CUDA."""
    folder = tmp_path_factory.mktemp("with_cuda")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "include", "cmake")
    shutil.copytree(ROOT / "gluon_roi", folder / "gluon_roi", ignore=ignored)
    shutil.copy(library, folder / "gluon_roi")

    def start(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    return start


@needs_nvcc
def test_loads_without_a_driver(run):
    """MXNet for the CPU loads it, and an operator works on the CPU."""
    shown = run(
        "-c",
        "import mxnet as mx, gluon_roi; info = gluon_roi.build_info(); "
        "print(gluon_roi.__file__, info['cuda'], info['cuda_archs'], gluon_roi.has_cuda()); "
        "data, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]]); "
        "print(gluon_roi.nd.ROIAlign(data, rois, 1, 1.0).asnumpy().item())",
    )
    first, value = shown.splitlines()
    assert "with_cuda" in first and first.endswith("] True") and value == "1.0"


@pytest.mark.night
@needs_nvcc
def test_checks_itself_without_a_driver(run):
    assert "DIFFERS" not in run("-m", "gluon_roi", "check")


@pytest.mark.night
@needs_nvcc
def test_refuses_the_gpu_without_a_driver(run):
    """As the tests of the C interface expect."""
    run("-m", "pytest", "-x", "-p", "no:cacheprovider", str(ROOT / "tests/src/test_c_abi.py"))


def test_operator_without_its_cuda_half_does_not_link(tmp_path):
    """An operator whose CUDA half is missing does not link, and the error names it."""
    folder = presets.build("hostsim")
    ninja = [presets.find("ninja"), "-C", str(folder), "-t", "commands", "libgluon_roi.so"]
    last = subprocess.check_output(ninja, text=True).splitlines()[-1]
    command = shlex.split(last[len(": && ") : -len(" && :")])
    link = [word for word in command if not word.endswith("/roi_pool.cu.o")]
    link[link.index("-o") + 1] = str(tmp_path / "library.so")
    done = subprocess.run(
        link, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert len(link) == len(command) - 1
    assert done.returncode != 0
    assert "undefined reference to `gluon_roi::CudaKernels<gluon_roi::ROIPool>::" in done.stdout


def error(folder: Path, **variables: str) -> str:
    """What CMake prints of the preset `cuda` with variables in its environment, in one line."""
    ninja = f"-DCMAKE_MAKE_PROGRAM={presets.find('ninja')}"
    done = subprocess.run(
        [presets.find("cmake"), "--preset", "cuda", "-B", folder, ninja],
        cwd=ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode != 0
    return " ".join(done.stdout.split())


def test_cuda_asked_for_and_not_found(tmp_path):
    shown = error(tmp_path, CUDA_HOME=str(tmp_path))
    assert "GLUON_ROI_CUDA=1, but nvcc was not found; set CUDA_HOME" in shown


@needs_nvcc
def test_wrong_architecture_list(tmp_path):
    shown = error(tmp_path, GLUON_ROI_CUDA_ARCHS="80,hopper")
    assert "GLUON_ROI_CUDA_ARCHS: expected a list such as '80;90', got '80,hopper'" in shown
    # The nvcc found here is not kept for another CUDA_HOME.
    assert "nvcc was not found" in error(tmp_path, CUDA_HOME=str(tmp_path))
