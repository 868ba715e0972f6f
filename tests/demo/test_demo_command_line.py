# SPDX-License-Identifier: Apache-2.0
"""The command line: settings, helps, progress, tables; the commands on the demo's pages."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from gluoncv import model_zoo
from odd_images import picture, write_coco, write_voc_like
from PIL import Image
from support.demo_runs import REPOSITORY, python, settings_of

from demo_rfcn import checkpoint, cli, progress
from demo_rfcn.errors import CheckpointError


def train(steps: int) -> None:
    with progress.Progress("training", "steps", total=steps) as shown:
        for step in range(steps):
            shown.set_postfix_str(f"loss {step}", refresh=False)
            shown.reach(step + 1)
        list(progress.Progress("validation", "images", range(1)))
        shown.results("step 3: mAP@0.5 0.500")


def test_a_terminal_has_a_bar(monkeypatch, capsys):
    terminal = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})()
    monkeypatch.setattr("sys.stderr", terminal)
    train(3)
    assert "training: 100%" in terminal.getvalue() and "\r" in terminal.getvalue()
    assert "of 3 steps" not in terminal.getvalue()
    assert capsys.readouterr().out == "step 3: mAP@0.5 0.500\n"


def test_a_log_has_lines_with_percent_and_time(monkeypatch, capsys):
    monkeypatch.setattr(progress, "INTERVAL", 0)
    train(3)
    shown = capsys.readouterr()
    lines, times = shown.err.splitlines(), r"in 00:00, (00:00|\?) left"
    assert len(lines) == 4  # without codes of a terminal
    for step, (percent, line) in enumerate(zip((33, 67, 100), lines), start=1):
        words = f"training: {percent} %, {step} of 3 steps {times}, loss {step - 1}"
        assert re.fullmatch(words, line), line
    assert re.fullmatch(f"validation: 100 %, 1 of 1 images {times}", lines[3])
    assert shown.out == "step 3: mAP@0.5 0.500\n"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_defaults_as_they_are_typed(command, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    words = " ".join(capsys.readouterr().out.split())
    for wrong in ("(default: (", "(default: )", "default: None", "default: [", "default: False"):
        assert wrong not in words
    if command == "train":
        assert "(default: 1 1)" in words and "(default: 0.002)" in words


@pytest.mark.night
def test_pyplot_is_imported_only_to_draw():
    """It takes a second, which every command and every process of `launch` would pay."""
    made = python("-c", "import sys, demo_rfcn.cli; sys.exit('matplotlib' in sys.modules)")
    assert made.returncode == 0, made.stderr


def test_defaults():
    assert settings_of(["demo"]).to_dict() == settings_of(["train"]).to_dict()
    assert settings_of(["train", "--dataset", "voc-like"]).schedule.steps == 0


@pytest.mark.parametrize(
    ("line", "differences"),
    [
        (["--steps", "7", "--dataset-root", "d", "--max-seconds", "1", "--skip-broken"], []),
        (["--overwrite"], []),
        (["--cpus", "2", "--save-prefix", "r", "--val-interval", "5"], []),
        (["--seed", "5"], ["seed: 0, not 5"]),
        (["--no-ohem"], ["ohem: True, not False"]),
        (["--short", "96"], ["short: 160, not 96"]),
        (["--flip-p", "0"], ["flip_p: 0.5, not 0.0"]),
        (["--scale-jitter", "0.5", "1"], ["scale_jitter: [1.0, 1.0], not [0.5, 1.0]"]),
        (
            ["--lr-mode", "step", "--lr-decay-steps", "3", "4"],
            ["lr_mode: cosine, not step", "lr_decay_steps: [], not [3, 4]"],
        ),
        (["--freeze-bn", "--wd", "0"], ["freeze_bn: False, not True", "wd: 0.0001, not 0.0"]),
    ],
)
def test_differences_of_another_run(line, differences):
    stored = settings_of(["train"]).to_dict()
    settings = settings_of(["train", *line])
    assert json.loads(json.dumps(settings.to_dict())) == settings.to_dict()
    assert settings.differences(stored) == differences
    assert bool(settings.differences(stored, "steps")) == ("--steps" in line or bool(differences))


def test_schedules():
    line = ["train", "--steps", "100", "--lr", "1", "--lr-warmup", "10"]
    cosine = [settings_of(line).schedule.rate(step) for step in (0, 10, 55, 100)]
    np.testing.assert_allclose(cosine, [0.1, 1, 0.505, 0.01], atol=1e-6)
    line += ["--lr-mode", "step"]
    stepped = settings_of([*line, "--lr-decay-steps", "40", "80"])
    steps = [stepped.schedule.rate(step) for step in (5, 20, 60, 90)]
    np.testing.assert_allclose(steps, [0.55, 1, 0.1, 0.01], atol=1e-6)
    assert settings_of([*line, "--steps", "1"]).schedule.rate(0) == 1


@pytest.mark.parametrize("images, steps", [(8, 500), (60, 1500), (10**6, 30_000)])
def test_steps_follow_from_the_number_of_images(images, steps):
    settings = settings_of(["train", "--dataset", "voc-like"])
    assert settings.with_steps(images).schedule.steps == steps
    assert settings.schedule.steps == 0
    given = settings_of(["train", "--dataset", "voc-like", "--steps", "7"])
    assert given.with_steps(images).schedule.steps == 7


PAGES = (
    "demo_rfcn/README.md",
    "docs/own_data.md",
    "docs/cluster.md",
    "docs/deploy.md",
    "docs/learn.md",
)


def commands(page: str) -> list[list[str]]:
    """Return the arguments of every `python -m demo_rfcn` of a block of code."""
    text = (REPOSITORY / page).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall("^python -m demo_rfcn (.*)", text, re.M)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_commands_are_understood(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = commands(page)
    assert len(found) > 2
    for line in found:
        try:
            cli.parse(line)
        except CheckpointError as error:  # reading it comes after all options are understood
            assert str(error).endswith("is missing"), error


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_the_tutorial(tmp_path, monkeypatch, capsys):
    """Its commands run with few steps, small images, and random weights instead of ImageNet's."""
    pytest.importorskip("pycocotools")
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "trees"):
        write_voc_like(Path(name))
    _, folder = write_coco(Path())
    folder.rename("images")
    Path("new").mkdir()
    tiles = [f"trees/JPEGImages/val_{place}.png" for place in ("0000_0320", "0320_0320")]
    for name in ("new/one.jpg", "new/two.png", *tiles):
        Image.fromarray(picture()).save(name)
    source = model_zoo.resnet18_v1b(pretrained=False, classes=7)
    source.initialize()
    source(mx.nd.zeros((1, 3, 64, 64)))
    source.save_parameters("resnet18_v1b-2d9d980c.params")
    small = ["--short", "48", "--max-size", "64", "--batch-size", "2", "--val-limit", "2"]
    for steps, line in enumerate(commands(PAGES[1]), start=1):
        line = [word.replace("~/.mxnet/models/", "") for word in line]
        if line[0] == "train":
            line += ["--steps", str(steps), *(small if "--resume" not in line else [])]
        assert cli.main(line) == 0, line
    printed = capsys.readouterr().out
    assert "classes of the annotations: cup, spoon\n" in printed
    assert "network: --network small sees 63 pixels around a point; larger objects" in printed
    for run in ("photos", "export", "tuned", "imagenet"):
        stored = checkpoint.read(Path("runs", run, "last.ckpt"))
        assert stored.config.classes == ("cup", "spoon")
    assert checkpoint.read(Path("runs/photos/last.ckpt")).step == 3  # resumed
    for name in ("found/one.png", "found/two.json", "exported/rfcn.onnx"):
        assert Path(name).is_file()


def test_the_readme_points_to_lines_of_the_method():
    """Each link to a line of code has the name that stands there."""
    page = (REPOSITORY / "demo_rfcn/README.md").read_text(encoding="utf-8")
    links = re.findall(r"\[(.*?)\]\((\w+\.py)#L(\d+)\)", page)
    assert {file for _, file, _ in links} == {"model.py", "losses.py", "train.py"}
    for label, file, number in links:
        lines = (REPOSITORY / "demo_rfcn" / file).read_text(encoding="utf-8").splitlines()
        name = "for step, batch" if label == "the loop" else label.strip("`")
        assert re.match(rf"\s*(class |def )?{name}\b", lines[int(number) - 1]), (
            label,
            file,
            number,
        )
