# SPDX-License-Identifier: Apache-2.0
"""The same bytes at every instruction-set level of this machine, and for one to three threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.simd_levels import LEVELS

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "scripts/instruction_sets.py"


def digests(level: str, threads: int, *options: str) -> dict:
    """Digests of output, data gradient and RoI gradient of every operator."""
    environment = {**os.environ, "GLUON_ROI_SIMD": level, "OMP_NUM_THREADS": str(threads)}
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    answer = json.loads(answer.stdout.splitlines()[-1])
    assert answer["level"] == level
    return answer["digests"]


def test_lowest_and_best_level():
    assert digests(LEVELS[0], 1) == digests(LEVELS[-1], 3)


@pytest.mark.night
def test_levels_and_threads():
    """All types; levels with one to three threads in turn, and the best level with two counts."""
    levels = [*LEVELS, LEVELS[-1]]
    found = [digests(level, 1 + n % 3, "--all") for n, level in enumerate(levels)]
    assert all(other == found[0] for other in found)
