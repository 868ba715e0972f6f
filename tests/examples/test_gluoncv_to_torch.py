# SPDX-License-Identifier: Apache-2.0
"""examples/gluoncv_to_torch.py: GluonCV's weights in torchvision's classes, and a detector."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("gluoncv")
pytest.importorskip("torch")
pytest.importorskip("torchvision")
ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.night


def test_the_example():
    command = [
        sys.executable,
        "-W",
        "ignore",
        "examples/gluoncv_to_torch.py",
        "--size",
        "160",
        "224",
    ]
    printed = subprocess.check_output(command, cwd=ROOT, text=True)
    differences = re.findall(r"torchvision's \w+: largest difference (\S+)", printed)
    assert len(differences) == 3 and all(float(each) < 1e-4 for each in differences)
    ((count, total),) = re.findall(r"(\d+) of (\d+) detections agree", printed)
    assert int(total) > 50 and int(count) >= 0.99 * int(total)
