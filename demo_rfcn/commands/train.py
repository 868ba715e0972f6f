# SPDX-License-Identifier: Apache-2.0
"""`data`, `train`, and `demo`, which does everything from scratch to a folder of results."""

from __future__ import annotations

from pathlib import Path

from .. import files
from ..data import ensure_dataset
from ..data.dataset import DetectionSet
from ..errors import CheckpointError, InputError
from ..run import checkpoint, train
from ..run.record import BEST, LAST, SUMMARY
from ..settings import Data, Settings
from . import evaluate


def generate(data: Data) -> None:
    """Generate an embedded data set in VOC layout, unless it is there."""
    made = ensure_dataset(data.dataset, data.dataset_root, data.data_seed)
    print(f"{'wrote' if made else 'reused'} {data.dataset} in {data.dataset_root.resolve()}")


def command(settings: Settings) -> None:
    """Train a detector, and print the location of the run."""
    train.check_files(settings)
    refuse_to_replace(settings)
    train_set, val_set = settings.open("train", "val")
    print_summary(train_set, settings)
    train.train(settings, train_set, val_set)
    folder = settings.run.save_prefix
    print(f"the run is in {folder.resolve()}; its scores, pictures and report.html:")
    print(f"python -m demo_rfcn eval --pretrained {folder / LAST} --save-prefix {folder / 'eval'}")


def print_summary(train_set: DetectionSet, settings: Settings) -> None:
    """Print what there is to train on: objects per class, and their size."""
    for line in train_set.summarize(settings.data.scale):
        print(f"dataset: {line}")


def demo(settings: Settings) -> None:
    """Make data, train, evaluate, draw; reuse the parts that are complete."""
    train.check_files(settings)
    folder = settings.run.save_prefix
    last, summary_path = folder / LAST, folder / SUMMARY
    trained = False
    if last.is_file() and not settings.run.resume:
        stored = check_run(last, settings)
        trained = stored.step >= (settings.schedule.steps or stored.arguments["steps"])
        settings = settings.changed(resume=last)
    if settings.data.spec.recipe:
        generate(settings.data)
    if trained:
        print(f"reused {last}, trained for {stored.step} steps")
    else:
        # The images of the report too, so that broken ones are named now.
        train_set, val_set, _ = settings.open("train", "val", "test")
        print_summary(train_set, settings)
        train.train(settings, train_set, val_set)
        summary_path.unlink(missing_ok=True)
    if summary_path.is_file():
        print(f"reused {summary_path}")
        summary = files.read_json(summary_path, "demo")
    else:
        # Not the best checkpoint: which step scores best on a few images is chance.
        summary = evaluate.report(settings.data, settings.devices, last, folder)
    evaluate.print_summary(summary, folder)


def refuse_to_replace(settings: Settings) -> None:
    """Reject a folder with a run, unless the run continues or is to be replaced."""
    folder, resume = settings.run.save_prefix, settings.run.resume
    present = [folder / name for name in (LAST, BEST) if (folder / name).is_file()]
    continues = resume is not None and resume.resolve().parent == folder.resolve()
    if present and not continues and not settings.run.overwrite:
        run = f"a run of {checkpoint.read(present[0]).step} steps"
        raise InputError(f"train: {folder} has {run}: --resume {present[0]}, or --overwrite")


def check_run(path: Path, settings: Settings, *also: str) -> checkpoint.Checkpoint:
    """Read the checkpoint of a run; reject that of another one. See `Settings.differences`."""
    stored = checkpoint.read(path)
    # The classes of a folder are not known before it is opened.
    stored.check_config(settings.config(settings.data.spec.classes or stored.config.classes))
    if differences := settings.differences(stored.arguments, *also):
        other = "; ".join([*differences, "choose another --save-prefix for this one"])
        raise CheckpointError(f"checkpoint: {path} is of another run: {other}")
    return stored
