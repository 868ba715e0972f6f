"""The same bytes at every instruction-set level of this machine, and for one thread and two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gluon_roi

LEVELS = ("sse2", "avx2", "avx512")
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


@pytest.fixture(scope="module")
def baseline() -> dict:
    return digests("sse2", 1)


def test_threads(baseline):
    assert digests("sse2", 2) == baseline


@pytest.mark.parametrize("level", LEVELS[1:])
def test_levels(level, baseline):
    # This process runs at the best level, unless the environment names a lower one.
    if LEVELS.index(level) > LEVELS.index(gluon_roi.build_info()["simd"]):
        pytest.skip(f"no {level} here")
    for threads in (1, 2):
        assert digests(level, threads) == baseline
