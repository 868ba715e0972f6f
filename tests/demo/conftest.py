# SPDX-License-Identifier: Apache-2.0
"""A tiny generated data set, and a short run on it."""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from demo_runs import photographs, train, write_voc
from PIL import Image

from demo_rfcn import cli
from demo_rfcn.data import DATASETS, signals
from demo_rfcn.model import detector


@pytest.fixture(scope="session")
def eight_images(tmp_path_factory) -> Path:
    """Eight images of `signals`, the same ones for training and testing."""
    images = [signals.paint(np.random.default_rng([7, index])) for index in range(8)]
    return write_voc(tmp_path_factory.mktemp("eight") / "signals", images)


SIGNALS = DATASETS["signals"]


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
    monkeypatch.setattr(detector, "build", mock.Mock(side_effect=built))
    return built


@pytest.fixture
def few_signals(monkeypatch) -> None:
    """Generate thirteen images of `signals` instead of thousands."""
    few = dataclasses.replace(SIGNALS, counts={"trainval": 8, "val": 2, "test": 3})
    monkeypatch.setitem(DATASETS, "signals", few)


@pytest.fixture
def written_signals(monkeypatch) -> None:
    """Generate no `signals`: the folder holds other images."""
    monkeypatch.setitem(DATASETS, "signals", dataclasses.replace(SIGNALS, paint=None))


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
def coco_root(tmp_path_factory):
    """A folder in the layout of COCO 2017, with a crowd and an image without boxes."""
    root, classes = tmp_path_factory.mktemp("coco"), DATASETS["coco"].classes
    (root / "annotations").mkdir()
    for split, seed in (("train2017", 1), ("val2017", 2)):
        (root / split).mkdir()
        images: list[dict] = []
        annotations: list[dict] = []
        made = photographs(["person", "dog"], seed)
        made[5] = (made[5][0], [])
        for number, (image, objects) in enumerate(made, start=10):
            name, (height, width) = f"{number:012d}.jpg", image.shape[:2]
            Image.fromarray(image).save(root / split / name)
            url = f"http://images.example/{split}/{name}"
            entry = {"id": number, "height": height, "width": width, "coco_url": url}
            images.append({**entry, "file_name": name})
            for cls, (x1, y1, x2, y2), difficult in objects:
                width, height = x2 - x1 + 1, y2 - y1 + 1
                entry = {"id": len(annotations) + 1, "image_id": number, "segmentation": []}
                entry.update(bbox=[x1, y1, width, height], area=width * height)
                entry.update(category_id=classes.index(cls) + 1)
                annotations.append({**entry, "iscrowd": int(difficult or not annotations)})
        content = {"images": images, "annotations": annotations}
        content["categories"] = [{"id": n, "name": name} for n, name in enumerate(classes, start=1)]
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root
