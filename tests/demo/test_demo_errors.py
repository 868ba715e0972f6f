# SPDX-License-Identifier: Apache-2.0
"""Bad input is rejected by name, with exit status 2, before any training."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import cv2
import numpy as np
import pytest
from demo_runs import refused, train_arguments, write_voc
from numpy.random import default_rng

from demo_rfcn import cli
from demo_rfcn.data import signals


@pytest.fixture(autouse=True)
def network_is_not_built(no_training):
    """Fail as soon as a command builds a network."""


def assert_refused(line: list, capsys, *words: str) -> None:
    """Assert that a command line is rejected in one sentence with all the words."""
    (message,) = refused(line, capsys)
    for word in words:
        assert word in message


def test_missing_folder(tmp_path, capsys):
    line = train_arguments(tmp_path / "nothing", tmp_path / "run")
    assert_refused(line, capsys, "nothing", "'signals' is missing", "python -m demo_rfcn data")
    assert_refused([*line, "--dataset", "voc"], capsys, "nothing", "'voc' is missing")


def test_too_few_images_for_a_batch(tmp_path, capsys):
    data = write_voc(tmp_path / "data", [signals.paint(default_rng(0))])
    line = train_arguments(data, tmp_path / "run", "--batch-size", "3")
    assert_refused(line, capsys, "batch-size 3", "only 1 image")


def test_no_objects_to_evaluate(tmp_path, capsys):
    data = write_voc(tmp_path / "data", [(signals.paint(default_rng(0))[0], [])] * 2)
    line = train_arguments(data, tmp_path / "run")
    assert_refused(line, capsys, "no annotated object in the first 2 images", "VOC2007 val")


def test_checkpoint_of_another_run(eight_images, short_run, capsys):
    last = ["--resume", str(short_run / "last.ckpt")]
    line = train_arguments(eight_images, short_run)
    other = "last.ckpt", "another configuration", "k: 7, not 3"
    assert_refused([*line, "--k", "3", *last], capsys, *other)
    assert_refused(["demo", *line[1:], "--k", "3"], capsys, *other)
    assert_refused([*line, *last, "--optimizer", "sgd"], capsys, "optimizer: adam, not sgd")
    flags = ["--seed", "5", "--scale-jitter", "0.9", "1.1", "--lr-warmup", "3"]
    words = "lr_warmup: 2, not 3; scale_jitter: [1.0, 1.0], not [0.9, 1.1]; seed: 0, not 5; choose "
    assert_refused(["demo", *line[1:], *flags], capsys, words + "another --save-prefix")


def test_checkpoint_of_other_classes(short_run, capsys):
    line = ["eval", "--dataset", "voc", "--pretrained", short_run / "last.ckpt"]
    assert_refused(line, capsys, "knows classes disk", "aeroplane")


def test_missing_checkpoint(tmp_path, capsys):
    missing = tmp_path / "missing.ckpt"
    assert_refused(["export", "--pretrained", missing], capsys, "missing.ckpt is missing")
    missing.write_text("text")
    assert_refused(["export", "--pretrained", missing], capsys, "is not a checkpoint")


def test_data_folder_with_foreign_files(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("mine")
    assert_refused(["data", "--dataset-root", tmp_path], capsys, "did not write")
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_detect_without_an_image(short_run, tmp_path, capsys):
    last = ["--pretrained", short_run / "last.ckpt"]
    assert_refused(["detect", tmp_path, *last], capsys, f"folder {tmp_path} holds no image")
    assert_refused(["detect", tmp_path / "no.jpg", *last], capsys, "no.jpg is missing")


def test_detect_replaces_no_image(short_run, tmp_path, capsys):
    checkpoint = ["--pretrained", short_run / "last.ckpt", "--save-prefix"]
    paths = [str(tmp_path / name) for name in ("a/one.jpg", "b/one.png", "b/two.png")]
    for path in paths:
        Path(path).parent.mkdir(exist_ok=True)
        assert cv2.imwrite(path, np.zeros((64, 64, 3), np.uint8))
    first, second, third = paths
    words = first, second, "different names"
    assert_refused(["detect", first, second, *checkpoint, tmp_path / "out"], capsys, *words)
    # A path's picture may not replace an image, its own or another one.
    for images in ([third], [first, str(tmp_path / "a" / ".." / "b" / "two.png")]):
        line = ["detect", *images, *checkpoint, tmp_path / "b"]
        assert_refused(line, capsys, "two.png is an image to read")
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["one.jpg", "one.png", "two.png"]


CONFLICTS = {
    "--cpus 3": "--batch-size 2, expected at least 3, one per context",
    "--scale-jitter 1.2 0.8": "--scale-jitter 1.2 0.8, expected 0 < LOW <= HIGH",
    "--lr-decay-steps 5 3": "--lr-decay-steps 5 3, expected an increasing order",
    "--classes a": "'signals' has its own classes; leave out --classes",
    "--dataset voc-like --classes cup ' cup'": "--classes cup, cup, expected different names",
    "--kv-store dist_sync": "not set: DMLC_ROLE, DMLC_PS_ROOT_URI",
    f"--save-prefix {__file__}": "test_demo_errors.py is a file, expected a folder",
    "--deform --network mobilenet1.0": "--deform with --network 'mobilenet1.0', expected one of 'r",
    "--fpn": "train: --fpn with --head 'psroi', expected one of 'light_head', 'roi_fc'",
    "--fpn --head roi_fc --network mobilenet1.0": "--fpn with --network 'mobilenet1.0', expected ",
}


@pytest.mark.parametrize("flags", CONFLICTS)
def test_conflicting_settings_are_rejected(flags, eight_images, tmp_path, capsys):
    line = train_arguments(eight_images, tmp_path, *shlex.split(flags))
    assert_refused(line, capsys, CONFLICTS[flags])


RANGES = {
    "an integer >= 0": ["--seed -1", "--gpus 0,one"],
    "an integer >= 1": ["--batch-size 0", "--steps 1.5", "--steps nan"],
    "different numbers": ["--gpus 1,1"],
    "a number from 0 to 1": ["--flip-p 1.5", "--flip-p nan", "--color-jitter 2"],
    "a number > 0": ["--lr nan", "--lr inf", "--lr 0", "--lr=-1e-3", "--lr fast"]
    + ["--scale-jitter 1 0", "--scale-jitter 1 inf", "--clip-gradient 0", "--max-seconds inf"],
    "a number >= 0": ["--head-lr-mult nan", "--wd -1"],
    "a number >= 0 and < 1": ["--momentum 1"],
    "a number > 0 and <= 1": ["--lr-decay 1.1"],
    "a number > 0 and < 1": ["--val-share 1"],
}


@pytest.mark.parametrize(("words", "line"), [(w, line) for w in RANGES for line in RANGES[w]])
def test_values_out_of_range_are_rejected(words, line, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *line.split()])
    assert stopped.value.code == 2
    flag, *_, value = re.split("[ =]", line)
    start = f"demo_rfcn: argument {flag}: expected {words}, got {value.replace('0,', '')}; see "
    message = capsys.readouterr().err
    assert message.startswith(start) and message.count("\n") == 1


def test_values_of_other_kinds(capsys):
    for line, words in (
        (["train", "--kv-store", "none"], "--kv-store: invalid choice: 'none'"),
        (["detect", "a.jpg", "--thresh", "nan"], "expected a number from 0 to 1, got nan"),
    ):
        with pytest.raises(SystemExit):
            cli.main(line)
        assert words in capsys.readouterr().err
