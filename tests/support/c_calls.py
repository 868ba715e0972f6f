# SPDX-License-Identifier: Apache-2.0
"""Calls of each function of the C interface that work. Needs only NumPy."""

from __future__ import annotations

import numpy as np

from testing import c_api


def good_call(library: c_api.Library, op: str) -> tuple:
    """The struct and the arrays of a forward call that works, to be spoiled."""
    parameters = library.operators[op].parameters
    channels = 4 if "output_dim" in parameters else 1
    scale = (1.0,) if parameters["spatial_scale"]["kind"] == "positive_list" else 1.0
    arrays = {
        "data": np.zeros((1, channels, 4, 4), "float32"),
        "rois": np.zeros((2, library.operators[op].coordinates + 1), "float32"),
        "out": np.zeros((2, 1, 2, 2), "float32"),
    }
    return library.params(op, (2, 2), scale), arrays


#: Operators that pool no boxes: parameters, and shapes of inputs and outputs.
OTHERS: dict[str, tuple[dict, list, list]] = {
    "deformable_sampling": (
        {"kernel": 1},
        [(1, 1, 4, 4), (1, 2, 4, 4), (1, 1, 4, 4)],
        [(1, 1, 4, 4)],
    ),
    "box_nms": ({}, [(3, 6)], [(3, 6), (3, 1)]),
    "box_iou": ({}, [(3, 4), (2, 4)], [(3, 2)]),
    "proposal": (
        {"scales": (1.0,), "ratios": (1.0,), "rpn_post_nms_top_n": 2},
        [(1, 2, 2, 2), (1, 4, 2, 2), (1, 3)],
        [(2, 5), (2, 1)],
    ),
}


def whole_call(library: c_api.Library, op: str) -> tuple:
    """The struct, inputs and outputs of a call with every input, which works."""
    if op in OTHERS:
        arguments, inputs, outputs = OTHERS[op]
        dtypes = ["float32", "int32" if op == "box_nms" else "float32"]
        return (
            library.operators[op].params_of(**arguments),
            [np.zeros(shape, "float32") for shape in inputs],
            [np.zeros(shape, dtype) for shape, dtype in zip(outputs, dtypes)],
        )
    p, arrays = good_call(library, op)
    given = {
        "data": arrays["data"],
        "rois": arrays["rois"][:, 1:].copy(),
        "trans": np.zeros((2, 2, 2, 2), "float32"),
        "offset": np.zeros((2, 2, 2, 2), "float32"),
        "mask": np.zeros((2, 1, 2, 2), "float32"),
        "rois_num": np.array([2], "int32"),
    }
    return p, [given[name["name"]] for name in library.operators[op].inputs], [arrays["out"]]
