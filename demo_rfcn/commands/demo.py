# SPDX-License-Identifier: Apache-2.0
"""`demo`: everything from scratch to a folder of results."""

from __future__ import annotations

from pathlib import Path

from .. import files
from ..errors import CheckpointError
from ..run import checkpoint, train
from ..run.record import LAST, SUMMARY
from ..settings import Settings
from . import evaluate
from .data import command as generate


def command(settings: Settings) -> None:
    """Make data, train, evaluate, draw; reuse the parts that are complete."""
    train.check_files(settings)
    folder = settings.run.save_prefix
    last, summary_path = folder / LAST, folder / SUMMARY
    trained = False
    if last.is_file() and not settings.run.resume:
        stored = check_run(last, settings)
        trained = stored.step >= (settings.schedule.steps or stored.arguments["steps"])
        settings = settings.changed(resume=last)
    if settings.data.spec.paint:
        generate(settings.data)
    if trained:
        print(f"reused {last}, trained for {stored.step} steps")
    else:
        # The images of the report too, so that broken ones are named now.
        train_set, val_set, _ = settings.open("train", "val", "test")
        train.train(settings, train_set, val_set)
        summary_path.unlink(missing_ok=True)
    if summary_path.is_file():
        print(f"reused {summary_path}")
        summary = files.read_json(summary_path, "demo")
    else:
        # Not the best checkpoint: which step scores best on a few images is chance.
        summary = evaluate.report(settings.data, settings.devices, last, folder)
    evaluate.print_summary(summary, folder)


def check_run(path: Path, settings: Settings, *also: str) -> checkpoint.Checkpoint:
    """Read the checkpoint of a run; reject that of another one. See `Settings.differences`."""
    stored = checkpoint.read(path)
    # Those of a folder are not known before it is opened.
    classes = settings.data.spec.classes or stored.config.classes
    stored.check_config(settings.config(classes))
    if differences := settings.differences(stored.arguments, *also):
        raise CheckpointError(
            f"checkpoint: {path} is of another run: {'; '.join(differences)}; choose another "
            "--save-prefix for this one"
        )
    return stored
