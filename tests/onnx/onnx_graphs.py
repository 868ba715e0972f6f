# SPDX-License-Identifier: Apache-2.0
"""Random graphs of MXNet's operators (tests/support/graphs/), exported and compared.

    python tests/onnx/onnx_graphs.py --graphs 2000 --seed 7 [--runtime openvino]

exports that many graphs, runs them in a runtime, and prints differences. test_onnx_graphs.py does
the same with a few.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Callable

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support.graphs import graph  # noqa: E402
from support.onnx_evaluator import RUNS, run  # noqa: E402

INTEGERS = ("int32", "int64", "int8", "uint8", "bool")
#: What the exporter rejects: dynamic axes that a graph does not have, and integers where ONNX's
#: operator takes floats only.
REFUSALS = (
    "an axis whose size is dynamic has no translation",
    " cannot be dynamic",
    ", which must have its size, is ",
    " is dynamic, expected a static one",
    *(f": {dtype} data have no translation" for dtype in INTEGERS),
    *(f" no translation for {dtype} data, whose numbers are from" for dtype in INTEGERS),
    "have no translation, expected 2 or 4",
)


def check(seed: int, path: Path, run: Callable = run, zero_sizes: bool = True) -> str:
    """What differs in the graph of a number, one line, or nothing."""
    made = graph(seed, zero_sizes=zero_sizes)
    if not made.calls or (run is RUNS["openvino"] and made.has_small_integers()):
        return ""  # OpenVINO computes small integers with other types, in which nothing wraps
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            inputs = made.export(path)
        except Exception as error:  # whatever it is, it is a difference
            if any(reason in str(error) for reason in REFUSALS):
                return ""
            return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    has_kernels = not any("no float64 kernel" in str(each.message) for each in warned)
    for sizes in (None, *made.other_sizes(inputs)):
        given = sizes.all(inputs) if sizes else inputs
        at = f"at {', '.join(str(t.shape) for t in given)}: " if sizes else ""
        try:
            found = run(path, *(t.value.asnumpy() for t in given))
        except Exception as error:
            if not has_kernels and "NOT_IMPLEMENTED" in str(error):
                return ""
            return f"{at}{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        difference = made.compare(found, sizes)
        if difference:
            return at + difference
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-zero-sizes", action="store_true", help="which MXNet may not survive")
    parser.add_argument("--runtime", choices=RUNS, default="onnxruntime")
    arguments = parser.parse_args()
    call = RUNS[arguments.runtime]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.graphs):
            zero_sizes = not arguments.no_zero_sizes
            difference = check(seed, Path(folder) / "model.onnx", call, zero_sizes)
            if difference:
                failed += 1
                calls = graph(seed, zero_sizes=zero_sizes).calls
                print(f"{seed}: {difference}", *calls, sep="\n    ", flush=True)
    print(f"{failed} of {arguments.graphs} graphs differ")


if __name__ == "__main__":
    main()
