"""Time the operators side by side with other libraries; print a table, write JSON and a chart.

    python -m benchmarks --peer torchvision=/path/to/env/bin/python --peer paddle=...

See README.md next to this file.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any, Sequence

import numpy as np

from .libraries import LIBRARIES, WAYS
from .of_tests import ITEMS, ROOT
from .work import IDLE, Item, shrink

OURS, LIMIT = "gluon_roi", "limit"
#: Outputs that differ by more than this part of the largest value are of another convention.
SAME = {"float16": 1e-2, "float32": 1e-3, "float64": 1e-3}
#: Above this many seconds a call needs no call before it to warm up.
LONG_CALL = 0.5
#: What a call that fills fresh memory comes after.
STATES = {"loop": "in a loop", "pause": "after 3 idle seconds", "new process": "in a new process"}
PAUSE = 3.0
#: GLUON_ROI_HUGE_PAGES, unset among them.
PAGES = {"huge pages while fast": "", "4 kB pages": "0", "huge pages": "1"}
MOST_CALLS = 200
#: glibc keeps freed memory of up to 32 MB an array, for every library. By default the layout of the
#: heap decides whether it does: forward of one ROIAlign row took 2.5 or 5.8 ms.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}


class Contender:
    """One library with one number of threads, in a process of its own."""

    def __init__(
        self,
        library: str,
        python: str,
        threads: int,
        module: str = "benchmarks.worker",
        **variables: str,
    ) -> None:
        self.library, self.python, self.threads = library, python, threads
        self.module, self.variables = module, variables
        self.process = self.start()

    def start(self) -> subprocess.Popen:
        variables = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        threads = str(self.threads)
        return subprocess.Popen(
            [self.python, "-m", self.module, self.library, threads],
            cwd=ROOT,
            env={
                **os.environ,
                **KEEP_MEMORY,
                **dict.fromkeys(variables, threads),
                "PYTHONPATH": ROOT,
                **self.variables,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, **request: Any) -> dict:
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"the process of {self.library} ended with {self.process.wait()}"}
        return json.loads(line)

    def require(self, **request: Any) -> dict:
        """The answer, which is no error."""
        answer = self.ask(**request)
        if "error" in answer:
            raise SystemExit(f"{self.module}: {answer['error']}")
        return answer

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- Measuring -----------------------------------------------------------------------------------


def differs(ours: Sequence[float], theirs: Sequence[float], dtype: str) -> bool:
    if len(ours) != len(theirs):
        return True
    a, b = np.asarray(ours), np.asarray(theirs)
    return bool(np.abs(a - b).max() > SAME[dtype] * np.abs(a).max())


def measure(item: Item, contenders: list[Contender], rounds: int, seconds: float) -> list[dict]:
    """Rows of one item: one for each way and number of threads."""
    ways: dict[int, list[str]] = {}
    samples = {}
    moved: dict[str, int] = {}
    for i, contender in enumerate(contenders):
        if contender.process.poll() is not None:
            contender.process = contender.start()
        answer = contender.ask(do="prepare", item=item.as_dict(), call=True)
        if "error" in answer:
            note(f"  {contender.library}: {answer['error']}")
        ways[i] = [w for w in answer.get("ways", ()) if item.reuse or w != "forward, out="]
        samples[i] = answer.get("sample", [])
        moved.update(answer.get("bytes", {}))

    plan = []  # contender, way, calls a round, warm
    for i, contender in enumerate(contenders):
        for way in ways[i]:
            began = time.perf_counter()
            answer = contender.ask(do="time", way=way, calls=1, warm=False)
            short = answer.get("seconds", [LONG_CALL])[0] < LONG_CALL
            if short:
                # The first call may have compiled or allocated something.
                began = time.perf_counter()
                answer = contender.ask(do="time", way=way, calls=1, warm=False)
            if "error" in answer:
                note(f"  {contender.library}, {way}: {answer['error']}")
                continue
            # What other operators take in between is time as well.
            took = time.perf_counter() - began
            calls = int(min(max(seconds / took, 1), MOST_CALLS))
            plan.append((i, way, calls, short))

    times: dict[tuple[int, str], list[float]] = {}
    for turn in range(rounds):
        # Another library begins each round.
        start = turn % max(len(plan), 1)
        for i, way, calls, warm in plan[start:] + plan[:start]:
            answer = contenders[i].ask(do="time", way=way, calls=calls, warm=warm)
            times.setdefault((i, way), []).extend(answer.get("seconds", ()))
    for contender in contenders:
        contender.ask(do="release")

    rows = []
    for threads in sorted({c.threads for c in contenders if c.library == OURS}):
        ours = next(
            i for i, c in enumerate(contenders) if (c.library, c.threads) == (OURS, threads)
        )
        for way in WAYS:
            results = {}
            for i, contender in enumerate(contenders):
                # Copying is measured with one thread and stands for all.
                if contender.library != LIMIT and contender.threads != threads:
                    continue
                if times.get((i, way)):
                    low, median, high = np.percentile(times[i, way], (25, 50, 75)) * 1e3
                    results[contender.library] = {
                        "median_ms": median,
                        "quartiles_ms": [low, high],
                        "calls": len(times[i, way]),
                        "other_convention": contender.library != LIMIT
                        and differs(samples[ours], samples[i], item.dtype),
                    }
            if OURS in results:
                rows.append(summary(item, way, threads, moved.get(way), results))
    return rows


def summary(
    item: Item, way: str, threads: int, moved: int | None, results: dict[str, dict]
) -> dict:
    ours = results[OURS]["median_ms"]
    peers = {k: v["median_ms"] for k, v in results.items() if k not in (OURS, LIMIT)}
    best = min(peers, key=peers.__getitem__) if peers else None
    limit = results.get(LIMIT, {}).get("median_ms")
    return {
        "item": item.name,
        "dtype": item.dtype,
        "way": way,
        "threads": threads,
        "best_peer": best,
        "times_faster": peers[best] / ours if best else None,
        "bytes_to_move": moved,
        "of_limit": limit / ours if limit else None,
        "results": results,
    }


def measure_idle(python: str, item: Item, rounds: int, pause: float) -> list[dict]:
    """Rows of a large output in fresh memory: one for each of STATES, a time for each of PAGES.

    The call in a new process is its first; then come some in a loop, and one after a pause.
    """
    seconds: dict[tuple[str, str], list[float]] = {(s, p): [] for s in STATES for p in PAGES}
    for turn in range(rounds):
        start = turn % len(PAGES)
        for name in [*PAGES][start:] + [*PAGES][:start]:
            contender = Contender(OURS, python, 1, GLUON_ROI_HUGE_PAGES=PAGES[name])
            contender.ask(do="prepare", item=item.as_dict(), call=False)
            for state, calls in (("new process", 1), ("loop", 5), ("pause", 1)):
                if state == "pause":
                    time.sleep(pause)
                answer = contender.ask(do="time", way="forward", calls=calls, warm=state == "loop")
                seconds[state, name] += answer["seconds"]
            contender.close()
    return [
        {
            "item": item.name,
            "state": state,
            "results": {
                name: dict(zip(("low_ms", "median_ms", "high_ms"), milliseconds(values)))
                for name, values in ((name, seconds[state, name]) for name in PAGES)
            },
        }
        for state in STATES
    ]


def milliseconds(seconds: list[float]) -> list[float]:
    return [float(1e3 * x) for x in np.percentile(seconds, (0, 50, 100))]


# ---- Writing -------------------------------------------------------------------------------------


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _label(row: dict) -> str:
    return row["item"] + ("" if row["dtype"] == "float32" else f" {row['dtype']}")


def table(rows: list[dict]) -> str:
    """Medians in milliseconds; `*` marks outputs of another convention."""
    present = {library for row in rows for library in row["results"]}
    peers = [k for k in LIBRARIES if k in present and k not in (OURS, LIMIT)]
    head = ["work", "way", "threads", OURS, "+-", "best peer", "times", LIMIT, "of limit", *peers]
    lines = [head]
    for row in rows:
        results, ours = row["results"], row["results"][OURS]
        low, high = ours["quartiles_ms"]
        line = [
            _label(row),
            row["way"],
            str(row["threads"]),
            _milliseconds(ours["median_ms"]),
            f"{50 * (high - low) / ours['median_ms']:.0f}%",
            row["best_peer"] or "-",
            f"{row['times_faster']:.2f}" if row["best_peer"] else "-",
            _milliseconds(results.get(LIMIT, {}).get("median_ms")),
            f"{100 * row['of_limit']:.0f}%" if row["of_limit"] else "-",
        ]
        for peer in peers:
            result = results.get(peer, {})
            mark = "*" if result.get("other_convention") else ""
            line.append(_milliseconds(result.get("median_ms")) + mark)
        lines.append(line)
    return columns(lines, left=(0, 1, 5))


def columns(lines: list[list[str]], left: Sequence[int]) -> str:
    """Cells one under the other; those columns to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def idle_table(rows: list[dict]) -> str:
    """Medians in milliseconds, with the least and the greatest."""
    lines = [f"{'':54}" + "".join(f"{name:>24}" for name in PAGES)]
    for row in rows:
        cells = [
            f"{r['median_ms']:.4g} ({r['low_ms']:.4g}-{r['high_ms']:.4g})"
            for r in row["results"].values()
        ]
        label = f"{row['item']}, {STATES[row['state']]}"
        lines.append(f"{label:54}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def chart(rows: list[dict], path: str) -> None:
    """One line a row, a dot for each library, the limit as a tick; logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.28 * len(rows)))
    styles = dict(zip(LIBRARIES, ("D", "o", "x", "s", "^", "v", "P", "|")))
    for library, marker in styles.items():
        found = [
            (row["results"][library]["median_ms"], y)
            for y, row in enumerate(rows)
            if library in row["results"]
        ]
        if found:
            colour = {"color": "black"} if library in (OURS, LIMIT) else {"alpha": 0.7}
            order = 3 if library == OURS else 2
            times, places = zip(*found)
            axes.scatter(times, places, marker=marker, s=36, label=library, zorder=order, **colour)
    labels = [
        f"{_label(r)}, {r['way']}" + (f", {r['threads']} threads" if r["threads"] > 1 else "")
        for r in rows
    ]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a call, median (logarithmic; left is faster)")
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.6 / (1.2 + 0.28 * len(rows))), ncol=7)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def machine() -> dict:
    """What the numbers were measured on."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            found = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
        model = found.group(1) if found else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def write_report(folder: str, name: str, report: dict, text: str) -> None:
    """`name`.json with all of it, `name`.txt with the machine and the text."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{name}.json"), "w") as file:
        json.dump(report, file, indent=1)
    with open(os.path.join(folder, f"{name}.txt"), "w") as file:
        file.write(f"{report['machine']['cpu']}, {report['machine']['cores']} cores\n{text}\n")


# ---- Command line --------------------------------------------------------------------------------


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
    chosen = [item for item in ITEMS if re.search(options.only, item.name)]
    items = [replace(item, dtype=dtype) for item in chosen for dtype in options.dtype]
    rounds, seconds = options.rounds, options.seconds
    if options.quick:
        items, rounds, seconds = [shrink(item) for item in items], 2, 0.0
    contenders = [
        Contender(library, python, threads)
        for library, python in interpreters(options.peer).items()
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
            report["rows"] += measure(item, usable, rounds, seconds)
        report["idle"] = []
        if re.search(options.only, IDLE.name):
            note(IDLE.name)
            python = interpreters(options.peer)[OURS]
            item, pause = (shrink(IDLE), 0.0) if options.quick else (IDLE, PAUSE)
            report["idle"] = measure_idle(python, item, rounds, pause)
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
