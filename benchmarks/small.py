# SPDX-License-Identifier: Apache-2.0
"""The cost of small calls and its parts, next to MXNet's own operators.

    python -m benchmarks.small [--only REGEX] [--rounds 20]

See README.md next to this file.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import time
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Callable, Iterator, Sequence, Tuple
from unittest import mock

import mxnet as mx
import numpy as np
from mxnet import autograd
from mxnet.gluon import HybridBlock

import gluon_roi
from gluon_roi.bridge import arrays

from .kernels import Kernels
from .libraries import Mxnet
from .measure import Contender, note
from .report import columns, machine, write_report
from .work import POOLING, Item
from .worker import serve

#: How an operator is called, and what its block is hybridized with.
HYBRIDIZED: dict[str, dict[str, bool] | None] = {
    "nd": None,
    "block": None,
    "hybrid": {},
    "static": {"static_alloc": True, "static_shape": True},
}
PASSES = ("forward", "forward+backward")
#: What changes from call to call: the items in turn.
IN_TURN: dict[str, Callable[[Item], list[Item]]] = {
    "two maps in turn": lambda item: [item, replace(item, image=(800, 600))],
    "two K in turn": lambda item: [item, replace(item, rois=item.rois + 4)],
}
SCALES = itertools.count(1)
#: Of the time to the result, in the order of a call.
PARTS = ("arguments", "MXNet", "binding", "kernel", "product", "engine")
CALLS = 20  # of each in a round
#: Of MXNet: with its own threads, and without.
ENGINES = ("ThreadedEnginePerDevice", "NaiveEngine")

Function = Callable[[Any, Any], Any]  # of data and rois


# ---- In a process of its own ---------------------------------------------------------------------


class Net(HybridBlock):
    """A function of data and rois from a namespace, mx.nd or mx.sym."""

    def __init__(self, function: Callable[[Any], Function]) -> None:
        super().__init__()
        self._function = lru_cache(maxsize=None)(function)

    def hybrid_forward(self, F: Any, data: Any, rois: Any) -> Any:
        return self._function(F)(data, rois)


def hybridized(block: HybridBlock, way: str) -> HybridBlock:
    flags = HYBRIDIZED[way]
    if flags is not None:
        block.hybridize(**flags)
    return block


def ours(item: Item, way: str) -> Function:
    given = {"pooled_size": item.pooled, "spatial_scale": item.scale, **item.arguments}
    if way == "nd":
        return partial(getattr(gluon_roi.nd, item.operator), **given)
    return hybridized(getattr(gluon_roi, item.operator)(**given), way)


def theirs(item: Item, way: str) -> Function:
    def function(namespace: Any) -> Function:
        call = Mxnet(1)._call(item, namespace)
        return lambda data, rois: call(rois, data)

    return function(mx.nd) if way == "nd" else hybridized(Net(function), way)


def direct(function: Function, data: Any, rois: Any) -> Function:
    """The CachedOp of MXNet that our function ends in, without the Python before it."""
    found: list[Any] = []

    def calls(*key: Any) -> Any:
        found.append(original(*key))
        return found[-1]

    original = arrays._calls
    with mock.patch.object(arrays, "_calls", calls):
        function(data, rois)
        function(data, rois)
    # A hybridized block has a graph of its own.
    return getattr(function, "_cached_op", None) or found[-1].idle[-1]


def addition(way: str) -> Function:
    """A CachedOp with an operator of MXNet's own. (Static, elemwise_add has no backward pass.)"""
    if HYBRIDIZED[way] is None:
        return mx.nd.CachedOp(mx.sym.broadcast_add(mx.sym.var("a"), mx.sym.var("b")))
    block = hybridized(Net(lambda F: F.broadcast_add), way)
    block(mx.nd.ones(1), mx.nd.ones(1))
    return block._cached_op


class Inputs:
    """The arrays of a call, and a map to start from with a gradient."""

    def __init__(self, data: np.ndarray, rois: np.ndarray, d_out: np.ndarray) -> None:
        self.data, self.rois, self.d_out = map(mx.nd.array, (data, rois, d_out))
        self.leaf = self.data.copy()
        self.leaf.attach_grad()
        self.gradient = self.leaf.grad


