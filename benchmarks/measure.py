# SPDX-License-Identifier: Apache-2.0
"""Times libraries in turns, each in its own process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Sequence

import numpy as np

from .rows import Row
from .ways import ROOT, WAYS

OURS, LIMIT = "gluon_roi", "limit"
#: Outputs that differ by more than this part of the largest value are of another convention.
SAME = {"float16": 1e-2, "float32": 1e-3, "float64": 1e-3}
#: Above this many seconds a call needs no call before it to warm up.
LONG_CALL = 0.5
MOST_CALLS = 200
#: glibc keeps freed memory of up to 32 MB an array, for every library. By default the layout of the
#: heap decides whether it does: forward of one ROIAlign row took 2.5 or 5.8 ms.
KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
#: What a call that fills fresh memory comes after.
STATES = {"loop": "in a loop", "pause": "after 3 idle seconds", "new process": "in a new process"}
PAUSE = 3.0
#: GLUON_ROI_HUGE_PAGES, unset among them.
PAGES = {"huge pages while fast": "", "4 kB pages": "0", "huge pages": "1"}


class Contender:
    """One library with one number of threads, in its own process."""

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
            cwd=str(ROOT),
            env={
                **os.environ,
                **KEEP_MEMORY,
                **dict.fromkeys(variables, threads),
                "PYTHONPATH": str(ROOT),
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


def differs(ours: Sequence[float], theirs: Sequence[float], dtype: str) -> bool:
    if len(ours) != len(theirs):
        return True
    a, b = np.asarray(ours), np.asarray(theirs)
    return bool(np.abs(a - b).max() > SAME[dtype] * np.abs(a).max())


def measure(
    item: Row,
    contenders: list[Contender],
    rounds: int,
    seconds: float,
    processor_time: bool = False,
) -> list[dict]:
    """Rows of one item: one for each way and number of threads."""

    def timed(contender: Contender, way: str, calls: int, warm: bool) -> dict:
        request = {"way": way, "calls": calls, "warm": warm, "processor_time": processor_time}
        return contender.ask(do="time", **request)

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
            answer = timed(contender, way, 1, False)
            short = answer.get("seconds", [LONG_CALL])[0] < LONG_CALL
            if short:
                # The first call may have compiled or allocated something.
                began = time.perf_counter()
                answer = timed(contender, way, 1, False)
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
            answer = timed(contenders[i], way, calls, warm)
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


def summary(item: Row, way: str, threads: int, moved: int | None, results: dict[str, dict]) -> dict:
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


def measure_idle(python: str, item: Row, rounds: int, pause: float) -> list[dict]:
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
