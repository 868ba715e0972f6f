# SPDX-License-Identifier: Apache-2.0
"""`make new-op`: the stubs compile, and their tests fail by the name of the operator."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: What the stubs and their tests need of the repository.
PARTS = ("build_tools", "gluon_roi", "src", "testing", "tests", "docs", "benchmarks")
FILES = (
    "CMakeLists.txt",
    "CMakePresets.json",
    "Makefile",
    "pyproject.toml",
    "setup.py",
    "README.md",
)


@pytest.fixture
def copy(tmp_path):
    """A copy of the repository without its builds."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.png", "*.npz")
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def new_op(root, *names):
    command = [sys.executable, str(root / "build_tools/new_op.py"), *names]
    return subprocess.run(command, capture_output=True, text=True)


def test_files(copy):
    done = new_op(copy, "SofterROIAlign")
    assert done.returncode == 0, done.stderr
    written = done.stdout.split()
    assert len(written) == len(set(written)) == 13
    for path in written:
        text = (copy / path).read_text()
        assert re.search("softer_roi_align|SofterROIAlign", text), path
        assert not re.search(r"MyOp|my_op|@[A-Z]", text), path
    # Every file of the list in CONTRIBUTING.md that a command can write.
    page = (ROOT / "CONTRIBUTING.md").read_text().split("## Add an operator\n")[1].split("\n## ")[0]
    listed = {
        name.replace("my_op", "softer_roi_align")
        for name in re.findall(r"^\| `([\w/.]+\.\w+)` \|", page, re.M)
    }
    assert listed - set(written) == {"gluon_roi/switch/mapping.py", "docs/switch_reference.md"}
    (row,) = (path for path in written if path.startswith("tests/"))
    order = re.search(r"^ORDER = (\d+)$", (copy / row).read_text(), re.M)
    assert order and int(order[1]) > 8
    again = new_op(copy, "SofterROIAlign")
    assert again.returncode == 1
    assert again.stderr == "new_op: src/include/gluon_roi/softer_roi_align.h exists already\n"


@pytest.mark.parametrize(
    "names", [(), ("",), ("softer",), ("SOFTER",), ("A b",), ("../X",), ("A", "B")]
)
def test_unusable_names(names, copy):
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    done = new_op(copy, *names)
    assert done.returncode == 1 and "make new-op NAME=MyOp" in done.stderr
    assert before == {path: path.stat().st_mtime_ns for path in copy.rglob("*")}


@pytest.mark.night
@pytest.mark.slow
def test_stubs_compile_and_fail_by_name(copy):
    """Tests of values fail with the operator's name; what is generated for it passes."""
    assert new_op(copy, "SofterROIAlign").returncode == 0
    shutil.copytree(ROOT / "build/mxnet-1.9.1", copy / "build/mxnet-1.9.1")
    for path in ROOT.glob("tests/golden/*.npz"):
        shutil.copy(path, copy / "tests/golden")
    environment = {**os.environ, "GLUON_ROI_CUDA": "0", "PYTHONPATH": str(copy)}
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(build, cwd=copy, env=environment, check=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    names = ("ops/test_operators", "src/test_contract", "src/test_layers")
    tests = [f"tests/{name}.py" for name in names]
    done = subprocess.run(
        [*command, *tests, "-m", "not night", "-rf"],
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    failed = re.findall(r"^FAILED (\S+)", done.stdout, re.M)
    assert failed and all("SofterROIAlign" in test for test in failed), done.stdout
    for test in ("test_forward", "test_backward"):
        assert any(f"::{test}[" in name for name in failed), failed
