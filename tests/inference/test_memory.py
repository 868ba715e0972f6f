# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from gluon_roi.inference.memory import return_freed_memory


def _resident_mib():
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def test_freed_memory_below_a_block_in_use_is_returned():
    blocks = [bytearray(b"x" * 100_000) for _ in range(3000)]
    last = bytearray(b"x" * 100_000)
    held = _resident_mib()
    del blocks
    return_freed_memory()
    assert held - _resident_mib() > 200
    assert len(last) == 100_000
