# SPDX-License-Identifier: Apache-2.0
"""A full or read-only disk gives one sentence and status 2, and nothing is half-written."""

from __future__ import annotations

import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.damages import files_up_to
from support.demo_runs import REPOSITORY, assert_equal_runs, python, run, train, train_arguments

from demo_rfcn import checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture
def unwritten(rejects) -> Callable:
    """Run a command that cannot write files of more bytes; return its sentence."""

    def check(line: list, size: int) -> str:
        with files_up_to(size):
            (message,) = rejects(line, "demo_rfcn: cannot write ", starts=True)
        return message

    return check


def names(folder: Path) -> list:
    """Return the names in a folder, hidden files included."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("size", [0, 300, 5000])
@pytest.mark.parametrize("command", ["data", "demo"])
def test_unwritten_data(command, size, few_signals, tmp_path, unwritten):
    message = unwritten([command, "--dataset-root", tmp_path / "data"], size)
    assert message.endswith(f"cannot write {tmp_path / 'data'}: File too large")
    assert names(tmp_path) == []


@pytest.mark.parametrize("command", ["train", "demo"])
def test_unwritten_first_checkpoint(command, written_signals, eight_images, tmp_path, unwritten):
    line = [command, *train_arguments(eight_images, tmp_path / "run")[1:], "--steps", "2"]
    folder = tmp_path / "run"
    message = unwritten(line, 100_000)
    assert message.endswith(f"cannot write {folder / 'best.ckpt'}: File too large")
    assert names(folder) == []
    assert unwritten(line, 100).endswith(f"cannot write {folder}: File too large")


def test_previous_checkpoint_stays_and_resumes(eight_images, short_run, tmp_path, unwritten):
    """The next checkpoint is cut at its beginning, in the middle, and at its last byte."""
    last = train(eight_images, tmp_path, "--max-seconds", "1e-9")
    assert [row["step"] for row in checkpoint.read(last).history["val"]] == [1]
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    line = train_arguments(eight_images, tmp_path, "--resume", last)
    for size in (10_000, len(before[last]) // 2, len(before[last]) - 1):
        assert unwritten(line, size).endswith(".ckpt: File too large"), size
        assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}
    run(*line)
    assert_equal_runs(last, short_run / "last.ckpt")


@pytest.mark.parametrize("command", ["eval", "detect", "export"])
@pytest.mark.usefixtures("blank_pictures")
def test_unwritten_results(command, eight_images, short_run, tmp_path, unwritten):
    image = eight_images / "VOC2007/JPEGImages/000000.jpg"
    own = {"eval": ["--dataset-root", eight_images], "detect": [image], "export": []}
    line = [command, *own[command], "--pretrained", short_run / "best.ckpt", "--save-prefix"]
    whole, folder = tmp_path / "whole", tmp_path / "out"
    run(*line, whole)
    written = {path.name: path.stat().st_size for path in whole.iterdir()}
    assert unwritten([*line, folder], 100).endswith(f"cannot write {folder}: File too large")
    largest = sorted(written, key=lambda name: written[name])
    for name in largest[-2:] if command == "export" else largest[-1:]:
        message = unwritten([*line, folder], written[name] - 9)
        assert message.startswith(f"demo_rfcn: cannot write {folder}")
        assert message.endswith(": File too large")
        assert set(names(folder)) <= set(written) - {name}
        shutil.rmtree(folder)


def test_broken_notes_are_named(written_signals, eight_images, short_run, tmp_path, rejects):
    folder = Path(shutil.copytree(short_run, tmp_path / "run"))
    summary = folder / "summary.json"
    summary.write_text('{"dataset": "sig')
    words = f"eval: {summary} was not written by an evaluation; choose another"
    rejects(["demo", *train_arguments(eight_images, folder)[1:]], words)


def test_full_standard_output(few_signals, tmp_path, monkeypatch, capsys):
    """It is closed, or Python would report once more, when it ends, that it is full."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    run("data", "--dataset-root", tmp_path)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["demo_rfcn", "data", "--dataset-root", str(tmp_path)])
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("demo_rfcn", run_name="__main__")
        assert full.closed and ended.value.code == 2
    message = "demo_rfcn: standard output: No space left on device\n"
    assert capsys.readouterr().err == message


@pytest.mark.night
def test_disk_that_fills_up(eight_images, short_run, tmp_path):
    """A small file system in a namespace, which needs no rights, becomes full, then read-only."""
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    probe = [*own, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this system does not let users mount a file system in a namespace")
    program = REPOSITORY / "tests" / "scripts" / "full_disk.py"
    made = python(program, eight_images, short_run, tmp_path, within=own)
    assert made.returncode == 0, made.stderr[-2000:]
    more = ("--resume", short_run / "last.ckpt", "--steps", "8")
    assert_equal_runs(tmp_path / "last.ckpt", train(eight_images, tmp_path / "roomy", *more))
