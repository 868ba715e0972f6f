# SPDX-License-Identifier: Apache-2.0
"""`eval`: the scores of a checkpoint on the test images of a data set, with pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from .. import files
from ..data import ValidationSplit, resolve_location
from ..errors import CheckpointError
from ..model.detections import Finder
from ..run import checkpoint, evaluate
from ..run.record import LAST, SUMMARY
from ..settings import Data, Devices
from ..show.report import REPORT, shown, write_report

PICTURED = 12  # images of the detection picture
PARTS = 8  # RoIs of the picture of moved bins


def command(data: Data, devices: Devices, path: Path, save_prefix: Path) -> None:
    """Score a checkpoint, with pictures, on its own data and scale unless others are given."""
    print_summary(report(data, devices, path, save_prefix), save_prefix)


def report(data: Data, devices: Devices, path: Path, folder: Path) -> dict:
    """Evaluate a checkpoint, write the pictures and summary.json, and return the summary."""
    from ..show import inside, pictures  # pyplot takes long to import

    ctx = devices.contexts()
    stored = checkpoint.read(path)
    classes = stored.config.classes
    if data.spec.classes and set(classes) != set(data.spec.classes):
        _refuse_classes(stored, data, data.spec.classes)
    data.spec = replace(data.spec, classes=classes)
    (test_set,) = data.open(_held_back(stored, data), "test")
    if not test_set.annotated_classes & set(classes):
        _refuse_classes(stored, data, sorted(test_set.annotated_classes))
    evaluate.check_annotated(test_set, None)
    files.prepare(folder)
    find = Finder(stored.detector(ctx), data.scale, ctx, devices.batch_size)
    print(f"{path}, trained for {stored.step} steps, on {len(test_set)} images of {test_set}")
    scores = evaluate.evaluate(find, test_set)
    scores["rpn_recall"] = evaluate.rpn_recall(find, test_set)
    found = find(test_set, range(len(test_set))[:PICTURED], hidden=True)
    pictures.detections(folder / "detections.png", test_set, found)
    # The best checkpoint knows the run up to its own step; the last one knows all of it.
    last = path.with_name(LAST)
    pictures.curves(folder, (checkpoint.read(last) if last.is_file() else stored).notes["history"])
    drawn = ["detections.png", "loss.png", "map.png"]
    summary = {
        "dataset": data.spec.name,
        "location": resolve_location(vars(data)),
        "checkpoint_step": stored.step,
        "config": stored.config.to_dict(),
        "arguments": stored.arguments,
        "test": scores,
    }
    net = find.detector.net
    if hasattr(net.head, "class_pool"):
        cls, objects = inside.typical_objects(net, test_set, data.spec)
        drawn.append("score_maps.png")
        summary["score_maps"] = inside.score_maps(folder / drawn[-1], net, *objects[0], cls)
    if hasattr(net.head, "offsets"):
        drawn.append("parts.png")
        summary["parts_moved"] = inside.parts(folder / drawn[-1], net, objects[:PARTS])
    summary["files"] = drawn
    files.write_json(folder / SUMMARY, summary)
    write_report(folder, summary)
    return summary


def _held_back(stored: checkpoint.Checkpoint, data: Data) -> ValidationSplit | None:
    """Return the images that the checkpoint's run held back, if they are of this data set."""
    names = stored.notes["held_back"]
    trained_on = stored.notes.get("location") or resolve_location(stored.arguments)
    same = trained_on == resolve_location(vars(data))
    return ValidationSplit(names=set(names)) if names and same else None


def _refuse_classes(stored: checkpoint.Checkpoint, data: Data, wanted: Sequence[str]) -> NoReturn:
    known = f"{stored.path} knows classes {', '.join(stored.config.classes)}"
    expected = f"expected those of '{data.dataset}': {', '.join(wanted)}"
    raise CheckpointError(f"checkpoint: {known}; {expected}")


def print_summary(summary: dict, folder: Path) -> None:
    """Print the figures of a summary as a short table, and the location of its report."""
    scores = summary["test"]
    print(f"{summary['dataset']}: {scores['images']} held-back images", end=", ")
    print(f"mAP@.5 {scores['map50']:.3f}, mAP@.75 {scores['map75']:.3f}")
    recall = ", ".join(f"{value:.3f} of {n}" for n, value in scores["rpn_recall"].items())
    print(f"  {scores['ms_per_image']:.0f} ms per image, RPN recall {recall}")
    for name, values in scores["per_class"].items():
        at50, at75 = (shown(values[key]).center(5) for key in ("map50", "map75"))
        print(f"  {name:<16} AP@.50 {at50} AP@.75 {at75}")
    print(f"report in {(folder / REPORT).resolve()}")
