# SPDX-License-Identifier: Apache-2.0
"""examples/rotated_text.py finds every word that it draws."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

from PIL import Image

EXAMPLE = Path(__file__).parents[2] / "examples/rotated_text.py"


def test_rotated_text(tmp_path, monkeypatch, capsys):
    picture = tmp_path / "text.png"
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(picture)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    shown = capsys.readouterr().out
    assert "200 boxes, 5 kept" in shown
    overlaps = [float(value) for value in re.findall(r"[a-z] (\d\.\d\d)", shown)]
    assert len(overlaps) == 5 and min(overlaps) > 0.5
    assert Image.open(picture).size == (480, 364)
    assert len(EXAMPLE.read_text().splitlines()) <= 120
