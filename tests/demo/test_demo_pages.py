# SPDX-License-Identifier: Apache-2.0
"""The commands on the demo's pages: all are understood, and the tutorial's lead to a detector."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import mxnet as mx
import pytest
from demo_runs import REPOSITORY
from gluoncv import model_zoo
from odd_images import picture, write_coco, write_voc_like
from PIL import Image

from demo_rfcn import cli
from demo_rfcn.run import checkpoint

PAGES = ("demo_rfcn/README.md", "docs/own_data.md", "docs/cluster.md", "docs/deploy.md")
TUTORIAL = "docs/own_data.md"


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
        cli.parse(line)


@pytest.mark.slow
def test_the_tutorial(tmp_path, monkeypatch, capsys):
    """Its commands run with few steps, small images, and random weights instead of ImageNet's."""
    pytest.importorskip("pycocotools")
    pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    write_voc_like(Path("photos"))
    _, folder = write_coco(Path())
    folder.rename("images")
    Path("new").mkdir()
    for name in ("one.jpg", "two.png"):
        Image.fromarray(picture()).save(Path("new", name))
    source = model_zoo.resnet18_v1b(pretrained=False, classes=7)
    source.initialize()
    source(mx.nd.zeros((1, 3, 64, 64)))
    source.save_parameters("resnet18_v1b-2d9d980c.params")
    small = ["--short", "48", "--max-size", "64", "--batch-size", "2", "--val-limit", "2"]
    for steps, line in enumerate(commands(TUTORIAL), start=1):
        line = [word.replace("~/.mxnet/models/", "") for word in line]
        if line[0] == "train":
            line += ["--steps", str(steps), *(small if "--resume" not in line else [])]
        assert cli.main(line) == 0, line
    assert "classes of the annotations: cup, spoon\n" in capsys.readouterr().out
    for run in ("photos", "export", "tuned", "imagenet"):
        assert checkpoint.read(Path("runs", run, "last.ckpt")).config.classes == (
            "cup",
            "spoon",
        )
    assert checkpoint.read(Path("runs/photos/last.ckpt")).step == 3  # resumed
    for name in ("found/one.png", "found/two.json", "exported/rfcn.onnx"):
        assert Path(name).is_file()
