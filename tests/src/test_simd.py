# SPDX-License-Identifier: Apache-2.0
"""The same bytes at every instruction-set level of this machine, and for one to three threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import digests
from support.simd_levels import LEVELS
from support.threads import openmp_threads

import gluon_roi

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "scripts/instruction_sets.py"
#: Levels that fuse multiplication and addition, which are all but SSE2. Products of matrices have
#: the same bytes at these.
FUSING = [level for level in LEVELS if level != "sse2"]


def results(level: str, threads: int, *options: str) -> dict:
    """What the script prints."""
    environment = {**os.environ, "GLUON_ROI_SIMD": level, "OMP_NUM_THREADS": str(threads)}
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), *options],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = json.loads(answer.stdout.splitlines()[-1])
    assert found["level"] == level
    return found


@pytest.fixture(scope="module")
def lowest() -> dict:
    """At the lowest level, with three threads."""
    return results(LEVELS[0], 3)


def test_lowest_and_best_level(lowest):
    with openmp_threads(1):
        assert digests.of_operators(all_types=False) == lowest["operators"]


def test_products(lowest):
    """Three threads and one; the lowest level has other bytes if it rounds products and sums."""
    with openmp_threads(1):
        found = digests.of_products()
    assert len(set(found.values())) == len(found)
    with openmp_threads(3):
        assert digests.of_products() == found
    if len(FUSING) > 1:
        assert results(FUSING[0], 2)["products"] == found
    assert lowest["winograd errors"][0] < 4 and lowest["winograd errors"][1] < 32


def test_functions_of_the_c_library():
    """The same bytes where glibc has no fused multiply-adds, and other sines and exponentials."""
    script = SCRIPT.parent / "elementary_functions.py"
    found = []
    for tunables in ("", "glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2"):
        answer = subprocess.run(
            [sys.executable, str(script), str(gluon_roi.library.PATH)],
            env={**os.environ, "GLIBC_TUNABLES": tunables},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        found.append(json.loads(answer.stdout))
    with_fma, without = (one.pop("C library") for one in found)
    assert found[0] == found[1]
    if "fma" in Path("/proc/cpuinfo").read_text().split():
        assert with_fma != without  # so that the test means something


@pytest.mark.night
def test_levels_and_threads():
    """All types; levels with one to three threads in turn, and the best level with two counts."""
    levels = [*LEVELS, LEVELS[-1]]
    found = [results(level, 1 + n % 3, "--all") for n, level in enumerate(levels)]
    assert all(other["operators"] == found[0]["operators"] for other in found)
    fusing = [one["products"] for one in found if one["level"] in FUSING]
    assert all(other == fusing[0] for other in fusing)
