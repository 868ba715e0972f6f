"""What the benchmarks take from tests/: the rows of the table, and the C interface."""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TESTS = os.path.join(ROOT, "tests")
sys.path.insert(0, TESTS)
import c_api  # noqa: E402
from operators import ITEMS  # noqa: E402

# Its folder `onnx` would pass for the package.
sys.path.remove(TESTS)

__all__ = ["ITEMS", "ROOT", "c_api"]
