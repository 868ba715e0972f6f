# SPDX-License-Identifier: Apache-2.0
"""Times the parts of the demo's training step, and the cost of a RoI in each head.

    python -m benchmarks.demo_step --repeats 20 --k 7 --dataset-root DIR
    python -m benchmarks.demo_step --torch PYTHON --dataset-root DIR

The second line compares the step with one in PyTorch, on the same images, with the same weights and
one thread (`demo_torch.py`); PYTHON is an interpreter with torch and torchvision. Further arguments
are those of `python -m demo_rfcn train`; it runs on one CPU context.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.gluon.block import HybridBlock

from demo_rfcn import cli, networks
from demo_rfcn.config import Settings
from demo_rfcn.data.loader import Batch
from demo_rfcn.demo import generate
from demo_rfcn.losses import RPNLoss
from demo_rfcn.model import RPN_CHANNELS, PSROIHead
from demo_rfcn.train import make_loader, make_trainer
from demo_rfcn.variants import RoIFCHead

from .measure import Contender

ROI_COUNTS = (300, 1000)
# Sizes of the paper: 20 classes, k = 7, stride 16; 1024 units after the pooling.
HEADS: dict[str, Callable[[], HybridBlock]] = {
    "psroi": lambda: PSROIHead(20, 1, 7, 16),
    "roi_fc": lambda: RoIFCHead(20, 1, 7, 16, 1024),
}
HEAD_MAP = (40, 50)  # cells, a 640 x 800 image at stride 16


def main(argv: list[str] | None = None) -> None:
    """Print the parts of a step at the given settings, then the cost of the heads."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo_step", add_help=False)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", metavar="PYTHON")
    given, rest = parser.parse_known_args(argv)
    settings, repeats = cli.train_settings(rest), given.repeats
    if settings.data.spec.recipe:
        generate(settings.data)
    if given.torch:
        compare(settings, rest, given.torch, repeats, given.rounds)
        return
    parts = step_parts(settings, repeats)
    print("| part | ms |\n|---|---|")
    for name, milliseconds in parts.items():
        print(f"| {name} | {milliseconds:.1f} |")
    print("\n| head, k = 7 | " + " | ".join(f"N = {n}" for n in ROI_COUNTS) + " |")
    print("|---|" + "---|" * len(ROI_COUNTS))
    for name in HEADS:
        cells = [
            f"{head_cost(name, rois, settings.schedule.seed, repeats):.1f} ms"
            for rois in ROI_COUNTS
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def median_ms(function: Callable[[], object], repeats: int) -> float:
    """Return the median wall time of a call in milliseconds, all of MXNet's work waited for."""
    times = []
    for _ in range(repeats + 2):
        mx.nd.waitall()
        start = time.perf_counter()
        function()
        mx.nd.waitall()
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[2:])[repeats // 2]


def step_parts(settings: Settings, repeats: int) -> dict[str, float]:
    """Time the parts of a training step one by one, and a whole step in training, in milliseconds.

    The forward parts are timed as separate graphs; "targets, PSROI and loss" is the time of the
    whole forward pass minus those of the backbone and the proposals. In training, a separate thread
    makes the batches, so a step takes less time than the sum.
    """
    (train_set,) = settings.open("train")
    settings = settings.with_steps(len(train_set))
    config = settings.model_config(train_set.classes)
    schedule, batch_size = settings.schedule, settings.devices.batch_size
    net = networks.build(config, [mx.cpu()], schedule.seed)
    rpn_loss = RPNLoss(schedule.rpn_num_sample)
    roi_loss = networks.roi_loss(schedule.ohem, schedule.roi_num_sample)
    graph = networks.train_graph(net, rpn_loss, roi_loss, static_shape=True)
    trainer = make_trainer(schedule, net, None)
    loader = make_loader(settings, config, train_set, rank=0, num_workers=1)
    numbers = iter(range(schedule.steps))
    batch = next(loader.batches())
    inputs = [mx.nd.array(part) for part in batch]
    features = net.backbone(inputs[0])[0]
    anchors = net.anchor_grid(features)

    def forward(*arrays: mx.nd.NDArray) -> list:
        with mx.autograd.record():
            return graph(*arrays or inputs)

    def forward_backward(*arrays: mx.nd.NDArray) -> list:
        losses = forward(*arrays)
        mx.autograd.backward(losses)
        return losses

    def forward_backward_update(*arrays: mx.nd.NDArray) -> list:
        losses = forward_backward(*arrays)
        trainer.step(batch_size)
        return losses

    def step(batch: Batch) -> None:
        losses = forward_backward_update(*map(mx.nd.array, batch))
        mx.nd.stack(*losses).mean(axis=1).asnumpy()

    def backbone() -> None:
        with mx.autograd.record():
            net.backbone(inputs[0])

    forward_backward()
    parts = {
        "data": median_ms(lambda: loader.make(next(numbers)), repeats),
        "backbone": median_ms(backbone, repeats),
        "proposals": median_ms(
            lambda: graph.proposals(*net.rpn(features), anchors, inputs[0]), repeats
        ),
    }
    whole = median_ms(forward, repeats)
    # Differences of times: on a busy machine, the whole may take less than its parts took.
    parts["targets, PSROI and loss"] = max(whole - parts["backbone"] - parts["proposals"], 0.0)
    both = median_ms(forward_backward, repeats)
    parts["backward"] = max(both - whole, 0.0)
    update = median_ms(forward_backward_update, repeats)
    parts["update"] = max(update - both, 0.0)
    outside = "outside the graph: arrays of the batch, losses"
    parts[outside] = max(median_ms(lambda: step(batch), repeats) - update, 0.0)
    parts["sum"] = sum(parts.values())

    batches = loader.batches()
    for count in range(2 + repeats):
        if count == 2:
            mx.nd.waitall()
            start = time.perf_counter()
        step(next(batches))
    mx.nd.waitall()
    parts["step, as training runs it"] = 1000 * (time.perf_counter() - start) / repeats
    return parts


def compare(settings: Settings, line: list[str], python: str, steps: int, rounds: int) -> None:
    """Print processor time and memory of a step in MXNet and in PyTorch, in alternating rounds.

    Both pool as torchvision does, from the same weights; the largest difference of the losses of
    their first step is printed, too.
    """
    (train_set,) = settings.open("train")
    settings = settings.with_steps(len(train_set))
    config, schedule = settings.model_config(train_set.classes), settings.schedule
    if (config.head, config.class_agnostic, config.fpn, config.deform) != ("psroi", True, 0, 0):
        raise SystemExit("demo_step: --torch compares the head psroi with shared boxes alone")
    loader = make_loader(settings, config, train_set, rank=0, num_workers=1)
    described = {
        "line": line,
        "names": config.classes,
        "network": config.network,
        "anchors": config.anchors.tolist(),
        "stride": config.stride,
        "k": config.k,
        "classes": len(config.classes),
        "rpn_channels": RPN_CHANNELS,
        "rpn_sample": schedule.rpn_num_sample,
        "roi_sample": schedule.roi_num_sample,
        "lr": 1e-3,
        "wd": schedule.wd,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
        np.savez(folder / "batches.npz", *(part for n in range(4) for part in loader.make(n)))
        libraries = {"gluon_roi": sys.executable, "torch": python}
        found = {
            library: Contender(library, interpreter, 1, "benchmarks.demo_worker")
            for library, interpreter in libraries.items()
        }
        first = [worker.require(folder=name)["losses"] for worker in found.values()]
        answers: dict[str, list[dict]] = {library: [] for library in found}
        for _ in range(rounds):
            for library, worker in found.items():
                answers[library].append(worker.require(steps=steps))
        for worker in found.values():
            worker.close()
    print("| | processor time of a step, ms | memory, MB |\n|---|---|---|")
    for library, rows in answers.items():
        times = [row["ms"] for row in rows]
        title = {"gluon_roi": "MXNet, gluon_roi", "torch": "PyTorch, torchvision"}[library]
        print(f"| {title} | {statistics.median(times):.1f} | {rows[-1]['megabytes']} |")
    difference = np.abs(np.subtract(*first) / first[0]).max()
    print(f"\nlosses of the first step: {np.round(first[0], 4)}, within {difference:.1g}")


def head_cost(name: str, count: int, seed: int, repeats: int) -> float:
    """Time a head on count RoIs of one image, forward, in milliseconds.

    The maps have the size of the paper, 1024 channels; so have the `HEADS`.
    """
    head = HEADS[name]()
    head.initialize()
    head.hybridize(static_alloc=True)
    mx.random.seed(seed)
    height, width = (16 * side for side in HEAD_MAP)
    corner = mx.nd.random.uniform(0, 0.6, shape=(count, 2))
    size = mx.nd.random.uniform(0.1, 0.4, shape=(count, 2))
    scale = mx.nd.array([[width, height]])
    boxes = mx.nd.concat(corner * scale, (corner + size) * scale, dim=1)
    rois = mx.nd.concat(mx.nd.zeros((count, 1)), boxes, dim=1)
    features = mx.nd.random.uniform(shape=(1, 1024, *HEAD_MAP))
    return median_ms(lambda: head(features, rois), repeats)


if __name__ == "__main__":
    main()
