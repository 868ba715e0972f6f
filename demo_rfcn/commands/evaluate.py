# SPDX-License-Identifier: Apache-2.0
"""`eval`: the scores of a checkpoint on the test images of a data set, with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from .. import files
from ..data import Held
from ..data.dataset import DetectionSet
from ..data.loader import load_image
from ..data.specs import DatasetSpec
from ..errors import CheckpointError
from ..model.detections import detect_dataset
from ..model.detector import RFCN
from ..run import checkpoint, evaluate
from ..run.record import LAST, SUMMARY
from ..settings import LOCATION, Data, Devices
from ..show import inside, pictures
from ..show.report import REPORT, shown, write_report

PICTURED = 12  # images of the detection picture
PARTS = 8  # RoIs of the picture of moved bins


def command(data: Data, devices: Devices, path: Path, save_prefix: Path) -> None:
    """Score a checkpoint, with pictures, on its own data and scale unless others are given."""
    print_summary(report(data, devices, path, save_prefix), save_prefix)


def report(data: Data, devices: Devices, path: Path, folder: Path) -> dict:
    """Evaluate a checkpoint, write the pictures and summary.json, and return the summary."""
    ctx = devices.contexts()
    stored = checkpoint.read(path)
    classes = stored.config.classes
    if data.spec.classes and set(classes) != set(data.spec.classes):
        _refuse_classes(stored, data, data.spec.classes)
    data.spec = replace(data.spec, classes=classes)
    (test_set,) = data.open(_held_back(stored, data), "test")
    if not test_set.known & set(classes):
        _refuse_classes(stored, data, sorted(test_set.known))
    evaluate.check_annotated(test_set, None)
    files.prepare(folder)
    detect = stored.detector(ctx)
    print(f"{path}, trained for {stored.step} steps, on {len(test_set)} images of {test_set}")
    scores = evaluate.evaluate(detect, test_set, data.scale, ctx, batch_size=devices.batch_size)
    scores["rpn_recall"] = evaluate.rpn_recall(detect, test_set, data.scale, ctx[0])
    pictured = range(min(PICTURED, len(test_set)))
    found = detect_dataset(detect, test_set, pictured, data.scale, ctx, hidden=True)
    pictures.detections(folder / "detections.png", test_set, found)
    # The best checkpoint knows the run up to its own step; the last one knows all of it.
    last = path.with_name(LAST)
    pictures.curves(folder, (checkpoint.read(last) if last.is_file() else stored).notes["history"])
    drawn = ["detections.png", "loss.png", "map.png"]
    summary = {
        "dataset": data.spec.name,
        "checkpoint_step": stored.step,
        "config": stored.config.to_dict(),
        "arguments": stored.arguments,
        "test": scores,
    }
    net = detect.net
    if hasattr(net.head, "class_pool"):
        cls, objects = typical_objects(net, test_set, data.spec)
        drawn.append("score_maps.png")
        summary["score_maps"] = inside.score_maps(folder / drawn[-1], net, *objects[0], cls)
    if hasattr(net.head, "offsets"):
        drawn.append("parts.png")
        summary["parts_moved"] = inside.parts(folder / drawn[-1], net, objects[:PARTS])
    summary["files"] = drawn
    files.write_json(folder / SUMMARY, summary)
    write_report(folder, summary)
    return summary


def _held_back(stored: checkpoint.Checkpoint, data: Data) -> Held | None:
    """Return the images that the checkpoint's run held back, if they are of this data set."""
    names, arguments = stored.notes["held_back"], stored.arguments
    same = arguments.get("dataset") == data.dataset and all(
        arguments.get(name) == (str(value) if (value := getattr(data, name)) else None)
        for name in LOCATION
    )
    return Held(names=set(names)) if names and same else None


def _refuse_classes(stored: checkpoint.Checkpoint, data: Data, wanted: Sequence[str]) -> NoReturn:
    raise CheckpointError(
        f"checkpoint: {stored.path} knows classes {', '.join(stored.config.classes)}; expected "
        f"those of '{data.dataset}': {', '.join(wanted)}"
    )


def typical_objects(
    net: RFCN, dataset: DetectionSet, spec: DatasetSpec
) -> tuple[int, list[tuple[np.ndarray, np.ndarray]]]:
    """Choose a class and its objects for the pictures of RoIs: large ones, the surest first.

    The objects are above the median size of the first images, in the class that the data set shows,
    or in the most frequent one. An object is an image and a box.
    """
    objects = []
    wanted = spec.classes.index(spec.shown_class) if spec.shown_class else None
    for index in range(min(40, len(dataset))):
        image, labels, _ = load_image(dataset, index, spec.short, spec.max_size)
        objects += [(image, row) for row in labels if not row[5]]
    sides = [np.min(row[2:4] - row[:2]) for _, row in objects]
    large = [entry for entry, side in zip(objects, sides) if side >= np.median(sides)]
    classes = [int(row[4]) for _, row in large]
    cls = max(classes, key=lambda each: (each == wanted, classes.count(each), -each))
    chosen = [(image, row[:4]) for image, row in reversed(large) if row[4] == cls]
    chosen.sort(key=lambda each: -inside.votes(net, each[0], each[1][None])[2][0, cls + 1])
    return cls, chosen


def print_summary(summary: dict, folder: Path) -> None:
    """Print the figures of a summary as a short table, and the location of its report."""
    scores = summary["test"]
    print(f"{summary['dataset']}: {scores['images']} held-back images", end=", ")
    print(f"mAP@.5 {scores['map50']:.3f}, mAP@.75 {scores['map75']:.3f}")
    print(f"  {scores['ms_per_image']:.0f} ms per image, RPN recall", end=" ")
    print(", ".join(f"{value:.3f} of {n}" for n, value in scores["rpn_recall"].items()))
    for name, values in scores["per_class"].items():
        at50, at75 = (shown(values[key]).center(5) for key in ("map50", "map75"))
        print(f"  {name:<16} AP@.50 {at50} AP@.75 {at75}")
    print(f"report in {(folder / REPORT).resolve()}")
