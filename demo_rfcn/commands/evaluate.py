# SPDX-License-Identifier: Apache-2.0
"""`eval`: the scores of a checkpoint on the test images of a data set, with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np

from .. import files
from ..data.dataset import DetectionSet
from ..data.loader import load_image
from ..data.specs import DatasetSpec
from ..errors import CheckpointError
from ..model.detections import detect_dataset
from ..model.detector import RFCN
from ..run import checkpoint, evaluate, train
from ..run.devices import contexts
from ..run.options import as_arguments
from ..run.settings import WHERE, Settings, options
from ..show import inside, pictures
from ..show.report import write as write_report

SUMMARY = "summary.json"
PICTURED = 12  # images of the detection picture
PARTS = 8  # RoIs of the picture of moved bins


def command(settings: Settings, path: Path) -> None:
    """Evaluate a checkpoint on the test images of a data set, with pictures."""
    print_summary(report(path, settings))
    print(f"results in {settings.save_prefix.resolve()}")


def inherited(given: dict) -> list[str]:
    """Return the arguments that a checkpoint gives to `eval`: its scale, and its data if the same.

    Parameters
    ----------
    given : dict
        What the command line says.
    """
    meta = checkpoint.read_meta(given["path"])
    stored = meta["arguments"]
    line = [f"--short={meta['short']}", f"--max-size={meta['max_size']}"]
    left_out = {"short", "max_size"}
    if given.get("dataset", stored.get("dataset")) != stored.get("dataset"):
        return line
    if "dataset_root" in given or "val_annotations" in given:
        left_out |= set(WHERE)
    of_data = [each for each in options() if each.metadata["group"] == "data"]
    return line + as_arguments([each for each in of_data if each.name not in left_out], stored)


def report(path: Path, settings: Settings) -> dict:
    """Evaluate a checkpoint, write the pictures and summary.json, and return the summary.

    Raises
    ------
    InputError
        The data set or the checkpoint is missing, or the checkpoint knows other classes.
    """
    ctx = contexts(settings.gpus, settings.cpus)
    meta = checkpoint.read_meta(path)
    if settings.spec.classes and set(meta["config"].classes) != set(settings.spec.classes):
        _refuse_classes(path, meta, settings, settings.spec.classes)
    settings.keep(meta, evaluating=True)
    spec = settings.spec
    (test_set,) = settings.open("test")
    if not test_set.known & set(spec.classes):
        _refuse_classes(path, meta, settings, sorted(test_set.known))
    evaluate.check_annotated(test_set, None)
    folder = settings.save_prefix
    files.prepare(folder)
    detect, meta = checkpoint.load_detector(path, ctx)
    scale = (spec.short, spec.max_size)
    print(f"{path}, trained for {meta['step']} steps, on {len(test_set)} images of {test_set}")
    scores = evaluate.evaluate(detect, test_set, scale, ctx, batch_size=settings.batch_size)
    scores["rpn_recall"] = evaluate.rpn_recall(detect, test_set, scale, ctx[0])
    shown = range(min(PICTURED, len(test_set)))
    found = dict(detect_dataset(detect, test_set, shown, scale, ctx))
    pictures.detections(folder / "detections.png", test_set, found)
    # The best checkpoint knows the run up to its own step; the last one knows all of it.
    last = path.with_name(train.LAST)
    whole = checkpoint.read_meta(last) if last.is_file() else meta
    pictures.curves(folder, whole["history"])
    drawn = ["detections.png", "loss.png", "map.png"]
    summary = {
        "dataset": spec.name,
        "checkpoint_step": meta["step"],
        "config": meta["config"].to_dict(),
        "arguments": meta["arguments"],
        "test": scores,
    }
    if hasattr(detect.net.head, "class_pool"):
        cls, objects = typical_objects(detect.net, test_set, spec)
        summary["score_maps"] = inside.score_maps(
            folder / "score_maps.png", detect.net, *objects[0], cls
        )
        drawn.append("score_maps.png")
        if hasattr(detect.net.head, "offsets"):
            moved = inside.parts(folder / "parts.png", detect.net, objects[:PARTS])
            summary["parts_moved"] = moved
            drawn.append("parts.png")
    summary["files"] = drawn
    files.write_json(folder / SUMMARY, summary)
    write_report(folder, summary)
    return summary


def _refuse_classes(path: Path, meta: dict, settings: Settings, wanted: Sequence[str]) -> NoReturn:
    raise CheckpointError(
        f"checkpoint: {path} knows classes {', '.join(meta['config'].classes)}; expected those of "
        f"'{settings.dataset}': {', '.join(wanted)}"
    )


def typical_objects(
    net: RFCN, dataset: DetectionSet, spec: DatasetSpec, candidates: int = 40
) -> tuple[int, list[tuple[np.ndarray, np.ndarray]]]:
    """Choose the objects for the pictures of RoIs: the larger ones, the surest first.

    Only objects above the median size of the first images come into question, in the class that the
    data set shows, or in the one with the most of them.

    Returns
    -------
    cls : int
        Class index, background not counted.
    objects : list of (numpy.ndarray, numpy.ndarray)
        Image (H, W, 3), uint8, and box (4,), float32.
    """
    objects = []
    for index in range(min(candidates, len(dataset))):
        image, labels, _ = load_image(dataset, index, spec.short, spec.max_size)
        objects += [(image, row) for row in labels if not row[5]]
    sides = [np.min(row[2:4] - row[:2]) for _, row in objects]
    large = [entry for entry, side in zip(objects, sides) if side >= np.median(sides)]
    counts = np.bincount([int(row[4]) for _, row in large], minlength=len(spec.classes))
    cls = int(counts.argmax())
    if spec.shown_class and counts[spec.classes.index(spec.shown_class)]:
        cls = spec.classes.index(spec.shown_class)
    ranked = [
        (inside.votes(net, image, row[None, :4])[2][0, cls + 1], order)
        for order, (image, row) in enumerate(large)
        if row[4] == cls
    ]
    chosen = [large[order] for _, order in sorted(ranked, reverse=True)]
    return cls, [(image, row[:4]) for image, row in chosen]


def print_summary(summary: dict) -> None:
    """Print the figures of a summary as a short table."""
    scores = summary["test"]
    print(f"{summary['dataset']}: {scores['images']} held-back images", end=", ")
    print(f"mAP@.5 {scores['map50']:.3f}, mAP@.75 {scores['map75']:.3f}")
    print(f"  {scores['ms_per_image']:.0f} ms per image, RPN recall", end=" ")
    print(", ".join(f"{value:.3f} of {n}" for n, value in scores["rpn_recall"].items()))
    for name, values in scores["per_class"].items():
        row = " ".join(
            f"AP@.{key[-2:]} {'  -  ' if values[key] is None else format(values[key], '.3f')}"
            for key in ("map50", "map75")
        )
        print(f"  {name:<16} {row}")
