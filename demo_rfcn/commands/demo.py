# SPDX-License-Identifier: Apache-2.0
"""`demo`: everything from scratch to a folder of results."""

from __future__ import annotations

import dataclasses

from .. import files
from ..run import checkpoint, train
from ..run.settings import Settings
from . import evaluate


def command(settings: Settings) -> None:
    """Make data, train, evaluate, draw; steps that are complete already are not done again."""
    train.check_files(settings)
    folder = settings.save_prefix
    last = folder / train.LAST
    trained = False
    if last.is_file() and not settings.resume:
        meta = checkpoint.check_run(last, settings)
        trained = meta["step"] >= settings.steps
        settings = dataclasses.replace(settings, resume=last)
        settings.keep(meta)
    if settings.spec.paint:
        settings.generate()
    if not trained:
        # The images of the report too, so that broken ones are named now.
        train_set, val_set, _ = settings.open("train", "val", "test")
        train.run(settings, train_set, val_set)
        (folder / evaluate.SUMMARY).unlink(missing_ok=True)
    if (folder / evaluate.SUMMARY).is_file():
        summary = files.read_json(folder / evaluate.SUMMARY, "demo")
    else:
        # The rate has come down; which step scores best on a few images is chance.
        summary = evaluate.report(last, settings)
    evaluate.print_summary(summary)
    print(f"results in {folder.resolve()}")
