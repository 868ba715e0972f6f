# SPDX-License-Identifier: Apache-2.0
"""Calls every function of gluon_roi.h where the environment may be wrong, and prints its answer.

    python poisoned.py LIBRARY

That of an operator's function is its code and message, and whether it has written nothing; that of
the others is the beginning of their text, and the message.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS)]
from support.c_calls import whole_call  # noqa: E402

from testing import c_api  # noqa: E402

LIBRARY = c_api.Library(sys.argv[1])

MARK = 77


def message() -> str:
    return LIBRARY.c.gluon_roi_last_error().decode()


def answer(op: str, function: str) -> list:
    p, inputs, outputs = whole_call(LIBRARY, op)
    gradients = [np.zeros_like(array) for array in inputs]
    for array in (*outputs, *gradients):
        array.fill(MARK)
    given = c_api.tensors(*inputs)
    call = [ctypes.byref(p), given, len(given)]
    device = ctypes.byref(c_api.Device(c_api.CPU))
    more = {
        "forward": [c_api.tensors(*outputs), device],
        "backward": [c_api.tensors(*outputs), c_api.tensors(*gradients), device],
        "workspace": [0, c_api.CPU, ctypes.byref(ctypes.c_size_t())],
    }
    code = getattr(LIBRARY.c, f"gluon_roi_{op}_{function}")(*call, *more[function])
    untouched = all((array == MARK).all() for array in (*outputs, *gradients))
    return [code, message(), untouched]


def main() -> None:
    answers = {}
    include = TESTS.parent / "src/include"
    header = (include / "gluon_roi.h").read_text()
    common = (include / "gluon_roi/common.h").read_text()
    for name in re.findall(r"^const char\* gluon_roi_(\w+)\(void\);", header, re.M):
        text = getattr(LIBRARY.c, f"gluon_roi_{name}")()
        answers[name] = [None if text is None else text.decode()[:12], message()]
    for op in re.findall(r"^  X\((\w+)\)", header, re.M):
        for function in re.findall(r"int gluon_roi_##op##_(\w+)\(", common):
            answers[f"{op}_{function}"] = answer(op, function)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
