# SPDX-License-Identifier: Apache-2.0
"""Helpers of the demo's tests: short command lines, and what their runs wrote."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demo_rfcn import checkpoint, cli
from demo_rfcn.config import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
#: Flags of two steps on small images.
SMALL = ("--short", "80", "--max-size", "128", "--steps", "2")


def train_arguments(data: Path, folder: Path, *more: object) -> list[str]:
    """Return a command line that trains six steps; later arguments override earlier ones."""
    line = ["train", "--dataset-root", data, "--save-prefix", folder]
    line += ["--steps", "6", "--batch-size", "2", "--lr-warmup", "2", "--val-limit", "2"]
    return [str(word) for word in (*line, *more)]


def run(*line: object) -> None:
    """Run a command that succeeds."""
    assert cli.main([str(word) for word in line]) == 0, line


def train(data: Path, folder: Path, *more: object) -> Path:
    """Train as `train_arguments` says; return the last checkpoint."""
    run(*train_arguments(data, folder, *more))
    return folder / "last.ckpt"


def settings_of(line: list) -> Settings:
    """Return the settings that a command line asks for."""
    return cli.parse(line).args[0]  # type: ignore[attr-defined]


def python(
    *arguments: Any, stdout: Any = subprocess.PIPE, within: Sequence = (), **variables: str
) -> subprocess.CompletedProcess:
    """Run Python, the demo and the tests' helpers on its path, perhaps `within` a command."""
    return subprocess.run(
        [*within, sys.executable, "-W", "ignore", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}", **variables},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def history(folder: Path) -> dict[str, list[dict]]:
    """Return the losses and scores that a run has written, a list of rows each."""
    return json.loads((folder / "history.json").read_text())


def parameters(path: Path) -> dict:
    """Return the parameters of a checkpoint as NumPy arrays."""
    return checkpoint.read(path).model


def assert_equal_runs(one: Path, other: Path) -> None:
    """Compare the parameters and the optimizers of two checkpoints bit for bit."""
    first, second = checkpoint.read(one), checkpoint.read(other)
    assert first.updates == second.updates
    np.testing.assert_equal(first.model, second.model)
    np.testing.assert_equal(first.optimizer, second.optimizer)


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