def seconds(function: Function, inputs: Inputs, backward: bool) -> tuple[float, float]:
    """Until the call returns, and until its result is there.

    With the backward pass the map is the result of another operator, which is not timed; its
    backward pass is.
    """
    data = inputs.data
    if backward:
        with autograd.record():
            data = inputs.leaf * 1
    mx.nd.waitall()
    start = time.perf_counter()
    if backward:
        with autograd.record():
            out = function(data, inputs.rois)
        out.backward(inputs.d_out)
        result = inputs.gradient
    else:
        out = result = function(data, inputs.rois)
    issued = time.perf_counter()
    result.wait_to_read()
    return issued - start, time.perf_counter() - start


def seconds_in_turn(
    backward: bool, function: Function, inputs: Sequence[Inputs], number: int
) -> tuple[float, float]:
    return seconds(function, inputs[number % len(inputs)], backward)


def seconds_of_kernels(kernels: Kernels, backward: bool, number: int) -> tuple[float, float]:
    start = time.perf_counter()
    kernels.forward()
    if backward:
        kernels.backward()
    passed = time.perf_counter() - start
    return passed, passed


Timed = Callable[[int], Tuple[float, float]]  # of the number of the call


def timed_calls(item: Item) -> Iterator[tuple[str, str, dict[str, Timed]]]:
    """Everything timed for one operator: pass, way, and the functions called in turn."""
    calls: dict[str, Timed]
    libraries = {"gluon_roi": ours, "mxnet": theirs}
    one = np.ones(1, np.float32)
    single, given = Inputs(one, one, one), Inputs(*item.arrays())
    whole = Inputs(*(array.asnumpy() for array in (given.data, given.rois, given.data)))
    kernels = Kernels.of(item)
    for passed in PASSES:
        backward = passed == PASSES[1]
        timed = partial(seconds_in_turn, backward)
        for way in HYBRIDIZED:
            calls = {name: partial(timed, of(item, way), [given]) for name, of in libraries.items()}
            bare = direct(ours(item, way), given.data, given.rois)
            calls["direct"] = partial(timed, bare, [given])
            calls["addition"] = partial(timed, addition(way), [single])
            calls["kernel"] = partial(seconds_of_kernels, kernels, backward)
            if backward:
                calls["product"] = partial(timed, lambda data, rois: data, [whole])
                calls["product of one cell"] = partial(timed, lambda data, rois: data, [single])
            yield passed, way, calls
        for change, in_turn in IN_TURN.items():
            inputs = [Inputs(*other.arrays()) for other in in_turn(item)]
            for way in ("nd", "hybrid"):
                calls = {
                    name: partial(timed, of(item, way), inputs) for name, of in libraries.items()
                }
                yield passed, f"{way}, {change}", calls
        calls = {
            name: partial(seconds_of_new_scale, of, item, given, backward)
            for name, of in libraries.items()
        }
        yield passed, "nd, a new scale", calls


def seconds_of_new_scale(
    of: Callable[[Item, str], Function], item: Item, inputs: Inputs, backward: bool, number: int
) -> tuple[float, float]:
    scaled = Item.from_dict({**item.as_dict(), "stride": item.stride + next(SCALES) * 1e-6})
    return seconds(of(scaled, "nd"), inputs, backward)


def main_of_calls() -> None:
    """Time a round of calls of the named items: [item, pass, way, what, seconds] of each."""
    groups: list[tuple[str, str, str, dict[str, Timed]]] = []

    def answer_to(request: dict) -> dict:
        if request["do"] == "prepare":
            for fields in request["items"]:
                item = Item.from_dict(fields)
                groups.extend((item.name, *group) for group in timed_calls(item))
            return {}
        measured = []
        for item_name, passed, way, calls in groups:
            found: dict[str, list] = {what: [] for what in calls}
            # The first calls find the caches full of others' work, and are not counted.
            for number in range(request["calls"] + 1):
                for what, call in calls.items():
                    found[what].append(call(number))
            measured += [(item_name, passed, way, what, found[what][1:]) for what in calls]
        return {"measured": measured}

    serve(answer_to)


# ---- Measuring and writing -----------------------------------------------------------------------

Key = Tuple[str, str, str, str]  # item, pass, way, what


