# SPDX-License-Identifier: Apache-2.0
"""Random graphs of MXNet's operators (tests/support/graphs/), exported and compared.

    python tests/onnx_graphs.py --graphs 2000 --seed 7

exports that many graphs, runs them in onnxruntime, and prints differences.
tests/test_onnx_graphs.py does the same with a few.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from support.graphs import graph
from support.onnx_evaluator import run


def check(seed: int, path: Path) -> str:
    """What differs in the graph of a number, one line, or nothing."""
    made = graph(seed)
    if not made.calls:
        return ""
    try:
        inputs = made.export(path)
        found = run(path, *(t.value.asnumpy() for t in inputs))
    except Exception as error:  # whatever it is, it is a difference
        if "NOT_IMPLEMENTED" in str(error):  # of onnxruntime, which has few operators in float64
            return ""
        return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return made.compare(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.graphs):
            difference = check(seed, Path(folder) / "model.onnx")
            if difference:
                failed += 1
                print(f"{seed}: {difference}", *graph(seed).calls, sep="\n    ", flush=True)
    print(f"{failed} of {arguments.graphs} graphs differ")


if __name__ == "__main__":
    main()
