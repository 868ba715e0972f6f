# SPDX-License-Identifier: Apache-2.0
"""`eval`: the scores of a checkpoint on the test images of a data set, with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from . import checkpoint, files
from .checkpoint import Checkpoint
from .config import LAST, SAME_RUN, SUMMARY, Data, Devices
from .data import resolve_location
from .data.dataset import DetectionSet, plural
from .data.splits import choose_indices
from .errors import CheckpointError
from .losses import TrainGraph
from .metrics import check_annotated, describe_images, evaluate, rpn_recall
from .model import PSROIHead
from .predictor import Predictor
from .provenance import result_record
from .report.page import REPORT, check_report_folder, format_score, write_report
from .variants import DeformablePSROIHead, ScrambledHead

PICTURED_IMAGES = 12  # of the detection picture
PICTURED_ROIS = 8  # of the picture of shifted bins


def command(data: Data, devices: Devices, stored: Checkpoint, save_prefix: Path) -> None:
    """Score a checkpoint, with pictures, on its own data and scale unless others are given."""
    check_report_folder(save_prefix)
    print_summary(report(data, devices, stored, save_prefix), save_prefix)


def report(data: Data, devices: Devices, stored: Checkpoint, folder: Path) -> dict[str, Any]:
    """Evaluate a checkpoint, write the pictures and summary.json, and return the summary."""
    ctx = devices.contexts()
    test_set = open_test_set(data, stored)
    check_annotated(test_set)
    files.prepare(folder)
    predictor = Predictor(stored.detector(ctx), data.scale, ctx, devices.batch_size)
    path = stored.path
    images = plural(len(test_set), "image")
    print(f"evaluating {path}, trained for {stored.step} steps, on {test_set}: {images}")
    scores = evaluate(predictor, test_set)
    scores["rpn_recall"] = rpn_recall(predictor, test_set)
    summary: dict[str, Any] = {
        "dataset": data.dataset,
        "location": resolve_location(vars(data)),
        "checkpoint_step": stored.step,
        "config": asdict(stored.config),
        "arguments": stored.arguments,
        "made_of": result_record(stored, data, test_set),
        "test": scores,
    }
    with files.replacing_all(folder) as work:
        draw(work, summary, data, stored, predictor, test_set)
        files.write_json(work / SUMMARY, summary)
        write_report(work, summary)
    return summary


def draw(
    folder: Path,
    summary: dict[str, Any],
    data: Data,
    stored: Checkpoint,
    predictor: Predictor,
    test_set: DetectionSet,
) -> None:
    """Draw the pictures of an evaluation; add their names and their figures to the summary."""
    from .report import pictures, roi_pictures  # the import of pyplot needs a second

    found = predictor(test_set, choose_indices(test_set, PICTURED_IMAGES), hidden=True)
    pictures.detections(folder / "detections.png", test_set, found)
    pictures.curves(folder, whole_history(stored))
    drawn = ["detections.png", "loss.png", "map.png"]
    net = predictor.detector.net
    # The bins of a scrambled head have no maps of their own.
    if isinstance(net.head, PSROIHead) and not isinstance(net.head, ScrambledHead):
        cls, objects = roi_pictures.typical_objects(net, test_set, data.spec)
        drawn.append("score_maps.png")
        summary["score_maps"] = roi_pictures.score_maps(folder / drawn[-1], net, *objects[0], cls)
    if isinstance(net.head, DeformablePSROIHead):
        drawn.append("parts.png")
        summary["mean_bin_shift"] = roi_pictures.parts(
            folder / drawn[-1], net, objects[:PICTURED_ROIS]
        )
    summary["files"] = drawn


def open_test_set(data: Data, stored: Checkpoint) -> DetectionSet:
    """Open the test images; without a list of them, those that the detector was not trained on."""
    classes = stored.config.classes
    if data.spec.classes and set(classes) != set(data.spec.classes):
        _refuse_classes(stored, data, data.spec.classes)
    (test_set,) = data.open("test", before=stored.images, classes=classes)
    if not test_set.annotated_classes & set(classes):
        _refuse_classes(stored, data, sorted(test_set.annotated_classes))
    return test_set


def whole_history(stored: Checkpoint) -> dict[str, list[dict[str, float]]]:
    """Return the history of the checkpoint's run, up to its end if last.ckpt is of this run.

    The losses since the last row are one more row.
    """
    last = stored.path.with_name(LAST)
    if last.is_file() and last.resolve() != stored.path.resolve():
        try:
            latest = checkpoint.read(last)
        except CheckpointError:
            latest = stored
        if _continues(latest, stored):
            stored = latest
    losses = list(stored.history["losses"])
    if stored.pending:
        means = np.mean(stored.pending, axis=0)
        losses.append({"step": stored.step, **dict(zip(TrainGraph.LOSSES, means.tolist()))})
    return {"losses": losses, "val": stored.history["val"]}


def _continues(latest: Checkpoint, stored: Checkpoint) -> bool:
    """Return whether a checkpoint is a later one of the same run."""
    same = latest.config == stored.config and latest.step >= stored.step
    for name, rows in stored.history.items():
        same &= latest.history[name][: len(rows)] == rows
    options = (set(latest.arguments) | set(stored.arguments)) - SAME_RUN
    return same and all(latest.arguments.get(n) == stored.arguments.get(n) for n in options)


def _refuse_classes(stored: Checkpoint, data: Data, requested: Sequence[str]) -> NoReturn:
    known = f"{stored.path} has classes {', '.join(stored.config.classes)}"
    expected = f"expected the classes of '{data.dataset}': {', '.join(requested)}"
    raise CheckpointError(f"checkpoint: {known}; {expected}")


def print_summary(summary: dict[str, Any], folder: Path) -> None:
    """Print the figures of a summary as a short table, and the location of its report."""
    scores = summary["test"]
    print(f"{summary['dataset']}: {describe_images(scores)}", end=", ")
    print(f"mAP@0.5 {scores['map50']:.3f}, mAP@0.75 {scores['map75']:.3f}")
    recall = ", ".join(f"{value:.3f} of {n}" for n, value in scores["rpn_recall"].items())
    print(f"  {scores['ms_per_image']:.0f} ms per image, RPN recall {recall}")
    for name, values in scores["per_class"].items():
        at50, at75 = (format_score(values[key]).center(5) for key in ("map50", "map75"))
        print(f"  {name:<16} AP@0.5 {at50} AP@0.75 {at75}")
    print(f"report in {(folder / REPORT).resolve()}")
