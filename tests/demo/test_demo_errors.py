# SPDX-License-Identifier: Apache-2.0
"""Bad input is refused by name, with exit status 2, before any training."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from demo_runs import train_arguments, write_voc
from numpy.random import default_rng

from demo_rfcn import cli
from demo_rfcn.data import signals
from demo_rfcn.model import detector


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    """Fail as soon as a command builds a network."""

    def build(*_, **__):
        raise AssertionError("a network was built")

    monkeypatch.setattr(detector, "build", build)


def refused(line: list, capsys, *words: str) -> None:
    """Assert that a command line is refused with all the words."""
    assert cli.main(line) == 2
    message = capsys.readouterr().err
    assert len(message.strip().splitlines()) == 1, message
    for word in words:
        assert word in message


def test_missing_folder(tmp_path, capsys):
    line = train_arguments(tmp_path / "nothing", tmp_path / "run")
    refused(line, capsys, "nothing", "'signals' is missing", "python -m demo_rfcn data")
    voc = [*line, "--dataset", "voc"]
    refused(voc, capsys, "nothing", "'voc' is missing")


def test_missing_list(eight_images, tmp_path, capsys):
    data = write_voc(tmp_path / "data", [signals.paint(default_rng(0))])
    (data / "VOC2007" / "ImageSets" / "Main" / "trainval.txt").unlink()
    refused(
        train_arguments(data, tmp_path / "run"), capsys, "trainval.txt is missing", "JPEGImages"
    )


def test_unknown_class(tmp_path, capsys):
    image, _ = signals.paint(default_rng(0))
    data = write_voc(tmp_path / "data", [(image, [("zebra", (1, 1, 9, 9), False)])])
    refused(
        train_arguments(data, tmp_path / "run"), capsys, "000000.xml", "'zebra'", "disk, square"
    )


def test_too_few_images(tmp_path, capsys):
    data = write_voc(tmp_path / "data", [signals.paint(default_rng(0))])
    line = train_arguments(data, tmp_path / "run", "--batch-size", "3")
    cli_words = ("batch-size 3", "only 1 image")
    refused(line, capsys, *cli_words)


def test_no_objects_to_evaluate(tmp_path, capsys):
    data = write_voc(tmp_path / "data", [(signals.paint(default_rng(0))[0], [])] * 2)
    line = train_arguments(data, tmp_path / "run")
    refused(line, capsys, "no annotated object in the first 2 images", "VOC2007 val")


@pytest.mark.parametrize("command", ["train", "demo"])
def test_checkpoint_of_another_configuration(command, eight_images, short_run, capsys):
    line = [command, *train_arguments(eight_images, short_run, "--k", "3")[1:]]
    if command == "train":
        line += ["--resume", str(short_run / "last.ckpt")]
    refused(line, capsys, "last.ckpt", "another configuration", "k: 7, not 3")


def test_checkpoint_of_other_classes(short_run, capsys):
    checkpoint = str(short_run / "last.ckpt")
    refused(
        ["eval", "--dataset", "voc", "--pretrained", checkpoint],
        capsys,
        "knows classes disk",
        "aeroplane",
    )


def test_no_checkpoint(tmp_path, eight_images, capsys):
    missing = tmp_path / "missing.ckpt"
    refused(["export", "--pretrained", str(missing)], capsys, "missing.ckpt is missing")
    missing.write_text("text")
    refused(["export", "--pretrained", str(missing)], capsys, "is not a checkpoint")


def test_demo_folder_of_another_run(eight_images, short_run, capsys):
    line = ["demo", *train_arguments(eight_images, short_run, "--seed", "5")[1:]]
    refused(line, capsys, "seed: 0, not 5", "--save-prefix")
    other = ("--scale-jitter", "0.9", "1.1", "--lr-warmup", "3")
    line = ["demo", *train_arguments(eight_images, short_run, *other)[1:]]
    refused(line, capsys, "scale_jitter: [1.0, 1.0], not [0.9, 1.1]", "lr_warmup: 2, not 3")


def test_data_folder_with_foreign_files(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("mine")
    line = ["data", "--dataset-root", str(tmp_path)]
    refused(line, capsys, "did not write")
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_detect_without_image(short_run, tmp_path, capsys):
    checkpoint = ["--pretrained", str(short_run / "last.ckpt")]
    refused(["detect", str(tmp_path / "no.jpg"), *checkpoint], capsys, "no.jpg is missing")
    refused(["detect", str(tmp_path), *checkpoint], capsys, f"folder {tmp_path} holds no image")


def test_detect_loses_no_image(short_run, tmp_path, capsys):
    checkpoint = ["--pretrained", str(short_run / "last.ckpt")]
    image = np.zeros((64, 64, 3), np.uint8)
    paths = [str(tmp_path / name) for name in ("a/one.jpg", "b/one.png", "b/two.png")]
    for path in paths:
        Path(path).parent.mkdir(exist_ok=True)
        assert cv2.imwrite(path, image)
    first, second, third = paths
    out = ["--save-prefix", str(tmp_path / "out")]
    refused(["detect", first, second, *checkpoint, *out], capsys, first, second, "different names")
    # A path's picture may not replace an image, its own or another one.
    for images in ([third], [first, str(tmp_path / "a" / ".." / "b" / "two.png")]):
        here = ["--save-prefix", str(tmp_path / "b")]
        refused(["detect", *images, *checkpoint, *here], capsys, "two.png is an image to read")
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["one.jpg", "one.png", "two.png"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--cpus", "3"), "--batch-size 2, expected at least 3, one per context"),
        (("--scale-jitter", "1.2", "0.8"), "--scale-jitter 1.2 0.8, expected 0 < LOW <= HIGH"),
        (("--lr-decay-steps", "5", "3"), "--lr-decay-steps 5 3, expected an increasing order"),
        (("--classes", "a"), "'signals' has its own classes; leave out --classes"),
        (
            ("--dataset", "voc-like", "--classes", "cup", " cup"),
            "--classes cup, cup, expected different names",
        ),
        (("--kv-store", "dist_sync"), "not set: DMLC_ROLE, DMLC_PS_ROOT_URI"),
        (("--save-prefix", __file__), "test_demo_errors.py is a file, expected a folder"),
        (
            ("--deform", "--network", "mobilenet1.0"),
            "train: --deform with --network 'mobilenet1.0', expected one of 'resnet101_v1b', ",
        ),
        (("--fpn",), "train: --fpn with --head 'psroi', expected one of 'light_head', 'roi_fc'"),
        (
            ("--fpn", "--head", "roi_fc", "--network", "mobilenet1.0"),
            "train: --fpn with --network 'mobilenet1.0', expected one of 'resnet101_v1b', ",
        ),
    ],
)
def test_settings_that_do_not_go_together(flags, words, eight_images, tmp_path, capsys):
    refused(train_arguments(eight_images, tmp_path, *flags), capsys, words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--seed", "-1"), "--seed: expected an integer >= 0, got -1"),
        (("--batch-size", "0"), "--batch-size: expected an integer >= 1, got 0"),
        (("--gpus", "0,one"), "--gpus: expected an integer >= 0, got one"),
        (("--steps", "1.5"), "--steps: expected an integer >= 1, got 1.5"),
        (("--steps", "nan"), "--steps: expected an integer >= 1, got nan"),
        (("--gpus", "1,1"), "--gpus: expected different numbers, got 1,1"),
        (("--flip-p", "1.5"), "--flip-p: expected a number from 0 to 1, got 1.5"),
        (("--flip-p", "nan"), "--flip-p: expected a number from 0 to 1, got nan"),
        (("--color-jitter", "2"), "--color-jitter: expected a number from 0 to 1, got 2"),
        (("--scale-jitter", "0", "1"), "--scale-jitter: expected a number > 0, got 0"),
        (("--scale-jitter", "1", "inf"), "--scale-jitter: expected a number > 0, got inf"),
        (("--momentum", "1"), "--momentum: expected a number >= 0 and < 1, got 1"),
        (("--lr", "nan"), "--lr: expected a number > 0, got nan"),
        (("--lr", "inf"), "--lr: expected a number > 0, got inf"),
        (("--lr", "0"), "--lr: expected a number > 0, got 0"),
        (("--lr=-1e-3",), "--lr: expected a number > 0, got -1e-3"),
        (("--lr", "fast"), "--lr: expected a number > 0, got fast"),
        (("--lr-decay", "1.1"), "--lr-decay: expected a number > 0 and <= 1, got 1.1"),
        (("--head-lr-mult", "nan"), "--head-lr-mult: expected a number >= 0, got nan"),
        (("--clip-gradient", "0"), "--clip-gradient: expected a number > 0, got 0"),
        (("--wd", "-1"), "--wd: expected a number >= 0, got -1"),
        (("--max-seconds", "inf"), "--max-seconds: expected a number > 0, got inf"),
        (("--kv-store", "none"), "--kv-store: invalid choice: 'none'"),
    ],
)
def test_values_out_of_range(flags, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *flags])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert message.startswith(f"demo_rfcn: argument {words}") and message.count("\n") == 1


def test_threshold_out_of_range(capsys):
    with pytest.raises(SystemExit):
        cli.parse(["detect", "a.jpg", "--thresh", "nan"])
    assert "--thresh: expected a number from 0 to 1, got nan" in capsys.readouterr().err
