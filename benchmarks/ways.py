# SPDX-License-Identifier: Apache-2.0
"""The ways of measuring a call, and the repository's folder. Imports nothing of the benchmarks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What can be measured, in the order of the table; libraries/base.py explains each.
WAYS = (
    "forward",
    "forward, out=",
    "forward+backward",
    "forward in a network",
    "forward+backward in a network",
)
