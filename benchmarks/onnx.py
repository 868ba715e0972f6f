# SPDX-License-Identifier: Apache-2.0
"""Exported detectors in onnxruntime and OpenVINO next to MXNet: times and detections.

    pip install onnxruntime openvino==2026.4.1
    python -m benchmarks.onnx [--threads 1 2] [--only ssd yolo3] [--rounds 5]
    python -m benchmarks.onnx --threads 1 --write docs/models.json
    python -m benchmarks.onnx --profile --only faster_rcnn_fpn mask_rcnn_fpn
    python -m benchmarks.onnx --suppression

Models have random weights, and one image of 600 x 800. MXNet as it is, MXNet switched by
gluon_roi.optimize, the same with MXNet's own fusion and static_shape, with inference=True, also
with winograd=False, the runtimes and, where torch is installed, the file as a module of PyTorch
take turns in one process for each number of threads; values are medians, of processor time for one
thread and of elapsed time for several. "Found" counts how many of the best 100 detections of the
switched model are found again: the same class, a score within 1e-3, corners within 0.05 pixels; the
largest differences of scores and corners follow.
"Conversion" is the elapsed time of gluon_roi.optimize with inference=True, which calls the network
once. --write stores the seconds for benchmarks.speed, which draws them. --profile prints where the
runtimes spend their time instead.

--suppression compares two forms of box_nms of 80 classes on one thread: NonMaxSuppression over
classes, which is exported, and over boxes that are moved apart by class, as torchvision's
batched_nms does it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import mxnet as mx
import numpy as np

import gluon_roi
from demo_rfcn import networks
from demo_rfcn.model import ModelConfig
from testing.onnx_runtimes import zoo
from testing.onnx_runtimes.check import RUNTIMES, installed, openvino, torch
from testing.onnx_runtimes.classics import times
from testing.onnx_runtimes.detectors import compare

from .report import machine
from .switch_whole import info_of, make_fpn, make_rfcn

IMAGE = (1, 3, 600, 800)
SHOWN = 12  # nodes of a profile
KEPT = 100  # the best detections, which are compared
#: Options of optimize.
OURS: dict[str, dict[str, Any]] = {
    "switched": {},
    "inference": {"inference": True},
    "winograd=False": {"inference": True, "winograd": False},
}
#: Those of each way to run a network in MXNet.
OPTIONS = {
    "switched": OURS["switched"],
    "MXNet's fusion": {"backend": "MKLDNN", "static_shape": True},
    **OURS,
}
#: Modules of PyTorch take part where it is installed.
LOADERS: dict[str, Callable] = {**RUNTIMES, "openvino's default": partial(openvino, precision=None)}
if "torch" in installed():
    LOADERS["torch"] = torch
WAYS = ("MXNet", *OPTIONS, *LOADERS)


class Model(NamedTuple):
    """How a detector is made, and the name it has in the table."""

    title: str
    make: Callable[[Any], Any]  # of its image
    more: Callable[[Any], list] = lambda image: []  # inputs after the image


def _demo(image: Any) -> Any:
    classes = tuple(f"class{n}" for n in range(20))
    config = ModelConfig(classes, "resnet50_v1b", "psroi", 7, True, (8, 16, 32), (0.5, 1, 2))
    return networks.detector(networks.build(config, [mx.cpu()], seed=0))


def _zoo(name: str, magnitude: float, image: Any) -> Any:
    return zoo.built(zoo.Model(name, (IMAGE,), magnitude=magnitude), [image])


def _center_net(image: Any) -> Any:
    """Keeps 300 detections, not 100: with random weights, the 100th and the next are too close."""
    net = _zoo("center_net_resnet50_v1b_dcnv2_coco", 4, image)
    net.decoder._topk = 300
    return net


def _info(image: Any) -> list:
    return [info_of(image)]


MODELS = {
    "demo": Model("the demo's R-FCN, ResNet-50", _demo),
    "ssd": Model("SSD 512, ResNet-50", partial(_zoo, "ssd_512_resnet50_v1_coco", 0.1)),
    "yolo3": Model("YOLOv3, Darknet-53", partial(_zoo, "yolo3_darknet53_coco", 2.6)),
    "center_net": Model("CenterNet, ResNet-50, DCNv2", _center_net),
    "faster_rcnn_fpn": Model(
        "Faster R-CNN FPN, ResNet-50", partial(make_fpn, "faster_rcnn_fpn", weights=None)
    ),
    "mask_rcnn_fpn": Model(
        "Mask R-CNN FPN, ResNet-50", partial(make_fpn, "mask_rcnn_fpn", weights=None)
    ),
    "rfcn": Model("R-FCN of 2017, ResNet-50", partial(make_rfcn, "rfcn"), _info),
    "deformable_rfcn": Model(
        "Deformable R-FCN, ResNet-50", partial(make_rfcn, "deformable_rfcn"), _info
    ),
}


def detections(outputs: list) -> np.ndarray:
    """Rows of class, score and corners of the outputs of a detector."""
    if len(outputs) < 5:
        return zoo.detections(outputs)
    found = outputs[4]  # of R-FCN: score and corners for each class
    kinds = np.broadcast_to(np.arange(len(found))[:, None, None], (*found.shape[:2], 1))
    rows = np.concatenate([kinds, found], axis=2).reshape(-1, 6)
    return rows[rows[:, 1] >= 0]


def inputs_of(model: Model) -> list:
    """The same image each time, and what the model needs with it."""
    image = mx.nd.array(np.random.RandomState(0).uniform(-2, 2, IMAGE))
    return [image, *model.more(image)]


def make(model: Model, image: Any) -> Any:
    """A network with the same random weights each time, once it has been called."""
    mx.random.seed(0)
    np.random.seed(0)
    return model.make(image)


class Detector:
    """A model in MXNet, as it is, switched and for inference, and exported for the runtimes."""

    def __init__(self, model: Model, folder: str) -> None:
        self._inputs = inputs_of(model)
        self._nets = {}
        for way in ("MXNet", *OPTIONS):
            net = make(model, self._inputs[0])
            net(*self._inputs)  # finishes deferred initialization, with the same random numbers
            self._nets[way] = net
        self._nets["MXNet"].hybridize(static_alloc=True)
        self.optimize_seconds = {}
        for way, options in OPTIONS.items():
            mx.nd.waitall()
            start = time.perf_counter()
            gluon_roi.optimize(self._nets[way], *self._inputs, static_alloc=True, **options)
            self.optimize_seconds[way] = time.perf_counter() - start
        self._path = str(Path(folder) / "model.onnx")
        shapes = [x.shape for x in self._inputs]
        gluon_roi.onnx.export(self._nets["switched"], shapes, self._path)

    def calls(self, threads: int) -> dict[str, Callable[[], list]]:
        arrays = [x.asnumpy() for x in self._inputs]
        ours = [lambda n=net: zoo.flat(n(*self._inputs)) for net in self._nets.values()]
        runtimes = [partial(load(self._path, threads), *arrays) for load in LOADERS.values()]
        return dict(zip(WAYS, (*ours, *runtimes)))

    def profiles(self) -> dict[str, dict[str, float]]:
        """Milliseconds of each node in the runtimes, on one thread: way -> type and name -> ms."""
        import onnxruntime as ort
        import openvino as ov

        arrays = [x.asnumpy() for x in self._inputs]
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.enable_profiling = True
        options.profile_file_prefix = self._path
        session = ort.InferenceSession(self._path, options, providers=["CPUExecutionProvider"])
        for _ in range(2):
            session.run(None, dict(zip([one.name for one in session.get_inputs()], arrays)))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        ran: dict[str, float] = {}
        for event in events:  # the second run replaces the first, which prepares
            if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
                kind = event["args"]["op_name"]
                ran[f"{kind} {event['name'][: -len('_kernel_time')]}"] = event["dur"] / 1e3
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": 1,
            "PERF_COUNT": True,
        }
        request = ov.Core().compile_model(self._path, "CPU", settings).create_infer_request()
        for _ in range(2):
            request.infer(arrays)
        nodes = request.get_profiling_info()
        timed = {f"{n.node_type} {n.node_name}": n.real_time.total_seconds() * 1e3 for n in nodes}
        return {"onnxruntime": ran, "OpenVINO": timed}


def measure(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """Median seconds of each way, and how it compares with the switched model's detections.

    "compared" has the number that is found again, and the largest differences of scores and of
    corners.
    """
    with tempfile.TemporaryDirectory() as folder:
        detector = Detector(MODELS[name], folder)
        calls = detector.calls(threads)
        found = {way: detections(call()) for way, call in calls.items()}
        clock = time.process_time if threads == 1 else time.perf_counter
        seconds = times(calls, rounds, clock)
    rows = found["switched"]
    expected = rows[np.argsort(-rows[:, 1], kind="stable")[:KEPT]]
    compared = {way: list(map(float, compare(rows, expected))) for way, rows in found.items()}
    return {
        "seconds": seconds,
        "compared": compared,
        "expected": len(expected),
        "conversion": detector.optimize_seconds["inference"],
    }


def profile(name: str) -> None:
    """Print the kinds of nodes, and the nodes, that take most of a pass in each runtime."""
    with tempfile.TemporaryDirectory() as folder:
        for runtime, nodes in Detector(MODELS[name], folder).profiles().items():
            kinds: dict[str, float] = collections.defaultdict(float)
            for node, milliseconds in nodes.items():
                kinds[node.split()[0]] += milliseconds
            for title, table in (("kind", kinds), ("node", nodes)):
                print(f"\n| {name}, {runtime}: {title} | ms | share |\n|---|---|---|")
                for key in sorted(table, key=lambda key: -table[key])[:SHOWN]:
                    share = table[key] / sum(table.values())
                    print(f"| {key} | {table[key]:.1f} | {share:.1%} |")
            print(f"| all | {sum(nodes.values()):.1f} | |", flush=True)


def suppressions() -> tuple[Any, Any]:
    """The two forms of box_nms of rows (class, score, corners)."""
    rows = mx.sym.var("data")
    options = {"overlap_thresh": 0.5, "valid_thresh": 0.01}
    of_classes = mx.sym.contrib.box_nms(rows, id_index=0, **options)
    kinds, scores, corners = (
        mx.sym.slice_axis(rows, axis=2, begin=a, end=b) for a, b in ((0, 1), (1, 2), (2, 6))
    )
    largest = mx.sym.reshape(mx.sym.max(corners), shape=(1, 1, 1))
    moved = mx.sym.broadcast_add(corners, mx.sym.broadcast_mul(kinds, largest + 1))
    return of_classes, mx.sym.contrib.box_nms(mx.sym.concat(kinds, scores, moved, dim=2), **options)


def suppress(boxes: int, rounds: int) -> str:
    """The line of a number of boxes: milliseconds, and how many boxes are kept."""
    random = np.random.RandomState(0)
    low, sides = random.uniform(0, (1000, 600), (boxes, 2)), random.uniform(20, 200, (boxes, 2))
    kinds, scores = random.randint(0, 80, (boxes, 1)), random.rand(boxes, 1)
    rows = np.hstack([kinds, scores, low, low + sides]).astype(np.float32)[None]
    calls: dict[Any, Callable[[], list]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for form, symbol in enumerate(suppressions()):
            gluon_roi.onnx.export(symbol, [rows.shape], f"{folder}/model.onnx", {})
            for name, load in RUNTIMES.items():
                calls[form, name] = partial(load(f"{folder}/model.onnx", 1), rows)
    array = mx.nd.array(rows)
    calls["gluon_roi"] = lambda: [
        gluon_roi.nd.BoxNMS(array, 0.5, valid_thresh=0.01, id_index=0).asnumpy()
    ]
    kept = [int((call()[0][0, :, 0] >= 0).sum()) for call in calls.values()]
    spent = times(calls, rounds).values()
    cells = [f"{seconds * 1e3:.1f} | {n}" for seconds, n in zip(spent, kept)]
    return f"| {boxes} | {' | '.join(cells)} |"


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", default=list(MODELS), choices=MODELS, metavar="MODEL")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", type=Path, metavar="FILE", help="seconds, for benchmarks.speed")
    parser.add_argument("--profile", action="store_true", help="nodes of the runtimes, not times")
    parser.add_argument("--suppression", action="store_true", help="two forms of box_nms")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)  # of one process
    given = parser.parse_args()
    if given.profile:
        for name in given.only:
            profile(name)
        return
    if given.suppression:
        forms = (f"{form}, {runtime}" for form in ("classes", "moved") for runtime in RUNTIMES)
        print("| boxes |", " | ".join(f"{name}: ms | kept" for name in (*forms, "gluon_roi")), "|")
        print("|---" * 11 + "|")
        for boxes in (600, 1000, 6000, 80000):
            print(suppress(boxes, given.rounds), flush=True)
        return
    if given.json:
        (name,), (threads,) = given.only, given.threads
        print(json.dumps(measure(name, threads, given.rounds)))
        return
    columns = ["model", "threads", *(f"{way}: s | found" for way in WAYS), "conversion: s"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * (3 + 2 * len(WAYS)) + "|", flush=True)
    stored: dict[str, Any] = {"machine": machine(), "seconds": {}}
    for name in given.only:
        for threads in given.threads:
            result = measure_alone(name, threads, given.rounds)
            print(line(name, threads, result), flush=True)
            stored["seconds"].setdefault(str(threads), {})[MODELS[name].title] = result["seconds"]
    if given.write:
        given.write.write_text(json.dumps(stored, indent=1) + "\n")


def measure_alone(name: str, threads: int, rounds: int) -> dict[str, Any]:
    """What measure() returns, from a process with this number of threads."""
    command = [sys.executable, "-m", "benchmarks.onnx", "--json", "--only", name]
    command += ["--threads", str(threads), "--rounds", str(rounds)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "MXNET_SUBGRAPH_VERBOSE": "0"}
    made = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return measured


def line(name: str, threads: int, result: dict[str, Any]) -> str:
    """The line of a model in the table."""
    cells = [MODELS[name].title, str(threads)]
    for way in WAYS:
        found, score, corner = result["compared"][way]
        cells += [
            f"{result['seconds'][way]:.2f}",
            f"{found:.0f} of {result['expected']}; {score:.0e}, {corner:.0e}",
        ]
    cells.append(f"{result['conversion']:.1f}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
