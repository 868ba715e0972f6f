"""`demo`: the whole way from nothing to a folder of results; and `eval`, its second half."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from . import checkpoint, detector, evaluate, files, pictures, train
from .data import Dataset, DatasetSpec
from .data.loader import load_image
from .errors import CheckpointError
from .report import write as write_report
from .settings import Settings

SUMMARY = "summary.json"
PICTURED = 12  # images of the detection picture
PARTS = 8  # RoIs of the picture of moved bins


def command(settings: Settings) -> None:
    """Make data, train, evaluate, draw; steps that are complete already are not done again."""
    folder = settings.save_prefix
    last = folder / train.LAST
    trained = False
    if last.is_file() and not settings.resume:
        trained = check_arguments(last, settings)["step"] >= settings.steps
        settings = dataclasses.replace(settings, resume=last)
    if settings.spec.paint:
        settings.generate()
    if not trained:
        # The images of the report too, so that broken ones are named now.
        train_set, val_set, _ = settings.open("train", "val", "test")
        train.run(settings, train_set, val_set)
        (folder / SUMMARY).unlink(missing_ok=True)
    if (folder / SUMMARY).is_file():
        summary = files.read_json(folder / SUMMARY, "demo")
    else:
        # The rate has come down; which step scores best on a few images is chance.
        summary = report(last, settings)
    print_summary(summary)
    print(f"results in {folder.resolve()}")


def check_arguments(path: Path, settings: Settings, *also: str) -> dict:
    """Refuse to pass off the run of other arguments as the one asked for.

    Parameters
    ----------
    path : pathlib.Path
        The run's checkpoint.
    settings : Settings
    *also : str
        See `Settings.differences`.

    Returns
    -------
    dict
        See `checkpoint.read_meta`.

    Raises
    ------
    CheckpointError
    """
    meta = checkpoint.read_meta(path)
    checkpoint.check_config(path, meta["config"], train.model_config(settings))
    if differences := settings.differences(meta["arguments"], *also):
        raise CheckpointError(
            f"checkpoint: {path} is of another run: {'; '.join(differences)}; choose another "
            "--save-prefix for this one"
        )
    return meta


def evaluate_command(settings: Settings, pretrained: Path) -> None:
    """Evaluate a checkpoint on the test images of a data set, with pictures."""
    print_summary(report(pretrained, settings))
    print(f"results in {settings.save_prefix.resolve()}")


def load_detector(path: Path, ctx: mx.Context, **arguments: Any) -> tuple[detector.Detector, dict]:
    """Load a checkpoint.

    Parameters
    ----------
    path : pathlib.Path
    ctx : mxnet.Context
    **arguments
        Of `detector.Detector`.

    Returns
    -------
    detect : detector.Detector
        Hybridized; its `net` holds the parameters.
    meta : dict
        See `checkpoint.read_meta`.
    """
    meta = checkpoint.read_meta(path)
    net = detector.build(meta["config"], [ctx], seed=0)
    checkpoint.load_parameters(path, net)
    detect = detector.Detector(net, **arguments)
    detect.hybridize(static_alloc=True)
    return detect, meta


def report(path: Path, settings: Settings) -> dict:
    """Evaluate a checkpoint, write the pictures and summary.json, and return the summary.

    Raises
    ------
    InputError
        The data set or the checkpoint is missing, or the checkpoint knows other classes.
    """
    ctx = mx.cpu()
    folder, spec = settings.save_prefix, settings.spec
    meta = checkpoint.read_meta(path)
    if meta["config"].classes != spec.classes:
        raise CheckpointError(
            f"checkpoint: {path} knows classes {', '.join(meta['config'].classes)}; expected those "
            f"of '{spec.name}': {', '.join(spec.classes)}"
        )
    (test_set,) = settings.open("test")
    files.prepare(folder)
    detect, meta = load_detector(path, ctx)
    scale = (spec.short, spec.max_size)
    scores = evaluate.evaluate(detect, test_set, *scale, ctx)
    scores["rpn_recall"] = evaluate.rpn_recall(detect, test_set, *scale, ctx)
    shown = range(min(PICTURED, len(test_set)))
    found = dict(evaluate.detect_dataset(detect, test_set, shown, *scale, ctx))
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
        summary["score_maps"] = pictures.score_maps(
            folder / "score_maps.png", detect.net, *objects[0], cls
        )
        drawn.append("score_maps.png")
        if hasattr(detect.net.head, "offsets"):
            moved = pictures.parts(folder / "parts.png", detect.net, objects[:PARTS])
            summary["parts_moved"] = moved
            drawn.append("parts.png")
    summary["files"] = drawn
    files.write_json(folder / SUMMARY, summary)
    write_report(folder, summary)
    return summary


def typical_objects(
    net: detector.RFCN, dataset: Dataset, spec: DatasetSpec, candidates: int = 40
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
        (pictures.votes(net, image, row[None, :4])[2][0, cls + 1], order)
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
