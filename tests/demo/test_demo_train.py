# SPDX-License-Identifier: Apache-2.0
"""Training: it learns, resumes after an interruption, and takes images without boxes."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import mxnet as mx
import numpy as np
import pytest
from support.demo_data import write_voc
from support.demo_runs import assert_equal_runs, history, parameters, run, train, train_arguments

from demo_rfcn import checkpoint, cli, progress
from demo_rfcn import train as loop
from demo_rfcn.data import loader, signals
from demo_rfcn.distributed.workers import SingleWorker
from demo_rfcn.losses import TrainGraph
from demo_rfcn.networks import FPN_HEADS, HEADS

pytestmark = pytest.mark.slow


@pytest.mark.night
def test_overfits_four_images(folder, tmp_path):
    for name in ("trainval", "val"):
        (folder / f"ImageSets/Main/{name}.txt").write_text("000000\n000001\n000002\n000003\n")
    train(folder.parent, tmp_path, "--steps", "200", "--val-interval", "200", "--val-limit", "4")
    rows = history(tmp_path)
    assert rows["val"][-1]["map50"] > 0.9
    assert sum(rows["losses"][-1][name] for name in TrainGraph.LOSSES) < 0.9


#: With boxes for each class where the other kind is in another test or row.
FLAGS = {"psroi": "--no-class-agnostic", "roi_fc": "--no-class-agnostic"}


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            f"--head {head} {FLAGS.get(head, '')}",
            marks=[pytest.mark.night] * (head in FPN_HEADS),  # they are in the next rows as well
        )
        for head in sorted(HEADS)
    ]
    + [f"--head {head} --fpn" for head in sorted(FPN_HEADS)],
)
def test_every_head_learns(flags, eight_images, tmp_path):
    """The class loss falls by a quarter within fifteen steps."""
    train(eight_images, tmp_path, *flags.split(), "--steps", "15", "--log-interval", "1")
    losses = [row["rcnn_cls"] for row in history(tmp_path)["losses"]]
    assert np.mean(losses[-5:]) < 0.75 * losses[0]


def test_two_contexts_equal_one_with_the_joined_batch(eight_images, tmp_path):
    line = ("--freeze-bn", "--steps", "1", "--optimizer", "sgd", "--cpus")
    one, two = (checkpoint.read(train(eight_images, tmp_path / n, *line, n)) for n in "12")
    (row,), (divided,) = (each.history["losses"] for each in (one, two))
    assert divided == pytest.approx(row, rel=1e-5)
    for name, expected in one.model.items():
        np.testing.assert_allclose(two.model[name], expected, rtol=1e-3, atol=1e-4)


def test_a_step_ends_before_its_parameters_are_read(eight_images, tmp_path, monkeypatch):
    """MXNet does not wait by itself, because the training graph has a static shape."""
    calls = []

    def record(name: str, function: Callable) -> Callable:
        def called(*arguments: object) -> object:
            calls.append(name)
            return function(*arguments)

        return called

    for module, name in ((mx.gluon.Trainer, "update"), (mx.nd, "waitall"), (loop, "evaluate")):
        monkeypatch.setattr(module, name, record(name, getattr(module, name)))
    train(eight_images, tmp_path, "--steps", "2", "--val-interval", "1")
    for place in [place for place, name in enumerate(calls) if name == "evaluate"]:
        assert calls[place - 2 : place] == ["update", "waitall"]
    assert calls.count("evaluate") == 2


def test_all_contexts_have_what_the_checkpoint_stores(eight_images, tmp_path):
    """Validation runs on one of them. The mean of seven equal numbers may be another number."""
    keep = mock.patch.object(checkpoint, "save", side_effect=checkpoint.save)
    with keep as save:
        more = ("--cpus", "7", "--batch-size", "7", "--steps", "1", "--short", "64")
        stored = parameters(train(eight_images, tmp_path, *more))
    _, net, _, _ = save.call_args.args
    named = net._collect_params_with_prefix()
    for name in stored:
        for values in named[name].list_data():
            np.testing.assert_array_equal(values.asnumpy(), stored[name], name)


@pytest.mark.parametrize("flags", [("--no-ohem",), ("--head", "scrambled", "--k", "3"), ()])
def test_random_numbers_follow_from_the_step(flags, eight_images, tmp_path):
    """MXNet's generator, which takes a millisecond to seed, is seeded only if something draws."""
    with mock.patch.object(mx.random, "seed", side_effect=mx.random.seed) as seed:
        whole = train(eight_images, tmp_path / "whole", *flags, "--steps", "4")
    assert seed.call_count == 1 + 4 * bool(flags)  # of the first weights, and of each step
    line = train_arguments(eight_images, tmp_path / "parts", *flags)
    run(*line, "--steps", "4", "--max-seconds", "1e-9")  # one step
    last = tmp_path / "parts" / "last.ckpt"
    assert checkpoint.read(last).step == 1
    run(*line, "--steps", "4", "--resume", last)
    assert_equal_runs(last, whole)


