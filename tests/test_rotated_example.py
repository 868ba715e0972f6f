# SPDX-License-Identifier: Apache-2.0
"""examples/rotated_text.py finds every word that it draws."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from PIL import Image

EXAMPLE = Path(__file__).parents[1] / "examples/rotated_text.py"


def test_rotated_text(tmp_path):
    picture = tmp_path / "text.png"
    command = [sys.executable, str(EXAMPLE), str(picture)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert "200 boxes, 5 kept" in done.stdout
    overlaps = [float(value) for value in re.findall(r"[a-z] (\d\.\d\d)", done.stdout)]
    assert len(overlaps) == 5 and min(overlaps) > 0.5
    assert Image.open(picture).size == (480, 364)
    assert len(EXAMPLE.read_text().splitlines()) <= 120
