"""The CUDA build, on a machine without a GPU: it compiles, links, loads, and its CPU half works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NVCC = shutil.which(
    "nvcc", path=os.environ.get("CUDA_HOME", "") + "/bin" + os.pathsep + os.environ["PATH"]
)
needs_nvcc = pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
#: Registers that a kernel may lose to memory, in bytes: a few addresses around a loop.
SPILLS = 128


def setup(folder: Path, **variables: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=folder,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The sources alone, as a user has them before the first build."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("src", "gluon_roi", "build_tools"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("setup.py", "README.md"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def built(tree) -> tuple[Path, str]:
    """The tree after a build with CUDA, and what the compilers said."""
    done = setup(tree, GLUON_ROI_CUDA="1", NVCC_APPEND_FLAGS="-Xptxas -v")
    assert done.returncode == 0, done.stdout[-4000:]
    return tree, done.stdout


def in_tree(tree: Path, *command: str) -> subprocess.CompletedProcess:
    """Run Python on the package in the tree."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@needs_nvcc
def test_every_architecture(built):
    """Machine code for every architecture of the toolkit, PTX of the newest, hardly a spill."""
    _, log = built
    archs = re.search(r"gluon_roi: CUDA [\d.]+, architectures ([\d;]+) and PTX of (\d+)", log)
    assert archs is not None
    assert set(re.findall(r"for 'sm_(\d+)'", log)) == set(archs[1].split(";"))
    spills = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    assert len(spills) >= 30
    assert max(spills) <= SPILLS
    assert "warning" not in log


@needs_nvcc
def test_dependencies(built):
    """Nothing of CUDA or of a driver is needed to load the library."""
    tree, _ = built
    library = tree / "gluon_roi/libgluon_roi.so"
    table = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True)
    needed = set(re.findall(r"\(NEEDED\).*\[(\w+(?:\+\+|-[\w-]+)?)\.so", table.stdout))
    assert needed <= {"libstdc++", "libm", "libgomp", "libgcc_s", "libc", "ld-linux-x86-64"}
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    )
    allowed = r"(initialize|gluon_roi_|_op|_part|_pass|_msg)"
    for line in symbols.stdout.splitlines():
        assert re.match(allowed, line.split()[-1]), line


@needs_nvcc
def test_loads_without_a_driver(built):
    """MXNet for the CPU loads it; the operators work on the CPU and refuse the GPU politely."""
    tree, _ = built
    done = in_tree(
        tree,
        "-c",
        "import gluon_roi; info = gluon_roi.build_info(); "
        "print(gluon_roi.__file__, info['cuda'], info['cuda_archs'], gluon_roi.has_cuda())",
    )
    assert done.returncode == 0, done.stdout
    assert str(tree) in done.stdout
    assert done.stdout.strip().endswith("] True")
    tests = [str(ROOT / "tests" / name) for name in ("test_operators.py", "test_c_abi.py")]
    chosen = "(test_forward or test_backward) and float32 or test_c_abi"
    done = in_tree(tree, "-m", "pytest", "-x", "-p", "no:cacheprovider", *tests, "-k", chosen)
    assert done.returncode == 0, done.stdout[-4000:]


@needs_nvcc
def test_missing_half(built):
    """An operator whose CUDA half is missing does not link, and the error names it."""
    tree, _ = built
    half = tree / "src/ops/roi_pool.cu"
    text = half.read_text()
    half.unlink()
    try:
        done = setup(tree, GLUON_ROI_CUDA="1", NVCC_APPEND_FLAGS="-Xptxas -v")
    finally:
        half.write_text(text)
    assert done.returncode != 0
    assert "undefined reference to `gluon_roi::ROIPool::forward(gluon_roi::Gpu" in done.stdout


def test_cuda_asked_for_and_not_found(tree, tmp_path):
    done = setup(tree, GLUON_ROI_CUDA="1", CUDA_HOME=str(tmp_path))
    assert done.returncode != 0
    assert "GLUON_ROI_CUDA=1, but nvcc was not found; set CUDA_HOME" in done.stdout


@needs_nvcc
def test_wrong_architecture_list(tree):
    done = setup(tree, GLUON_ROI_CUDA="1", GLUON_ROI_CUDA_ARCHS="80,hopper")
    assert done.returncode != 0
    assert "GLUON_ROI_CUDA_ARCHS: expected a list such as '80;90', got '80,hopper'" in done.stdout