def test_images_without_boxes_and_without_ohem(tmp_path):
    images = [signals.paint(np.random.default_rng(index)) for index in range(2)]
    images += [(image[::-1], []) for image, _ in images]
    data = write_voc(tmp_path / "data", images)
    train(data, tmp_path / "run", "--val-limit", "4", "--steps", "4", "--no-ohem")
    assert np.isfinite([*history(tmp_path / "run")["losses"][-1].values()]).all()


def test_image_that_is_lost_during_training_is_named(folder, tmp_path, monkeypatch, rejects):
    original = loader.TrainLoader.make

    def lose_images(self, step):
        shutil.rmtree(folder / "JPEGImages", ignore_errors=True)
        return original(self, step)

    monkeypatch.setattr(loader.TrainLoader, "make", lose_images)
    line = train_arguments(folder.parent, tmp_path / "run")
    rejects(line, ".jpg cannot be read any more", starts=True)


@pytest.mark.parametrize(
    "flags",
    [
        ("--optimizer", "sgd", "--momentum", "0.8", "--head-lr-mult", "3"),
        ("--lr-mode", "step", "--lr-decay", "0.2", "--lr-decay-steps", "3", "5", "--wd", "0"),
        ("--clip-gradient", "1e-3", "--rpn-num-sample", "32", "--log-interval", "2"),
        (
            "--scale-jitter",
            "0.8",
            "1.2",
            "--max-size",
            "192",
            "--color-jitter",
            "0.3",
            "--flip-p",
            "0.2",
        ),
    ],
)
def test_settings_change_the_run(flags, eight_images, short_run, tmp_path):
    changed = parameters(train(eight_images, tmp_path, *flags))
    default = parameters(short_run / "last.ckpt")
    assert all(np.isfinite(value).all() for value in changed.values())
    assert any((changed[name] != default[name]).any() for name in default)


def test_folder_with_a_run_is_rejected(eight_images, short_run, tmp_path, rejects):
    folder = Path(shutil.copytree(short_run, tmp_path / "run"))
    before = (folder / "best.ckpt").read_bytes()
    line = train_arguments(eight_images, folder, "--seed", "1")
    words = f"{folder} has a run of 6 steps: --resume {folder / 'last.ckpt'}, or --overwrite"
    assert rejects(line, words) == [f"demo_rfcn: train: {words}"]
    assert (folder / "best.ckpt").read_bytes() == before
    run(*line, "--overwrite")
    assert checkpoint.read(folder / "best.ckpt").arguments["seed"] == 1


SGD = ("--optimizer", "sgd")


@pytest.mark.parametrize(
    ("number", "signals", "flags"),
    [
        (signal.SIGINT, 1, (*SGD, "--head-lr-mult", "2")),
        pytest.param(signal.SIGTERM, 1, (*SGD, "--momentum", "0"), marks=pytest.mark.night),
        (signal.SIGINT, 2, ("--cpus", "2", "--kv-store", "local")),
    ],
)
def test_one_signal_ends_the_run_after_its_step_and_two_end_it_at_once(
    number, signals, flags, eight_images, tmp_path, monkeypatch, capsys
):
    """The signals come while a step computes. The run then resumes bit for bit."""
    whole = train(eight_images, tmp_path / "whole", *flags)
    reduce, calls, last = SingleWorker.sum_gradients, [], tmp_path / "parts" / "last.ckpt"
    ended: list = []

    def slow(self, *arguments):
        calls.append(0)
        for _ in range(signals if len(calls) == 3 else 0):
            os.kill(os.getpid(), number)
            time.sleep(0.3)
        return reduce(self, *arguments)

    monkeypatch.setattr(SingleWorker, "sum_gradients", slow)
    monkeypatch.setattr(os, "_exit", lambda status: ended.append((status, last.exists())))
    line = train_arguments(eight_images, last.parent, *flags)
    assert cli.main(line) == 130
    messages = capsys.readouterr().err
    assert "stopping after step 3 of 6; a second signal ends at once" in messages
    assert ended == [(130, False)] * (signals - 1)
    assert ("ended at once, without a checkpoint" in messages) == (signals == 2)
    assert checkpoint.read(last).step == 3
    assert f"continue with --resume {last} (step 3)" in messages
    run(*line, "--resume", last)
    assert_equal_runs(last, whole)
    parts, scores = (checkpoint.read(path).history["val"] for path in (last, whole))
    assert parts == scores


def test_progress_is_of_finished_steps(eight_images, tmp_path):
    """A step counts when MXNet has computed it, and at most two are queued."""
    reach = progress.Progress.reach
    with mock.patch.object(progress.Progress, "reach", autospec=True, side_effect=reach) as seen:
        train(eight_images, tmp_path)
    assert [call.args[1] for call in seen.call_args_list] == [0, 1, 2, 3, 4, 5, 6]


def test_infinite_loss_stops_the_run(eight_images, tmp_path, rejects):
    line = train_arguments(eight_images, tmp_path, "--lr", "1e30", "--log-interval", "1", *SGD)
    rejects(line, "lower --lr", starts=True)
