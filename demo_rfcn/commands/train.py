# SPDX-License-Identifier: Apache-2.0
"""`train`: a detector on a data set."""

from __future__ import annotations

from ..errors import InputError
from ..run import checkpoint, train
from ..run.record import BEST, LAST
from ..settings import Settings


def command(settings: Settings) -> None:
    """Train, and print the location of the run."""
    train.check_files(settings)
    refuse_to_replace(settings)
    train.train(settings, *settings.open("train", "val"))
    folder = settings.run.save_prefix
    print(f"the run is in {folder.resolve()}; its scores, pictures and report.html:")
    print(f"python -m demo_rfcn eval --pretrained {folder / LAST} --save-prefix {folder / 'eval'}")


def refuse_to_replace(settings: Settings) -> None:
    """Reject a folder with a run, unless the run continues or is to be replaced."""
    folder, resume = settings.run.save_prefix, settings.run.resume
    present = [folder / name for name in (LAST, BEST) if (folder / name).is_file()]
    continues = resume is not None and resume.resolve().parent == folder.resolve()
    if present and not continues and not settings.run.overwrite:
        steps = checkpoint.read(present[0]).step
        raise InputError(
            f"train: {folder} has a run of {steps} steps: --resume {present[0]}, or --overwrite"
        )
