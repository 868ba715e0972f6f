# SPDX-License-Identifier: Apache-2.0
"""Broken annotation files in COCO's format: every fault is named by its entry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from demo_runs import open_dataset, refused, train_arguments

from demo_rfcn import cli
from demo_rfcn.data import DATASETS

pytest.importorskip("pycocotools")


def entry(part: str, place: int = 0, **fields) -> Callable:
    """Return a damage: other fields in one entry of COCO's annotation file; None removes one."""

    def apply(content: dict) -> None:
        content[part][place].update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del content[part][place][name]

    return apply


def replaced(**parts) -> Callable:
    """Return a damage: other lists in COCO's annotation file."""
    return lambda content: content.update(parts)


NAN = float("nan")
COCO = {
    "no-images": (replaced(images=None), "does not hold lists of images, annotations, categories"),
    "no-categories": (replaced(categories=[]), "has no categories, expected at least one"),
    "same-categories": (entry("categories", 1, name="person"), "or id of another: 2 'person'"),
    "category-text": (replaced(categories=["person"]), "categories[0] has None for 'id'"),
    "image-no-id": (entry("images", id=None), "images[0] has None for 'id'"),
    "image-text-width": (entry("images", width="wide"), "images[0] has 'wide' for 'width'"),
    "image-nan-width": (entry("images", width=NAN), "images[0] gives nan x 200 as its size"),
    "image-twice": (entry("images", 1, id=10), "images[1] has the id of another image, 10"),
    "image-no-name": (entry("images", coco_url=None, file_name=None), "has None for 'file_name'"),
    "image-other-size": (entry("images", width=9), "has 160 x 200 pixels, and its annotation"),
    "image-absent": (entry("images", coco_url="x/train2017/none.jpg"), "none.jpg is missing"),
    "of-no-image": (entry("annotations", image_id=99), "annotations[0] is of image 99, which the"),
    "of-no-category": (entry("annotations", category_id=99), "annotations[0] is of category 99, "),
    "same-id": (entry("annotations", 1, id=1), "annotations[1] has the id of another annotation"),
    "no-box": (entry("annotations", bbox=None), "annotations[0] has None for 'bbox'"),
    "short-box": (entry("annotations", bbox=[1, 2, 3]), "has the box [1, 2, 3], expected x, y, w"),
    "box-nan": (entry("annotations", bbox=[1, NAN, 3, 4]), "has the box [1, nan, 3, 4]"),
    "box-huge": (entry("annotations", bbox=[1, 10**400, 3, 4]), "expected x, y, width, height"),
    "box-minus": (entry("annotations", bbox=[9, 9, -5, 4]), "has the box [9, 9, -5, 4], expected"),
    "box-outside": (entry("annotations", bbox=[900, 9, 5, 4]), "outside its image of 160 x 200"),
    "area-text": (entry("annotations", area="large"), "annotations[0] has 'large' for 'area'"),
    "annotation-text": (lambda content: content["annotations"].append("dog"), "for 'image_id'"),
}


@pytest.fixture
def coco_copy(coco_root, tmp_path) -> Path:
    """A copy of COCO's layout, to be damaged."""
    return Path(shutil.copytree(coco_root, tmp_path / "data"))


def edit(path: Path, damage: Callable) -> None:
    """Damage the content of a JSON file."""
    stored = json.loads(path.read_text())
    damage(stored)
    path.write_text(json.dumps(stored))


@pytest.mark.parametrize("fault", COCO)
def test_broken_coco_entries_are_named(fault, coco_copy, tmp_path, no_training, capsys):
    damage, words = COCO[fault]
    edit(coco_copy / "annotations" / "instances_train2017.json", damage)
    line = train_arguments(coco_copy, tmp_path / "run", "--dataset", "coco")
    (first, *_) = refused(line, capsys)
    assert first.startswith(f"demo_rfcn: dataset: {coco_copy}") and words in first
    if "skip-broken" in first:
        with pytest.raises(no_training):
            cli.main([*line, "--skip-broken"])


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe{}", b"[" * 100000])
def test_broken_coco_file_is_named(data, coco_copy, tmp_path, capsys):
    path = coco_copy / "annotations" / "instances_val2017.json"
    path.write_bytes(data)
    (message,) = refused(train_arguments(coco_copy, tmp_path, "--dataset", "coco"), capsys)
    assert str(path) in message


def test_missing_coco_folder_is_named_once(coco_copy, tmp_path, capsys):
    shutil.rmtree(coco_copy / "train2017")
    (message,) = refused(train_arguments(coco_copy, tmp_path, "--dataset", "coco"), capsys)
    assert message == f"demo_rfcn: dataset: folder {coco_copy / 'train2017'} of images is missing"


def test_coco_without_optional_fields(coco_root, coco_copy):
    def change(content: dict) -> None:
        for image in content["images"]:
            del image["coco_url"]
        for annotation in content["annotations"]:
            del annotation["area"], annotation["segmentation"]
            if not annotation["iscrowd"]:
                del annotation["iscrowd"]
        first = content["annotations"][0]
        content["annotations"] += [
            {**first, "id": 1000, "bbox": [30.5, 40.5, 12.5, 0.0], "area": 0.0},  # as COCO has two
            {**first, "id": 1001, "bbox": [-3.0, 150.0, 20.0, 90.0]},  # clipped
        ]

    edit(coco_copy / "annotations" / "instances_train2017.json", change)
    before, after = (
        open_dataset(DATASETS["coco"], root, "train").labels for root in (coco_root, coco_copy)
    )
    np.testing.assert_array_equal(after[0][-1, :4], [0, 150, 16, 199])
    np.testing.assert_array_equal(after[0][:-1], before[0])
    for ours, theirs in zip(after[1:], before[1:]):
        np.testing.assert_array_equal(ours, theirs)


def test_coco_annotations_stay_with_their_images_if_one_is_broken(coco_root, coco_copy):
    (coco_copy / "val2017" / "000000000011.jpg").unlink()
    dataset = open_dataset(DATASETS["coco"], coco_copy, "test")
    whole = open_dataset(DATASETS["coco"], coco_root, "test")
    names = [entry.name for entry in dataset.entries]
    assert names == [f"{number:012}.jpg" for number in (10, 12, 13, 14, 15)]
    np.testing.assert_array_equal(dataset.labels[1], whole.labels[2])
