# SPDX-License-Identifier: Apache-2.0
"""examples/detect.py, and what it finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


# Runs a program where packages are missing.
ALONE = "import runpy, sys; sys.modules.update(dict.fromkeys(sys.argv[1].split())); "
ALONE += "del sys.argv[:2]; runpy.run_path(sys.argv[0], run_name='__main__')"


def detect(model: Path, photo: Path, result: Path, thresh: float) -> None:
    """Run examples/detect.py in a new process, without the packages that made its detector."""
    missing = "demo_rfcn gluoncv" + (" mxnet gluon_roi" if model.suffix == ".onnx" else "")
    line = [missing, EXAMPLES / "detect.py", model, photo, result, "--thresh", thresh]
    subprocess.run([sys.executable, "-c", ALONE, *map(str, line)], check=True)


def rows_of(path):
    content = json.loads(path.read_text())
    rows = content["detections"] if isinstance(content, dict) else content  # of the examples
    return sorted(rows, key=lambda row: -row["score"])


def assert_same(found, expected, pixels=1e-3):
    """The same classes in the same order; scores are within 1e-3, and corners within `pixels`."""
    assert len(found) == len(expected) > 3
    assert [row["class"] for row in found] == [row["class"] for row in expected]
    for key, near in (("score", 1e-3), ("box", pixels)):
        ours, theirs = (np.array([row[key] for row in rows]) for rows in (found, expected))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=near)
