# SPDX-License-Identifier: Apache-2.0
"""Prints the JSON text of each graph of test_graph.py in which a map has many users."""

import sys
from pathlib import Path

import mxnet as mx

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "bridge")]
from operators import OPERATORS  # noqa: E402
from test_graph import MANY_USERS, Network  # noqa: E402

for op in OPERATORS:
    for calls in MANY_USERS:
        with mx.name.NameManager():
            print(Network(op, calls, 3).symbol().tojson())
