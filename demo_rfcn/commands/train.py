# SPDX-License-Identifier: Apache-2.0
"""`train`: a detector on a data set."""

from __future__ import annotations

from ..run import train
from ..run.settings import Settings


def command(settings: Settings) -> None:
    """Train, and print the location of the run."""
    train.check_files(settings)
    print(train.run(settings, *settings.open("train", "val")).resolve())
