# SPDX-License-Identifier: Apache-2.0
"""Times the operators next to other libraries; prints a table, writes JSON and a chart.

    python -m benchmarks --peer torchvision=/path/to/env/bin/python --peer paddle=...

See README.md next to this file.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from dataclasses import replace
from typing import Any, Sequence

from .libraries import LIBRARIES
from .measure import LIMIT, OURS, PAUSE, SAME, Contender, measure, measure_idle, note
from .report import chart, idle_table, machine, table, write_report
from .work import IDLE, ITEMS


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="LIBRARY=PYTHON",
        help="also measure LIBRARY with this interpreter; one of "
        + ", ".join(k for k in LIBRARIES if k not in (OURS, LIMIT))
        + ". Those that the running interpreter can import are measured without it.",
    )
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="default: 1")
    parser.add_argument("--only", default="", metavar="REGEX", help="rows whose name matches")
    parser.add_argument(
        "--dtype",
        nargs="+",
        default=["float32"],
        choices=sorted(SAME),
        help="of the data; one row after the other for each (default: float32)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default: 7)")
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="of each library and round (default: 0.3)"
    )
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="of all threads of a process, instead of the time that passes: with other programs "
        "on the machine",
    )
    parser.add_argument("--output", default=os.path.join("build", "benchmarks"), metavar="FOLDER")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, two rounds: tests the script"
    )
    return parser.parse_args(argv)


def interpreters(peers: Sequence[str]) -> dict[str, str]:
    """Library -> Python to run it with."""
    here = {
        name: sys.executable
        for name, library in LIBRARIES.items()
        if name == LIMIT or all(importlib.util.find_spec(m) for m in library.modules)
    }
    for peer in peers:
        name, _, python = peer.partition("=")
        if name not in LIBRARIES or not python:
            raise SystemExit(
                f"--peer {peer}: expected LIBRARY=PYTHON with a LIBRARY of {', '.join(LIBRARIES)}"
            )
        here[name] = python
    return here


def main(argv: Sequence[str] | None = None) -> dict:
    options = arguments(argv)
    chosen: list[Any] = [item for item in ITEMS if re.search(options.only, item.name)]
    items = [replace(item, dtype=dtype) for item in chosen for dtype in options.dtype]
    rounds, seconds = options.rounds, options.seconds
    if options.quick:
        items, rounds, seconds = [item.shrunk() for item in items], 2, 0.0
    contenders = [
        Contender(library, python, threads)
        for library, python in interpreters(options.peer).items()
        if items or library == OURS
        for threads in (options.threads if library != LIMIT else [1])
    ]
    report: dict[str, Any] = {"machine": machine(), "versions": {}, "rows": []}
    report["command"] = ["python", "-m", "benchmarks", *(sys.argv[1:] if argv is None else argv)]
    try:
        usable = []
        for contender in contenders:
            answer = contender.ask(do="version")
            if "error" in answer:
                note(f"{contender.library} is left out: {answer['error']}")
                continue
            report["versions"][contender.library] = answer["version"]
            usable.append(contender)
        if not any(c.library == OURS for c in usable):
            raise SystemExit("gluon_roi cannot be imported; build it first")
        for number, item in enumerate(items, 1):
            note(f"[{number}/{len(items)}] {item.name} {item.dtype}")
            report["rows"] += measure(item, usable, rounds, seconds, options.processor_time)
        report["idle"] = []
        if re.search(options.only, IDLE.name):
            note(IDLE.name)
            python = interpreters(options.peer)[OURS]
            work = (IDLE.shrunk(), 1, 0.0) if options.quick else (IDLE, rounds, PAUSE)
            report["idle"] = measure_idle(python, *work)
    finally:
        for contender in contenders:
            contender.close()

    text = "\n\n".join(
        write(report[rows])
        for rows, write in (("rows", table), ("idle", idle_table))
        if report[rows]
    )
    versions = ", ".join(f"{k} {v}" for k, v in report["versions"].items() if k != LIMIT)
    head = f"{versions}\nmilliseconds a call, medians; * other bins or samples"
    write_report(options.output, "results", report, f"{head}\n\n{text}")
    if report["rows"] and importlib.util.find_spec("matplotlib"):
        chart(report["rows"], os.path.join(options.output, "results.png"))
    print(text)
    note(f"written to {options.output}")
    return report


if __name__ == "__main__":
    main()
