# SPDX-License-Identifier: Apache-2.0
"""Compares random networks with loops before and after their conversion for inference.

    MXNET_ENGINE_TYPE=NaiveEngine python tests/scripts/inference_loops.py 0 200

prints what differs, for each seed from the first number on to the one before the second.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gluon_roi.inference import winograd

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "inference")]

from test_inference_random import either_tile, wrong_networks  # noqa: E402

if __name__ == "__main__":
    winograd.pays = lambda *sizes: True  # Winograd's algorithm for layers of any size
    winograd.tile_size = either_tile
    print(json.dumps(wrong_networks(range(int(sys.argv[1]), int(sys.argv[2])), loops=True)))
