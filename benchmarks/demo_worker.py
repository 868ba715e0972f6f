# SPDX-License-Identifier: Apache-2.0
"""A process that trains the demo's detector in MXNet or in PyTorch, and times steps on request.

    python -m benchmarks.demo_worker {gluon_roi,torch} THREADS

It reads and writes one JSON object per line, as `benchmarks.worker` does. The first one names a
folder with `config.json`, `batches.npz` and, for PyTorch, `weights.npz`.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


class MXNetTraining:
    """The demo's own training graph and trainer."""

    def __init__(self, config: dict[str, Any], threads: int) -> None:
        import mxnet as mx

        import gluon_roi
        from demo_rfcn import cli, networks
        from demo_rfcn.losses import RPNLoss
        from demo_rfcn.train import make_trainer

        self.mx, settings = mx, cli.train_settings(config["line"])
        schedule, model = settings.schedule, settings.model_config(config["names"])
        self.net = networks.build(model, [mx.cpu()], schedule.seed)
        outputs = model.num_boxes * 4 + len(model.classes) + 1
        self.net.head.pool = gluon_roi.PSROIPool(
            model.k, 1 / model.stride, output_dim=outputs, convention="torchvision"
        )
        rpn_loss = RPNLoss(schedule.rpn_num_sample)
        roi_loss = networks.roi_loss(schedule.ohem, schedule.roi_num_sample)
        self.graph = networks.train_graph(self.net, rpn_loss, roi_loss, static_shape=True)
        self.trainer = make_trainer(schedule, self.net, None)
        self.trainer.set_learning_rate(config["lr"])

    def weights(self) -> dict[str, np.ndarray]:
        """Return the parameters by name, without the anchors."""
        named = self.net._collect_params_with_prefix()
        return {n: p.data().asnumpy() for n, p in named.items() if n != "anchor_grid.base"}

    def step(self, batch: list[np.ndarray]) -> np.ndarray:
        """Train on a batch, and return the mean of each loss."""
        mx = self.mx
        with mx.autograd.record():
            losses = self.graph(*map(mx.nd.array, batch))
            total = mx.nd.add_n(*losses)
        total.backward()
        self.trainer.step(len(batch[0]))
        return mx.nd.stack(*losses).mean(axis=1).asnumpy()


def main() -> None:
    """Answer requests until the input ends."""
    library, threads = sys.argv[1], int(sys.argv[2])
    folder = Path(json.loads(sys.stdin.readline())["folder"])
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    with np.load(folder / "batches.npz") as stored:
        arrays = [*stored.values()]
    batches = [arrays[first : first + 4] for first in range(0, len(arrays), 4)]
    training: Any
    if library == "torch":
        from .demo_torch import Training

        training = Training(config, threads)
        with np.load(folder / "weights.npz") as stored:
            training.load(dict(stored))
    else:
        training = MXNetTraining(config, threads)
        np.savez(folder / "weights.npz", **training.weights())
    losses = training.step(batches[0])
    print(json.dumps({"losses": losses.tolist()}), flush=True)
    for line in sys.stdin:
        steps = json.loads(line)["steps"]
        start = time.process_time()
        for number in range(steps):
            training.step(batches[number % len(batches)])
        milliseconds = 1000 * (time.process_time() - start) / steps
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"ms": milliseconds, "megabytes": peak}), flush=True)


if __name__ == "__main__":
    main()
