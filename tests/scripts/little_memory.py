# SPDX-License-Identifier: Apache-2.0
"""Calls operators in C with 8 MB of memory, and prints code and message of each.

The calls of "many cells" need more. Those of "few cells" read a small part of a large map.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Callable

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from testing import c_api  # noqa: E402

library = c_api.Library(sys.argv[1])
CPU = c_api.Device(c_api.CPU)
SIDE = 2000


def forward(op, p, inputs, outputs) -> Callable[[], None]:
    return lambda: library.forward(op, p, c_api.tensors(*inputs), outputs, CPU)


def pools(op: str, box: list):
    """One box on a large map: its cells, for many channels at a time, do not fit."""
    p = library.params(op, (1, 1), 1.0)
    data, rois = np.ones((1, 8, SIDE, SIDE), "float32"), np.array([[0, *box]], "float32")
    return forward(op, p, [data, rois], [np.zeros((1, 8, 1, 1), "float32")])


def suppresses(rows: np.ndarray):
    p = library.operators["box_nms"].params_of()
    indices = np.zeros((*rows.shape[:-1], 1), "int32")
    return forward("box_nms", p, [rows], [np.zeros_like(rows), indices])


def proposes():
    p = library.operators["proposal"].params_of(scales=(1.0,), ratios=(1.0,))
    maps = np.ones((1, 2, SIDE, SIDE), "float32"), np.ones((1, 4, SIDE, SIDE), "float32")
    outputs = [np.zeros((300, 5), "float32"), np.zeros((300, 1), "float32")]
    return forward("proposal", p, [*maps, np.ones((1, 3), "float32")], outputs)


def pools_few_cells(sampling_ratio: int):
    """Both passes of RotatedROIAlign with 40 boxes of 60 x 20 cells across the map."""
    p = library.params(
        "rotated_roi_align", (7, 7), 1.0, sampling_ratio=sampling_ratio, rois_grad=True
    )
    data, at = np.ones((1, 1, SIDE, SIDE), "float32"), np.linspace(100, SIDE - 100, 40)
    rois = np.stack([0 * at, at, at[::-1], 0 * at + 60, 0 * at + 20, at], 1).astype("float32")
    out = np.ones((len(rois), 1, 7, 7), "float32")
    gradients = [np.zeros_like(data), np.zeros_like(rois)]

    def call() -> None:
        inputs = c_api.tensors(data, rois)
        library.forward("rotated_roi_align", p, inputs, out, CPU)
        library.backward("rotated_roi_align", p, inputs, out, gradients, CPU)

    return call


def answer(call: Callable[[], None]) -> list:
    try:
        call()
    except c_api.Error as error:
        return [error.code, str(error)]
    return [c_api.OK, ""]


corners = [0, 0, SIDE - 1, SIDE - 1]
calls = {
    "many cells": {
        "roi_pool": pools("roi_pool", corners),
        "roi_align": pools("roi_align", corners),
        "rotated_roi_align": pools("rotated_roi_align", [SIDE / 2, SIDE / 2, SIDE, SIDE, 0]),
        "box_nms": suppresses(np.ones((2000000, 6), "float32")),
        "proposal": proposes(),
    },
    "few cells": {
        "adaptive": pools_few_cells(-1),
        "samples apart": pools_few_cells(1),
    },
}
# Starts all threads, whose stacks count as well; libgomp ends the process if it cannot start one.
assert answer(suppresses(np.ones((16, 2000, 6), "float32"))) == [c_api.OK, ""]
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20),) * 2)
print(
    json.dumps(
        {
            cells: {name: answer(call) for name, call in named.items()}
            for cells, named in calls.items()
        }
    )
)
