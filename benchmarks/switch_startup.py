# SPDX-License-Identifier: Apache-2.0
"""Start of a service before and after gluon_roi.optimize: processor time, memory, a forked child.

    OMP_NUM_THREADS=1 python -m benchmarks.switch_startup [--model NAME] [--size 600 800]

Each of the two runs in a new process: it imports the packages, makes the network with random
weights, switches it or not, calls it three times, and once more in a child that it forks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

MODEL = "faster_rcnn_fpn_resnet50_v1b_coco"


def memory() -> float:
    """MB of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def report(step: str, call: Callable[[], Any]) -> Any:
    """Make a call, and print its processor time and the memory after it."""
    begin = time.process_time()
    result = call()
    print(f"{step:28} {time.process_time() - begin:6.2f} s {memory():6.0f} MB", flush=True)
    return result


def start(model: str, size: tuple[int, int], switch: bool) -> None:
    """Print the steps of one process."""
    mx = report("import mxnet", lambda: __import__("mxnet"))
    gluon_roi = report("import gluon_roi", lambda: __import__("gluon_roi"))
    from gluoncv.model_zoo import get_model

    net = get_model(model, pretrained=False, pretrained_base=False)
    net.initialize()
    net.hybridize()
    image = mx.nd.random.uniform(shape=(1, 3, *size))

    def call() -> None:
        for output in net(image):
            output.wait_to_read()

    if switch:
        report("optimize", lambda: (gluon_roi.optimize(net, image), mx.nd.waitall()))
    for number in (1, 2, 3):
        report(f"call {number}", call)
    child = os.fork()
    if child == 0:
        report("call in a forked child", call)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the child has failed")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--model", default=MODEL, help="of GluonCV (default: %(default)s)")
    parser.add_argument("--size", nargs=2, type=int, default=(600, 800), help="height and width")
    parser.add_argument("--run", choices=["MXNet", "switched"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        start(options.model, tuple(options.size), options.run == "switched")
        return
    for run in ("MXNet", "switched"):
        print(run, flush=True)
        command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--run", run]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
