# SPDX-License-Identifier: Apache-2.0
"""Draws docs/before_after.png: detections of one network with MXNet's operators and switched.

    python -m benchmarks.before_after [--steps 1000] [--weights runs/before_after.params]

Trains GluonCV's Faster R-CNN FPN of `benchmarks.switch_training`, switched, unless the file of
weights exists. Then two copies of it, with the same weights, detect objects in the same test images
on the CPU: one as GluonCV makes it, and one after gluon_roi.optimize.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import gluon_roi
from demo_rfcn.data import ensure_dataset, open_datasets
from demo_rfcn.metrics import evaluate
from demo_rfcn.predictor import Detection, Predictor

from . import theme
from .switch_training import SIGNALS, make_network, one_by_one, train

DOCS = Path(__file__).resolve().parent.parent / "docs"
IMAGES = 3  # drawn
TITLES = {
    False: "MXNet 1.9.1 on the CPU",
    True: "the same weights after gluon_roi.optimize(net, image)",
}
THRESH = 0.5  # score of the boxes that are drawn


def trained(weights: Path, steps: int, data: Path) -> None:
    """Train the network, and write its parameters to `weights`."""
    mx.random.seed(0)
    np.random.seed(0)
    (images,) = open_datasets(SIGNALS, data, ("train",))
    with mx.name.NameManager():
        net = make_network()
    gluon_roi.optimize(net, mx.nd.zeros((1, 3, SIGNALS.short, SIGNALS.short)))
    train(net, images, steps)
    weights.parent.mkdir(parents=True, exist_ok=True)
    net.save_parameters(str(weights))


def predictor(weights: Path, switched: bool) -> Predictor:
    """A copy of the network, as GluonCV makes it or switched."""
    with mx.name.NameManager():  # names of layers have numbers, which begin at 0 again
        net = make_network()
    image = mx.nd.zeros((1, 3, SIGNALS.short, SIGNALS.short))
    net(image)
    net.load_parameters(str(weights), ignore_extra=True)  # constants of the targets
    if switched:
        gluon_roi.optimize(net, image)
    net.hybridize(static_alloc=True)
    return Predictor(one_by_one(net), (SIGNALS.short, SIGNALS.max_size), [mx.cpu()])


def draw(rows: dict[str, list[tuple[np.ndarray, Detection]]]) -> Any:
    """A figure of title -> the images and their detections, a row for each title."""
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    figure = pyplot.figure(figsize=(theme.WIDTH, 6.2), layout="constrained")
    parts: Any = figure.subfigures(len(rows))
    for part, (title, found) in zip(parts, rows.items()):
        part.suptitle(title, weight="bold")
        for axis, (image, detection) in zip(part.subplots(1, len(found)), found):
            axis.imshow(image)
            # The best boxes last, so that their labels lie above the others.
            for kind, score, (x1, y1, x2, y2) in [*zip(*detection)][::-1]:
                if score < THRESH:
                    continue
                # White around black is seen on any image.
                for colour, width in (("black", 3.5), ("white", 1.5)):
                    outline: Any = {"fill": False, "ec": colour, "lw": width}
                    axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, **outline))
                name = SIGNALS.classes[kind].replace("signal_", "")
                label = {"facecolor": "white", "edgecolor": "black", "pad": 1.5}
                style = {"color": "black", "fontsize": 9, "va": "top", "clip_on": True}
                axis.text(x1 + 2, y1 + 3, f"{name} {score:.2f}", bbox=label, **style)
            axis.set(xticks=[], yticks=[])
    return figure


def main(argv: list[str] | None = None) -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--weights", type=Path, default=Path("runs/before_after.params"))
    parser.add_argument("--images", type=int, default=300, help="test images of the mAP")
    parser.add_argument("--data", type=Path, default=Path("runs/data/signals"))
    parser.add_argument("--output", type=Path, default=DOCS / "before_after.png")
    options = parser.parse_args(argv)
    ensure_dataset("signals", options.data, seed=0)
    if not options.weights.is_file():
        trained(options.weights, options.steps, options.data)
    (test_set,) = open_datasets(SIGNALS, options.data, ("test",))
    rows = {}
    for switched, name in TITLES.items():
        detect = predictor(options.weights, switched)
        score = evaluate(detect, test_set, options.images)["map50"]
        title = f"{name}: mAP@0.5 {score:.3f}"
        rows[title] = [
            (image, found) for _, image, found in detect.iterate(test_set, range(IMAGES))
        ]
        print(title)
    theme.save(lambda: draw(rows), options.output)
    print(options.output)


if __name__ == "__main__":
    main()
