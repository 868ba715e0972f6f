# SPDX-License-Identifier: Apache-2.0
"""Prints digests of the operators that need sines, cosines or exponentials, as JSON.

    python elementary_functions.py LIBRARY

"C library" is the digest of sines, cosines and exponentials of the C library itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from testing import c_api  # noqa: E402

library = c_api.Library(sys.argv[1])
CPU = c_api.Device(c_api.CPU)
rng = np.random.RandomState(0)


def numbers(*shape: int, low: float = -2, high: float = 2, dtype: str = "float64") -> np.ndarray:
    """Uniform ones, because normal ones are made with a logarithm of the C library."""
    return rng.uniform(low, high, shape).astype(dtype)


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def forward(op: str, p: Any, inputs: list, outputs: list) -> str:
    library.forward(op, p, c_api.tensors(*inputs), outputs, CPU)
    return digest(*outputs)


def rotated_boxes(count: int) -> np.ndarray:
    return np.hstack([numbers(count, 4, low=1, high=20), numbers(count, 1, low=-720, high=720)])


def rotated_roi_align(dtype: str) -> str:
    op, p = "rotated_roi_align", library.params("rotated_roi_align", (1, 2), 1.0, rois_grad=True)
    data = numbers(1, 2, 20, 20, dtype=dtype)
    rois = np.hstack([np.zeros((20000, 1)), rotated_boxes(20000)]).astype(dtype)
    out, gradients = np.zeros((20000, 2, 1, 2), dtype), [np.zeros_like(data), np.zeros_like(rois)]
    result = forward(op, p, [data, rois], [out])
    library.backward(op, p, c_api.tensors(data, rois), out, gradients, CPU)
    return result + digest(*gradients)


def proposal(dtype: str) -> str:
    counts = {"rpn_pre_nms_top_n": 14400, "rpn_post_nms_top_n": 14400}
    p = library.operators["proposal"].params_of(**counts)
    scores, deltas = numbers(1, 24, 40, 30, dtype=dtype), numbers(1, 48, 40, 30, dtype=dtype)
    outputs = [np.zeros((14400, 5), dtype), np.zeros((14400, 1), dtype)]
    return forward("proposal", p, [scores, deltas, np.array([[640, 480, 1]], dtype)], outputs)


def suppression(dtype: str) -> str:
    forms = {"in_format": "rotated", "out_format": "rotated", "coord_start": 1, "score_index": 0}
    p = library.operators["box_nms"].params_of(method="gaussian", id_index=-1, **forms)
    rows = np.hstack([numbers(300, 1, low=0, high=1), rotated_boxes(300)]).astype(dtype)
    return forward("box_nms", p, [rows], [np.zeros_like(rows), np.zeros((300, 1), "int32")])


c_functions = (math.sin, math.cos, math.exp)
found = {"C library": digest(np.array([f(x) for f in c_functions for x in numbers(9999)]))}
for call in (rotated_roi_align, proposal, suppression):
    for dtype in ("float32", "float64"):
        found[f"{call.__name__} {dtype}"] = call(dtype)
print(json.dumps(found))
