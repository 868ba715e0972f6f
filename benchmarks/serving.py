# SPDX-License-Identifier: Apache-2.0
"""A detector behind gunicorn: start-up, memory of the workers, time of a request, equal detections.

    pip install flask gunicorn
    OMP_NUM_THREADS=1 python -m benchmarks.serving [--files PREFIX] [--only inference]

Serves Faster R-CNN FPN on ResNet-50 with random weights, or the files PREFIX-symbol.json,
PREFIX-0000.params and PREFIX-metadata.json, with examples/serve.py, once for each OPERATORS: four
workers, forked from a parent that has loaded the network. Memory is PSS, the sum of private pages
and of each process's share in common ones, after every worker has had two requests.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
KINDS = ("mxnet", "switched", "inference")
WORKERS = 4


def write_files(prefix: str) -> None:
    """Export a detector whose pyramid levels all have boxes, for images of 600 x 800."""
    import mxnet as mx

    from gluon_roi.onnx import detector_metadata
    from testing.detectors import make_detector

    image = mx.nd.random.uniform(-2, 2, shape=(1, 3, 600, 800))
    net = make_detector("faster_rcnn_fpn_resnet50_v1b_coco", image)
    about = {**detector_metadata(net), "short": 600, "max_size": 800}
    net.hybridize()
    net(image)
    net.export(prefix)
    Path(f"{prefix}-metadata.json").write_text(json.dumps(about))


def make_image(seed: int) -> Image.Image:
    pixels = np.random.RandomState(seed).randint(0, 256, (9, 12, 3)).astype("uint8")
    return Image.fromarray(pixels).resize((800, 600), Image.Resampling.BICUBIC)


def pss(pid: int) -> float:
    """MB of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss: +(\d+) kB", text, re.M)
    assert found is not None
    return int(found[1]) * 1024 / 1e6


def request(address: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(address, body, timeout=600) as response:
        return json.load(response)


def serve(prefix: str, kind: str) -> str:
    """Run a server; return a row of the table."""
    command = [sys.executable, "-m", "gunicorn", "--pythonpath", str(EXAMPLES), "--preload"]
    command += ["--workers", str(WORKERS), "--timeout", "600", "--bind", "127.0.0.1:0", "serve:app"]
    environment = {**os.environ, "DETECTOR": prefix, "OPERATORS": kind}
    pipe = subprocess.PIPE
    begin = time.perf_counter()
    with subprocess.Popen(command, env=environment, stderr=pipe, text=True) as server:
        try:
            address = address_of(server)
            request(f"{address}/health")
            return f"| {kind} | {time.perf_counter() - begin:.1f} s | {load(address, server.pid)} |"
        finally:
            server.terminate()


def address_of(server: subprocess.Popen) -> str:
    """The address in gunicorn's log."""
    assert server.stderr is not None
    for line in server.stderr:
        found = re.search(r"Listening at: (http://\S+)", line)
        if found:
            return found[1]
    raise SystemExit("gunicorn has ended")


def load(address: str, parent: int) -> str:
    """Two requests for every worker, as many at a time as there are workers; the row's cells."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    workers: list[int] = []
    while len(workers) < WORKERS:
        time.sleep(0.1)
        workers = [int(pid) for pid in children.read_text().split()]
    image = io.BytesIO()
    make_image(0).save(image, "PNG")
    times, counts = [], dict.fromkeys(workers, 0)

    def call(_: int) -> None:
        begin = time.perf_counter()
        counts[request(f"{address}/detect", image.getvalue())["worker"]] += 1
        times.append(time.perf_counter() - begin)

    with ThreadPoolExecutor(WORKERS) as pool:
        while min(counts.values()) < 2:
            list(pool.map(call, range(WORKERS)))
    memory = statistics.median(pss(pid) for pid in workers)
    total = sum(pss(pid) for pid in (parent, *workers))
    return f"{memory:.0f} MB | {total:.0f} MB | {statistics.median(times):.1f} s"


def compare(prefix: str, count: int = 3) -> None:
    """Print how many of the best 100 detections of an image two networks have in common."""
    sys.path.insert(0, str(EXAMPLES))
    server = importlib.import_module("serve")

    found: dict[str, list[np.ndarray]] = {}
    for kind in KINDS:
        net, about = server.load(prefix, kind)
        for seed in range(count):
            rows = server.find(net, about, make_image(seed), 0.0)[:100]
            values = [
                [about["classes"].index(r["class"]), 100 * r["score"], *r["box"]] for r in rows
            ]
            found.setdefault(kind, []).append(np.array(values).reshape(-1, 6))
    for one, other in (("mxnet", "switched"), ("switched", "inference")):
        same = total = 0
        for rows, others in zip(found[one], found[other]):
            # The same class, a score within 0.001, corners within half a pixel.
            near = np.abs(others[None] - rows[:, None]) <= [0, 0.1, 0.5, 0.5, 0.5, 0.5]
            same, total = same + near.all(axis=2).any(axis=1).sum(), total + len(rows)
        print(f"{same} of {total} detections of {one} are those of {other}")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--files", metavar="PREFIX", help="a detector as docs/deploy.md exports it")
    parser.add_argument("--only", nargs="+", choices=[*KINDS, "compare"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prefix = options.files and os.path.abspath(options.files)
        if not prefix:
            prefix = f"{folder}/detector"
            write_files(prefix)
        print(f"| operators | start-up | a worker | all {1 + WORKERS} processes | a request |")
        print("|---|---|---|---|---|", flush=True)
        for kind in options.only or (*KINDS, "compare"):
            if kind == "compare":
                compare(prefix)
            else:
                print(serve(prefix, kind), flush=True)


if __name__ == "__main__":
    main()
