# SPDX-License-Identifier: Apache-2.0
"""Prints the instruction set, and digests of every operator's results with it, as JSON.

    python instruction_sets.py [--all]

With --all each call is made in float32, float64 and float16; otherwise the calls cycle through
these types. The environment sets the instruction set and the threads; a process reads it once. The
largest errors of WinogradConvolution are printed as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gluon_roi

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import digests, winograds  # noqa: E402

print(
    json.dumps(
        {
            "level": gluon_roi.build_info()["simd"],
            "operators": digests.of_operators("--all" in sys.argv),
            "products": digests.of_products(),
            "winograd errors": [winograds.error(tile) for tile in (4, 6)],
        }
    )
)