def measure(items: list[Item], rounds: int, calls: int) -> dict[str, dict[Key, np.ndarray]]:
    """Seconds with the engine's threads, and with everything in the calling one: (calls, 2)."""
    contenders = {
        engine: Contender("calls", sys.executable, 1, "benchmarks.small", MXNET_ENGINE_TYPE=engine)
        for engine in ENGINES
    }
    seconds: dict[str, dict[Key, list]] = {engine: {} for engine in ENGINES}
    try:
        for contender in contenders.values():
            contender.require(do="prepare", items=[item.as_dict() for item in items])
        for turn in range(rounds):
            note(f"round {turn + 1} of {rounds}")
            for engine in ENGINES if turn % 2 else reversed(ENGINES):
                answer = contenders[engine].require(do="round", calls=calls)
                for *key, measured in answer["measured"]:
                    item, passed, way, what = key
                    seconds[engine].setdefault((item, passed, way, what), []).extend(measured)
    finally:
        for contender in contenders.values():
            contender.close()
    return {
        engine: {key: np.array(measured) for key, measured in found.items()}
        for engine, found in seconds.items()
    }


def rows_of(seconds: dict[str, dict[Key, np.ndarray]]) -> list[dict]:
    """A row for each item, pass and way, in microseconds."""
    threads, alone = (seconds[engine] for engine in ENGINES)

    def total(found: dict[Key, np.ndarray], *key: str) -> float:
        item, passed, way, what = key
        return float(np.median(found[item, passed, way, what][:, 1]) * 1e6)

    rows = []
    for item, passed, way, library in threads:
        if library != "gluon_roi":
            continue
        row: dict[str, Any] = {"item": item, "pass": passed, "way": way}
        for library in ("gluon_roi", "mxnet"):
            until_issued, until_result = threads[item, passed, way, library].T * 1e6
            row[library] = {
                "median_us": float(np.median(until_result)),
                "quartiles_us": [float(q) for q in np.percentile(until_result, (25, 75))],
                "issue_us": float(np.median(until_issued)),
                "calls": len(until_result),
            }
        if (item, passed, way, "direct") in alone:
            whole = total(alone, item, passed, way, "gluon_roi")
            bare = total(alone, item, passed, way, "direct")
            mxnets = total(alone, item, passed, way, "addition")
            kernel = total(alone, item, passed, way, "kernel")
            product = 0.0
            if passed == PASSES[1]:
                product = total(alone, item, passed, way, "product")
                product -= total(alone, item, passed, way, "product of one cell")
            binding = bare - mxnets - kernel - product
            engine = row["gluon_roi"]["median_us"] - whole
            parts = (whole - bare, mxnets, binding, kernel, product, engine)
            row["parts_us"] = dict(zip(PARTS, parts))
        rows.append(row)
    return rows


def table(rows: list[dict]) -> str:
    lines = [["work", "pass", "way", "gluon_roi", "issue", "mxnet", "issue", "times", *PARTS]]
    for row in rows:
        mine, other = row["gluon_roi"], row["mxnet"]
        times = [mine["median_us"], mine["issue_us"], other["median_us"], other["issue_us"]]
        lines.append(
            [
                row["item"],
                row["pass"],
                row["way"],
                *(f"{value:.1f}" for value in times),
                f"{other['median_us'] / mine['median_us']:.2f}",
                *(f"{row['parts_us'][part]:.1f}" if "parts_us" in row else "-" for part in PARTS),
            ]
        )
    return columns(lines, left=(0, 1, 2))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name matches")
    parser.add_argument(
        "--rounds", type=int, default=20, help=f"of {CALLS} calls of each (default: 20)"
    )
    parser.add_argument("--output", default=os.path.join("build", "benchmarks"), metavar="FOLDER")
    parser.add_argument("--quick", action="store_true", help="one round of two calls: a test")
    options = parser.parse_args(argv)
    items = [i for i in POOLING if i.name.startswith("small") and re.search(options.only, i.name)]
    if not items:
        raise SystemExit(f"--only {options.only}: no row of small calls matches")
    rounds, calls = (1, 2) if options.quick else (options.rounds, CALLS)
    report: dict[str, Any] = {
        "machine": machine(),
        "command": ["python", "-m", "benchmarks.small", *(sys.argv[1:] if argv is None else argv)],
        "rows": rows_of(measure(items, rounds, calls)),
    }
    text = f"microseconds a call, medians of {rounds * calls}\n\n{table(report['rows'])}"
    write_report(options.output, "small", report, text)
    print(text)
    note(f"written to {options.output}")


if __name__ == "__main__":
    main_of_calls() if sys.argv[1:2] == ["calls"] else main()
