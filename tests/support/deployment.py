# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/, and what they find."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def detect_onnx(model, photo, result, thresh):
    """Run examples/detect_onnx.py."""
    spec = importlib.util.spec_from_file_location("detect_onnx", EXAMPLES / "detect_onnx.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(str(model), photo, result, thresh)


# Runs a program where the packages that made its detector are missing.
ALONE = "import runpy, sys; sys.modules.update(demo_rfcn=None, gluoncv=None); del sys.argv[0]; "
ALONE += "runpy.run_path(sys.argv[0], run_name='__main__')"


def detect_mxnet(prefix, photo, result, thresh):
    """Run examples/detect_mxnet.py in a new process, which has neither the demo nor GluonCV."""
    line = [EXAMPLES / "detect_mxnet.py", prefix, photo, result, "--thresh", thresh]
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
