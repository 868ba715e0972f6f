# SPDX-License-Identifier: Apache-2.0
"""What `make build` shows: nothing is compiled in silence. And the workflows run every check."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_roi

ROOT = Path(__file__).resolve().parents[2]


def test_a_new_environment_compiles_before_pip_is_quiet(tmp_path):
    """pip -q hides what the build prints, so it finds the library compiled."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    line = ["make", "-n", "build", f"VENV={tmp_path}/new", f"PYTHON={sys.executable}"]
    shown = subprocess.run(line, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True).stdout
    compiled, installed = (
        shown.index("setup.py -q build_ext"),
        shown.index("-e '.[demo,onnx,test]'"),
    )
    assert shown.index("build_tools/presets.py --requirements") < compiled < installed


def test_the_build_names_cuda_first():
    """Also where its output is not a terminal."""
    pytest.importorskip("setuptools.command.bdist_wheel")
    if Path(gluon_roi.library.PATH).parent != ROOT / "gluon_roi":
        pytest.skip("the library of the source folder is not in use")
    line = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    made = subprocess.run(
        line, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True, env=environment
    )
    first, *others = made.stdout.splitlines()
    assert first.startswith(("gluon_roi: with CUDA", "gluon_roi: without CUDA")) and others


def test_the_workflow_has_every_check_with_a_tag():
    """Checks of build_tools/noxfile.py: `push` on each push, `night` every night."""
    text = (ROOT / "build_tools/noxfile.py").read_text()
    found = re.findall(r'^@here\((?:name="([\w-]+)", )?tags=\["(\w+)"\]\)\ndef (\w+)', text, re.M)
    checks: dict = {"push": [], "night": []}
    for name, tag, function in found:
        checks[tag].append(name or function)
    night, push = re.findall(r"'(\[.+\])'", (ROOT / ".github/workflows/ci.yml").read_text())
    assert json.loads(push) == checks["push"]
    assert json.loads(night) == [*checks["night"], "matrix"]
    makefile = (ROOT / "Makefile").read_text()
    for name in checks["push"] + checks["night"]:
        assert re.search(rf"^test .*\b{name}\b.*: \| .*nox$", makefile, re.M), name
