# SPDX-License-Identifier: Apache-2.0
"""A tiny generated data set, and a short run on it."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from demo_runs import photographs, train_arguments, write_voc

from demo_rfcn import cli
from demo_rfcn.data import DATASETS, signals, voc_files
from demo_rfcn.model import detector


@pytest.fixture(scope="session")
def eight_images(tmp_path_factory) -> Path:
    """Eight images of `signals`, the same ones for training and testing."""
    images = [signals.paint(np.random.default_rng([7, index])) for index in range(8)]
    return write_voc(tmp_path_factory.mktemp("eight") / "signals", images)


class NetworkBuilt(Exception):
    """The data was accepted: training is about to begin."""


@pytest.fixture
def no_training(monkeypatch) -> type[Exception]:
    """Raise this as soon as a command builds a network."""

    def build(*_, **__):
        raise NetworkBuilt

    monkeypatch.setattr(detector, "build", build)
    return NetworkBuilt


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
    folder = tmp_path_factory.mktemp("short") / "run"
    assert cli.main(train_arguments(eight_images, folder)) == 0
    return folder


@pytest.fixture(scope="session")
def deformable_run(eight_images, tmp_path_factory) -> Path:
    """The same with everything deformable: convolutions of the backbone, and bins of the head."""
    folder = tmp_path_factory.mktemp("deformable") / "run"
    more = ("--deform", "--head", "deformable_psroi")
    assert cli.main(train_arguments(eight_images, folder, *more)) == 0
    return folder


@pytest.fixture(scope="session")
def coco_root(tmp_path_factory):
    """A folder in the layout of COCO 2017, with a crowd and an image without boxes."""
    root = tmp_path_factory.mktemp("coco")
    categories = [{"id": n + 1, "name": name} for n, name in enumerate(DATASETS["coco"].classes)]
    for split, seed in (("train2017", 1), ("val2017", 2)):
        images: list[dict] = []
        annotations: list[dict] = []
        made = photographs(["person", "dog"], seed)
        made[5] = (made[5][0], [])
        for number, (image, objects) in enumerate(made, start=10):
            name = f"{number:012d}"
            for part in ("JPEGImages", "Annotations"):
                (root / part).mkdir(exist_ok=True)
            voc_files.write_image(root, name, image, [])
            (root / split).mkdir(exist_ok=True)
            (root / "JPEGImages" / f"{name}.jpg").rename(root / split / f"{name}.jpg")
            height, width = image.shape[:2]
            url = f"http://images.example/{split}/{name}.jpg"
            entry = {"id": number, "height": height, "width": width, "coco_url": url}
            images.append({**entry, "file_name": f"{name}.jpg"})
            for cls, (x1, y1, x2, y2), difficult in objects:
                box = [x1, y1, x2 - x1 + 1, y2 - y1 + 1]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": DATASETS["coco"].classes.index(cls) + 1,
                        "bbox": box,
                        "area": box[2] * box[3],
                        "iscrowd": int(difficult or not annotations),
                        "segmentation": [],
                    }
                )
        content = {"images": images, "annotations": annotations, "categories": categories}
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    return root
