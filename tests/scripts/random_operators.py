# SPDX-License-Identifier: Apache-2.0
"""Prints the operators of MXNet whose outputs change with the seed of its random numbers.

    python tests/scripts/random_operators.py MAX_INPUTS

calls each operator with up to MAX_INPUTS inputs and plain attributes, each in a process of its own,
because MXNet ends in SIGSEGV for some. The output is a JSON list.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
from typing import Any

import mxnet as mx
import numpy as np
from mxnet import base

#: They need Python code, bodies or files.
LEFT_OUT = (
    "Custom",
    "_CustomF",
    "_NDArray",
    "_Native",
    "_Cached",
    "_cond",
    "_cv",
    "_for",
    "_while",
)
ATTRIBUTES: tuple[dict[str, Any], ...] = (
    {},
    {"shape": (6,)},
    {"mode": "always"},
    {"size": 6},
    {"a": 6, "size": 6},
    {"shape": (6,), "low": 0, "high": 1000},
)
SEEDS = range(1, 9)  # two alone may shuffle a few rows alike
INPUTS = (np.linspace(0.2, 0.9, 6).reshape(2, 3), np.linspace(0.2, 0.9, 36).reshape(1, 4, 3, 3))


def operators() -> list[str]:
    count, names = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    base.check_call(base._LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(names)))
    found = sorted(names[i].decode() for i in range(count.value))
    return [name for name in found if not ("backward" in name or name.startswith(LEFT_OUT))]


def symbol(operator: str, inputs: int, attributes: dict[str, Any]) -> mx.sym.Symbol:
    nodes: list[dict] = [{"op": "null", "name": f"x{i}", "inputs": []} for i in range(inputs)]
    node = {"op": operator, "name": "y", "inputs": [[i, 0, 0] for i in range(inputs)]}
    nodes.append({**node, "attrs": {key: str(value) for key, value in attributes.items()}})
    content = {"nodes": nodes, "arg_nodes": list(range(inputs)), "heads": [[inputs, 0, 0]]}
    return mx.sym.load_json(json.dumps(content))


def results(call: mx.sym.Symbol, inputs: list[np.ndarray], seed: int) -> list[np.ndarray]:
    mx.random.seed(seed)
    # A CachedOp needs an input, and gradients of all operators unless they are blocked.
    op = mx.nd.CachedOp(mx.sym.Group([mx.sym.BlockGrad(call), mx.sym.var("unused")]))
    found = op(*map(mx.nd.array, inputs), mx.nd.zeros(1))
    return [array.asnumpy() for array in found]


def print_if_random(operator: str, most: int) -> None:
    for count, attributes, array in itertools.product(range(most + 1), ATTRIBUTES, INPUTS):
        try:
            call = symbol(operator, count, attributes)
            first, *others = (results(call, [array] * count, seed) for seed in SEEDS)
        except (mx.MXNetError, TypeError, ValueError):
            continue
        pairs = [pair for other in others for pair in zip(first, other)]
        if not all(np.array_equal(one, other, equal_nan=True) for one, other in pairs):
            print(json.loads(call.tojson())["nodes"][-1]["op"], flush=True)
            return


if __name__ == "__main__":
    for operator in operators():
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
            print_if_random(operator, int(sys.argv[1]))
            os._exit(0)
        os.waitpid(child, 0)
