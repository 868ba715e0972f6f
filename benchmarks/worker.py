# SPDX-License-Identifier: Apache-2.0
"""A process that holds one library and its inputs, and times a round of calls on request.

    python -m benchmarks.worker LIBRARY THREADS

It reads and writes one JSON object per line, on standard input and output. So rounds of different
libraries can interleave, and each library can have its own environment.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from typing import Callable

import numpy as np

from .libraries import LIBRARIES, Library, Unsupported, Work
from .ways import WAYS
from .work import Row

#: Elements of an output that are sent to be compared.
SAMPLE = 2000


def _prepare(library: Library, fields: dict, call: bool) -> tuple[Work, dict]:
    item = Row.from_dict(fields)
    if not library.has(item):
        return {}, {"unsupported": "no such operator or mode"}
    try:
        work = library.prepare(item)
    except Unsupported as reason:
        return {}, {"unsupported": str(reason)}
    sample = []
    if call and "result" in work:
        flat = np.asarray(work["result"]()).ravel()
        sample = flat[:: max(1, flat.size // SAMPLE)].astype(float).tolist()
    return work, {
        "ways": [way for way in WAYS if way in work],
        "sample": sample,
        "bytes": work.get("bytes", {}),
    }


def _time(work: Work, way: str, calls: int, warm: bool, clock: Callable[[], float]) -> dict:
    others, function = work[way] if isinstance(work[way], tuple) else (None, work[way])
    if warm:
        if others:
            others()
        function()
    seconds = []
    for _ in range(calls):
        if others:
            others()
        start = clock()
        result = function()
        # Giving the memory of a new output back belongs to the call that made it.
        del result
        seconds.append(clock() - start)
    return {"seconds": seconds}


def serve(answer_to: Callable[[dict], dict]) -> None:
    """Answer each line of standard input; an exception is an answer, too."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            answer = answer_to(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    library = LIBRARIES[sys.argv[1]](int(sys.argv[2]))
    work: Work = {}

    def answer_to(request: dict) -> dict:
        nonlocal work
        if request["do"] == "version":
            return {"version": library.version(), "python": sys.version.split()[0]}
        if request["do"] == "prepare":
            work, answer = _prepare(library, request["item"], request["call"])
            return answer
        if request["do"] == "time":
            clock = time.process_time if request.get("processor_time") else time.perf_counter
            return _time(work, request["way"], request["calls"], request["warm"], clock)
        work = {}
        gc.collect()
        return {}

    serve(answer_to)


if __name__ == "__main__":
    main()
