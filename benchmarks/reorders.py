# SPDX-License-Identifier: Apache-2.0
"""How often oneDNN changes the layout of maps and weights in a call of whole detectors.

    python -m benchmarks.reorders [--only faster_rcnn_fpn center_net]

The models are those of benchmarks.onnx, on one thread: switched by gluon_roi.optimize, and for
inference, both compiled with static_alloc and static_shape. Counted are the reorders of a second
call, by DNNL_VERBOSE=1, and their milliseconds, as oneDNN prints them.
Transpositions of the network itself, which oneDNN computes as well, are among them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings

import mxnet as mx

import gluon_roi

from .onnx import MODELS, inputs_of, make

WAYS = {"switched": False, "inference": True}
#: Printed before the call that is counted.
MARK = "reorders of the next call"


def call(name: str, way: str) -> None:
    """Call a model twice, in a process whose oneDNN prints what it does."""
    model = MODELS[name]
    inputs = inputs_of(model)
    net = make(model, inputs[0])
    net(*inputs)
    gluon_roi.optimize(net, *inputs, inference=WAYS[way], static_alloc=True, static_shape=True)
    net(*inputs)
    mx.nd.waitall()
    print(MARK, flush=True)
    net(*inputs)
    mx.nd.waitall()


def count(name: str, way: str) -> tuple[int, float]:
    """The number of reorders of a call, and their milliseconds."""
    command = [sys.executable, "-m", "benchmarks.reorders", "--call", name, way]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DNNL_VERBOSE": "1"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = done.stdout.split(MARK)[1].splitlines()
    found = [line for line in lines if ",reorder," in line]
    return len(found), sum(float(line.rsplit(",", 1)[1]) for line in found)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=MODELS, metavar="MODEL")
    parser.add_argument("--call", nargs=2, help=argparse.SUPPRESS)  # of one process
    given = parser.parse_args()
    if given.call:
        call(*given.call)
        return
    print("| model |", " | ".join(f"{way}: reorders | ms" for way in WAYS), "|")
    print("|---" * (1 + 2 * len(WAYS)) + "|", flush=True)
    for name in given.only:
        counts = [count(name, way) for way in WAYS]
        cells = [f"{number} | {spent:.1f}" for number, spent in counts]
        print(f"| {MODELS[name].title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
