# SPDX-License-Identifier: Apache-2.0
"""Training: it learns, resumes after an interruption, and takes images without boxes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from demo_runs import (
    assert_equal_runs,
    parameters,
    refused,
    settings_of,
    train_arguments,
    write_voc,
)

from demo_rfcn import cli, progress
from demo_rfcn.data import loader, signals
from demo_rfcn.distributed.workers import Alone
from demo_rfcn.model import detector
from demo_rfcn.model.heads import FPN_HEADS, HEADS
from demo_rfcn.run import checkpoint

pytestmark = pytest.mark.slow


def test_overfits_eight_images(eight_images, tmp_path, capsys):
    arguments = ("--steps", "260", "--batch-size", "4", "--val-interval", "260")
    line = train_arguments(eight_images, tmp_path, *arguments, "--val-limit", "8")
    assert cli.main(line) == 0
    history = json.loads((tmp_path / "history.json").read_text())
    assert history["val"][-1]["map50"] > 0.9
    assert sum(history["losses"][-1][name] for name in detector.TrainGraph.LOSSES) < 0.9


@pytest.mark.parametrize(
    "flags",
    [f"--head {head}" for head in sorted(HEADS)]
    + [f"--head {head} --fpn" for head in sorted(FPN_HEADS)]
    + ["--head psroi --no-class-agnostic", "--head roi_fc --no-class-agnostic"],
)
def test_every_head_learns(flags, eight_images, tmp_path):
    """The class loss falls by a quarter within thirty steps."""
    line = [*flags.split(), "--steps", "30", "--log-interval", "1"]
    assert cli.main(train_arguments(eight_images, tmp_path, *line)) == 0
    history = json.loads((tmp_path / "history.json").read_text())["losses"]
    losses = [row["rcnn_cls"] for row in history]
    assert np.mean(losses[-5:]) < 0.75 * losses[0]


def test_two_contexts_equal_one_with_the_joined_batch(eight_images, tmp_path):
    stored = []
    for contexts in ("1", "2"):
        line = ("--cpus", contexts, "--freeze-bn", "--steps", "1", "--optimizer", "sgd")
        assert cli.main(train_arguments(eight_images, tmp_path / contexts, *line)) == 0
        stored.append(checkpoint.read(tmp_path / contexts / "last.ckpt"))
    (row,), (divided,) = (each.notes["history"]["losses"] for each in stored)
    assert divided == pytest.approx(row, rel=1e-5)
    for name, expected in stored[0].model.items():
        np.testing.assert_allclose(stored[1].model[name], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("ohem", [[], ["--no-ohem"]])
def test_images_without_boxes(ohem, tmp_path):
    images = [signals.paint(np.random.default_rng(index)) for index in range(2)]
    images += [(image[::-1], []) for image, _ in images]
    data = write_voc(tmp_path / "data", images)
    line = train_arguments(data, tmp_path / "run", "--val-limit", "4", "--steps", "4", *ohem)
    assert cli.main(line) == 0
    history = json.loads((tmp_path / "run" / "history.json").read_text())
    assert np.isfinite(list(history["losses"][-1].values())).all()


def test_image_that_is_lost_during_training_is_named(folder, tmp_path, monkeypatch, capsys):
    original = loader.TrainLoader.make

    def lose_images(self, step):
        shutil.rmtree(folder / "JPEGImages", ignore_errors=True)
        return original(self, step)

    monkeypatch.setattr(loader.TrainLoader, "make", lose_images)
    *_, message = refused(train_arguments(folder.parent, tmp_path / "run"), capsys)
    assert ".jpg cannot be read any more" in message


@pytest.mark.parametrize(
    "flags",
    [
        ("--optimizer", "sgd", "--momentum", "0.8", "--head-lr-mult", "3"),
        ("--lr-mode", "step", "--lr-decay", "0.2", "--lr-decay-steps", "3", "5", "--wd", "0"),
        ("--clip-gradient", "1e-3", "--rpn-num-sample", "32", "--log-interval", "2"),
        ("--scale-jitter", "0.8", "1.2", "--color-jitter", "0.3", "--flip-p", "0.2"),
    ],
)
def test_settings_change_the_run(flags, eight_images, short_run, tmp_path):
    assert cli.main(train_arguments(eight_images, tmp_path, *flags)) == 0
    ours, default = (parameters(folder / "last.ckpt") for folder in (tmp_path, short_run))
    assert all(np.isfinite(value).all() for value in ours.values())
    assert any((ours[name] != default[name]).any() for name in default)


def test_schedules():
    line = train_arguments(
        Path("data"), Path("run"), "--steps", "100", "--lr", "1", "--lr-warmup", "10"
    )
    cosine = [settings_of(line).schedule.rate(step) for step in (0, 10, 55, 100)]
    np.testing.assert_allclose(cosine, [0.1, 1, 0.505, 0.01], atol=1e-6)
    line += ["--lr-mode", "step"]
    stepped = settings_of([*line, "--lr-decay-steps", "40", "80"])
    steps = [stepped.schedule.rate(step) for step in (5, 20, 60, 90)]
    np.testing.assert_allclose(steps, [0.55, 1, 0.1, 0.01], atol=1e-6)
    assert settings_of([*line, "--steps", "1"]).schedule.rate(0) == 1


def test_folder_with_a_run_is_rejected(eight_images, short_run, tmp_path, capsys):
    run = Path(shutil.copytree(short_run, tmp_path / "run"))
    before = (run / "best.ckpt").read_bytes()
    line = train_arguments(eight_images, run, "--seed", "1")
    words = f"{run} has a run of 6 steps: --resume {run / 'last.ckpt'}, or --overwrite"
    assert refused(line, capsys) == [f"demo_rfcn: train: {words}"]
    assert (run / "best.ckpt").read_bytes() == before
    assert cli.main([*line, "--overwrite"]) == 0
    assert checkpoint.read(run / "best.ckpt").arguments["seed"] == 1


@pytest.mark.parametrize("images, steps", [(8, 500), (60, 1500), (10**6, 30_000)])
def test_steps_follow_from_the_number_of_images(images, steps, monkeypatch):
    settings = settings_of(["train", "--dataset", "voc-like"])
    monkeypatch.setattr(settings.data, "open", lambda *_: [[0] * images, [0]])
    settings.open("train", "val")
    assert settings.schedule.steps == steps


@pytest.mark.parametrize(
    ("number", "signals"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 2)], ids=str
)
def test_one_signal_ends_the_run_after_its_step_and_two_end_it_at_once(
    number, signals, eight_images, short_run, tmp_path, monkeypatch, capsys
):
    """The signals come while a step computes. The run then resumes bit for bit."""
    reduce, calls, last = Alone.reduce, [], tmp_path / "last.ckpt"
    ended: list = []

    def slow(self, *arguments):
        calls.append(0)
        for _ in range(signals if len(calls) == 3 else 0):
            os.kill(os.getpid(), number)
            time.sleep(0.3)
        return reduce(self, *arguments)

    monkeypatch.setattr(Alone, "reduce", slow)
    monkeypatch.setattr(os, "_exit", lambda status: ended.append((status, last.exists())))
    line = train_arguments(eight_images, tmp_path)
    assert cli.main(line) == 130
    said = capsys.readouterr().err
    assert "stopping after step 3 of 6; a second signal ends at once" in said
    assert ended == [(130, False)] * (signals - 1)
    assert ("ended at once, without a checkpoint" in said) == (signals == 2)
    assert checkpoint.read(last).step == 3
    assert f"continue with --resume {last} (step 3)" in said
    assert cli.main([*line, "--resume", str(last)]) == 0
    assert_equal_runs(last, short_run / "last.ckpt")
    histories = [checkpoint.read(path).notes["history"] for path in (last, short_run / "last.ckpt")]
    assert histories[0]["val"] == histories[1]["val"]


def test_progress_is_of_finished_steps(eight_images, tmp_path, monkeypatch):
    """A step counts when MXNet has computed it, and at most two are queued."""
    seen = []
    reach = progress.Progress.reach

    def note(self, done):
        seen.append(done)
        reach(self, done)

    monkeypatch.setattr(progress.Progress, "reach", note)
    assert cli.main(train_arguments(eight_images, tmp_path)) == 0
    assert seen == [0, 1, 2, 3, 4, 5, 6]


def test_infinite_loss_stops_the_run(eight_images, tmp_path, capsys):
    line = train_arguments(eight_images, tmp_path, "--lr", "1e30", "--log-interval", "1")
    *_, message = refused([*line, "--optimizer", "sgd"], capsys)
    assert "lower --lr" in message
