# SPDX-License-Identifier: Apache-2.0
"""A tiny generated data set, and a short run on it."""

from __future__ import annotations

import dataclasses
import re
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from PIL import Image
from support.demo_data import photographs, write_coco, write_eight
from support.demo_runs import train

from demo_rfcn import cli, evaluate, networks
from demo_rfcn.data import DATASETS
from demo_rfcn.report import pictures


@pytest.fixture(scope="session", autouse=True)
def own_dpi() -> float:
    """Draw few pixels, because an evaluation spends most of its time on pictures.

    Return the dots per inch of the demo.
    """
    dpi = pictures.plt.rcParams["figure.dpi"]
    pictures.plt.rcParams["figure.dpi"] = 30
    return dpi


@pytest.fixture
def blank_pictures(monkeypatch) -> None:
    """Evaluate without drawing, which takes most of the time; test_demo_use.py has the pictures."""

    def draw(folder: Path, summary: dict, *_: Any) -> None:
        summary["files"] = ["detections.png", "loss.png", "map.png"]
        for name in summary["files"]:
            Image.new("RGB", (1, 1)).save(folder / name)

    monkeypatch.setattr(evaluate, "draw", draw)


@pytest.fixture(scope="session")
def eight_images(tmp_path_factory) -> Path:
    """Eight images of `signals`, the same ones for training and testing."""
    return write_eight(tmp_path_factory.mktemp("eight") / "signals")


@pytest.fixture
def rejects(capsys) -> Callable[..., list[str]]:
    """Run a command that is rejected with one sentence for each of some words, and nothing else.

    Lines of progress may come before them if the command `starts`.
    """

    def check(line: Iterable, *words: str, starts: bool = False) -> list[str]:
        capsys.readouterr()
        status: Any = None
        try:
            status = cli.main([str(word) for word in line])
        except SystemExit as stopped:  # of the parser
            status = stopped.code
        errors = capsys.readouterr().err.strip().splitlines()
        if starts:
            errors = [text for text in errors if not re.match(r"[a-z0-9 -]+: \d+ %, \d+ of ", text)]
        assert status == 2 and len(errors) == len(words), errors
        for message, part in zip(errors, words):
            assert message.startswith("demo_rfcn: ") and part in message, errors
        return errors

    return check


@pytest.fixture
def no_training(monkeypatch) -> type[Exception]:
    """Raise this as soon as a command builds a network: the data was accepted."""
    built = type("NetworkBuilt", (Exception,), {})
    monkeypatch.setattr(networks, "build", mock.Mock(side_effect=built))
    return built


@pytest.fixture
def few_signals(monkeypatch) -> None:
    """Generate thirteen images of `signals` instead of thousands."""
    counts = {"trainval": 8, "val": 2, "test": 3}
    few = dataclasses.replace(DATASETS["signals"], counts=counts)
    monkeypatch.setitem(DATASETS, "signals", few)


@pytest.fixture
def written_signals(monkeypatch) -> None:
    """Generate no `signals`: the folder holds other images."""
    written = dataclasses.replace(DATASETS["signals"], recipe="")
    monkeypatch.setitem(DATASETS, "signals", written)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Assert that a test takes less than half a gigabyte, far less than some files ask for."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**19  # KiB


@pytest.fixture
def folder(eight_images, tmp_path) -> Path:
    """A copy of eight images in VOC layout, to be damaged."""
    return Path(shutil.copytree(eight_images / "VOC2007", tmp_path / "data" / "VOC2007"))


@pytest.fixture(scope="session")
def short_run(eight_images, tmp_path_factory) -> Path:
    """The folder of a run of six steps without interruption."""
    return train(eight_images, tmp_path_factory.mktemp("short") / "run").parent


@pytest.fixture(scope="session")
def deformable_run(eight_images, tmp_path_factory) -> Path:
    """The same with everything deformable: convolutions of the backbone, and bins of the head."""
    folder = tmp_path_factory.mktemp("deformable") / "run"
    return train(eight_images, folder, "--deform", "--head", "deformable_psroi").parent


@pytest.fixture(scope="session")
def coco_root(tmp_path_factory) -> Path:
    """A folder in the layout of COCO 2017, with a crowd and an image without boxes."""
    root = tmp_path_factory.mktemp("coco")
    for split, seed in (("train2017", 1), ("val2017", 2)):
        images = photographs(["person", "dog"], seed)
        write_coco(root, split, [*images[:5], (images[5][0], [])])
    return root
