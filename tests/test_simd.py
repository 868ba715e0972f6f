# SPDX-License-Identifier: Apache-2.0
"""The same bytes at every instruction-set level of this machine, and for one to three threads."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_roi

pytestmark = pytest.mark.slow

# Of this processor's architecture, lowest first.
LEVELS = ("neon",) if platform.machine() == "aarch64" else ("sse2", "avx2", "avx512")
# This process runs at the best level, unless the environment names a lower one.
BEST = LEVELS.index(gluon_roi.build_info()["simd"])
SCRIPT = Path(__file__).parent / "scripts/instruction_sets.py"


def digests(level: str, threads: int) -> dict:
    """Of output, data gradient and RoI gradient, for every operator and dtype."""
    environment = {**os.environ, "GLUON_ROI_SIMD": level, "OMP_NUM_THREADS": str(threads)}
    answer = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    answer = json.loads(answer.stdout.splitlines()[-1])
    assert answer["level"] == level
    return answer["digests"]


def test_lowest_and_best_level():
    assert digests(LEVELS[0], 1) == digests(LEVELS[BEST], 3)


@pytest.mark.night
def test_levels_and_threads():
    """The levels with one, two and three threads in turn, and the best level with two counts."""
    levels = [*LEVELS[: BEST + 1], LEVELS[BEST]]
    found = [digests(level, 1 + n % 3) for n, level in enumerate(levels)]
    assert all(other == found[0] for other in found)
