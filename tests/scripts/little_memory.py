# SPDX-License-Identifier: Apache-2.0
"""Calls operators in C with less memory than they need, and prints code and message of each."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from testing import c_api  # noqa: E402

library = c_api.Library(sys.argv[1])
CPU = c_api.Device(c_api.CPU)
SIDE = 2000


def pools(op: str, **arguments):
    """One box on a large map: its cells, for many channels at a time, do not fit."""
    p = library.params(op, (1, 1), 1.0, **arguments)
    data = np.ones((1, 8, SIDE, SIDE), "float32")
    rois = np.array([[0, 0, 0, SIDE - 1, SIDE - 1]], "float32")
    return op, p, [data, rois], [np.zeros((1, 8, 1, 1), "float32")]


def suppresses():
    rows = np.ones((2000000, 6), "float32")
    p = library.operators["box_nms"].params_of()
    return "box_nms", p, [rows], [np.zeros_like(rows), np.zeros((len(rows), 1), "int32")]


def proposes():
    shape = (1, 2, SIDE, SIDE)
    p = library.operators["proposal"].params_of(scales=(1.0,), ratios=(1.0,))
    maps = np.ones(shape, "float32"), np.ones((1, 4, SIDE, SIDE), "float32")
    outputs = [np.zeros((300, 5), "float32"), np.zeros((300, 1), "float32")]
    return "proposal", p, [*maps, np.ones((1, 3), "float32")], outputs


def answer(op, p, inputs, outputs) -> list:
    try:
        library.forward(op, p, c_api.tensors(*inputs), outputs, CPU)
    except c_api.Error as error:
        return [error.code, str(error)]
    return [c_api.OK, ""]


calls = [
    pools("roi_pool"),
    pools("roi_align"),
    pools("rotated_roi_align"),
    suppresses(),
    proposes(),
]
calls[2][2][1] = np.array([[0, SIDE / 2, SIDE / 2, SIDE, SIDE, 0]], "float32")
# Starts all threads, whose stacks count as well; libgomp ends the process if it cannot start one.
many = np.ones((16, 2000, 6), "float32")
outputs = [np.zeros_like(many), np.zeros((16, 2000, 1), "int32")]
assert answer("box_nms", calls[3][1], [many], outputs) == [c_api.OK, ""]
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20),) * 2)
print(json.dumps({call[0]: answer(*call) for call in calls}))
