"""A tiny generated data set, and a short run on it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from demo_runs import train_arguments, write_voc

from demo_rfcn import cli
from demo_rfcn.data import signals


@pytest.fixture(scope="session")
def eight_images(tmp_path_factory) -> Path:
    """Eight images of `signals`, the same ones for training and testing."""
    images = [signals.paint(np.random.default_rng([7, index])) for index in range(8)]
    return write_voc(tmp_path_factory.mktemp("eight") / "signals", images)


@pytest.fixture(scope="session")
def short_run(eight_images, tmp_path_factory) -> Path:
    """The folder of a run of six steps without interruption."""
    folder = tmp_path_factory.mktemp("short") / "run"
    assert cli.main(train_arguments(eight_images, folder)) == 0
    return folder
