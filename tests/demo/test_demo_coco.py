# SPDX-License-Identifier: Apache-2.0
"""COCO's format: files as they come, from COCO and from tools, and faults named by their entry."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from odd_images import KINDS, write_coco
from support.damages import edit, entry
from support.demo_data import open_dataset
from support.demo_runs import SMALL, run, train, train_arguments

from demo_rfcn import cli, metrics
from demo_rfcn.data import DATASETS, CocoFiles, coco, open_datasets
from demo_rfcn.data.dataset import DetectionSet
from demo_rfcn.predictor import Detection

pytest.importorskip("pycocotools")

COCO = DATASETS["coco"]


@pytest.fixture(scope="module")
def export(tmp_path_factory) -> CocoFiles:
    """A file of a labelling tool, and its images."""
    return CocoFiles(*write_coco(tmp_path_factory.mktemp("export")))


@pytest.fixture
def coco_copy(coco_root, tmp_path) -> Path:
    """A copy of COCO's layout, to be damaged."""
    return Path(shutil.copytree(coco_root, tmp_path / "data"))


def opened(train: CocoFiles, *classes: str, val: CocoFiles | None = None) -> list[DetectionSet]:
    """Open files with these classes, or with those of the annotations."""
    files = {"train": train, **({"val": val} if val else {})}
    return open_datasets(dataclasses.replace(COCO, classes=classes), Path(), [*files], files=files)


NAN = float("nan")
#: The last image, number 5, has no boxes.
BROKEN = {
    "no-images": (
        lambda content: content.update(images=None),
        "does not hold lists of images, annotations, categories",
    ),
    "no-categories": (
        lambda content: content.update(categories=[]),
        "has no categories, expected at least one",
    ),
    "same-categories": (
        entry("categories", 1, name="person"),
        "the name or id of another: 2 'person'",
    ),
    "category-text": (
        lambda content: content.update(categories=["person"]),
        "categories[0] has None for 'id'",
    ),
    "image-text-width": (entry("images", 5, width="wide"), "images[5] has 'wide' for 'width'"),
    "image-nan-width": (entry("images", 5, width=NAN), "images[5] gives nan x 160 as its size"),
    "image-twice": (entry("images", 5, id=10), "images[5] has the id of another image, 10"),
    "image-no-name": (entry("images", 5, coco_url=None, file_name=None), "None for 'file_name'"),
    "image-other-size": (entry("images", 5, width=9), "has 220 x 160 pixels, and its annotation"),
    "image-absent": (entry("images", coco_url="x/train2017/none.jpg"), "none.jpg is missing"),
    "image-shared": (
        entry("images", 5, coco_url="x/train2017/000000000010.jpg", width=160, height=200),
        "train2017.json: 2 images have the file ",
    ),
    "of-no-image": (entry("annotations", image_id=99), "annotations[0] is of image 99, which the"),
    "of-no-category": (entry("annotations", category_id=99), "annotations[0] is of category 99, "),
    "same-id": (entry("annotations", 1, id=1), "annotations[1] has the id of another annotation"),
    "box-nan": (entry("annotations", bbox=[1, NAN, 3, 4]), "has the box [1, nan, 3, 4]"),
    "box-huge": (entry("annotations", bbox=[1, 10**400, 3, 4]), "expected x, y, width, height"),
    "box-minus": (entry("annotations", bbox=[9, 9, -5, 4]), "has the box [9, 9, -5, 4], expected"),
    "box-outside": (entry("annotations", bbox=[900, 9, 5, 4]), "within its image of 160 x 200 p"),
    "box-partly-outside": (
        entry("annotations", bbox=[100, 60, 200, 70]),
        "annotations[0] has the box [100, 60, 200, 70], expected it within its image of 160 x 200",
    ),
    "area-text": (entry("annotations", area="large"), "annotations[0] has 'large' for 'area'"),
    "ignore-text": (entry("annotations", ignore="0"), "annotations[0] has '0' for 'ignore'"),
    "annotation-text": (lambda content: content["annotations"].append("dog"), "for 'image_id'"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_coco_entries_are_named(fault, coco_copy, tmp_path, no_training, rejects):
    damage, words = BROKEN[fault]
    edit(coco_copy / "annotations" / "instances_train2017.json", damage)
    line = train_arguments(coco_copy, tmp_path / "run", "--dataset", "coco")
    (message,) = rejects(line, words)
    assert message.startswith(f"demo_rfcn: dataset: {coco_copy}")
    if "skip-broken" in message:
        with pytest.raises(no_training):
            cli.main([*line, "--skip-broken"])


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe{}", b"[" * 100000])
def test_broken_coco_file_is_named(data, coco_copy, tmp_path, rejects):
    path = coco_copy / "annotations" / "instances_val2017.json"
    path.write_bytes(data)
    rejects(train_arguments(coco_copy, tmp_path, "--dataset", "coco"), str(path))


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
            {**first, "id": 1001, "bbox": [-1.0, 150.0, 18.0, 51.0]},  # clipped
        ]

    edit(coco_copy / "annotations" / "instances_train2017.json", change)
    before, after = (open_dataset(COCO, root, "train").labels for root in (coco_root, coco_copy))
    np.testing.assert_array_equal(after[0][-1, :4], [0, 150, 17, 200])
    np.testing.assert_equal([after[0][:-1], *after[1:]], before)


def test_coco_annotations_stay_with_their_images_if_one_is_broken(coco_root, coco_copy):
    (coco_copy / "val2017" / "000000000011.jpg").unlink()
    dataset = open_dataset(COCO, coco_copy, "test")
    whole = open_dataset(COCO, coco_root, "test")
    names = [entry.name for entry in dataset.samples]
    assert names == [f"{number:012}.jpg" for number in (10, 12, 13, 14, 15)]
    np.testing.assert_array_equal(dataset.labels[1], whole.labels[2])
    assert dataset.samples[1].path.endswith("val2017/000000000012.jpg")


@pytest.mark.slow
def test_coco_trains_and_evaluates(coco_root, tmp_path):
    best = train(coco_root, tmp_path, "--dataset", "coco", *SMALL).with_name("best.ckpt")
    data = ["--dataset", "coco", "--dataset-root", coco_root, "--short", "80"]
    run("eval", *data, "--pretrained", best, "--save-prefix", tmp_path / "out")
    test = json.loads((tmp_path / "out" / "summary.json").read_text())["test"]
    assert 0 <= test["coco_ap"] <= test["coco_ap50"] <= 1


def test_notes_about_a_file(export, capsys):
    opened(export)
    output = capsys.readouterr().out
    assert "dataset: classes of the annotations: cup, spoon\n" in output
    assert f"dataset: 1 box without area left out of {export.annotations}\n" in output
    assert [len(dataset) for dataset in opened(export, val=export)] == [len(KINDS) + 1] * 2
    assert "held back from" not in capsys.readouterr().out


def test_objects_to_ignore_are_counted(export, tmp_path, capsys):
    path = Path(shutil.copy(export.annotations, tmp_path))
    edit(path, entry("annotations", 0, ignore=1))
    edit(path, entry("annotations", 1, ignore=0))
    (dataset,) = opened(CocoFiles(path, export.images))
    assert sum(map(len, dataset.labels)) == len(KINDS) + 1 - 1
    assert f"dataset: 1 object with 'ignore' left out of {path}\n" in capsys.readouterr().out


@pytest.mark.parametrize("used", [False, True])
def test_a_category_that_groups_the_others_is_no_class(used, export, tmp_path):
    """Roboflow writes one; it is a class if an object has it."""

    def group(content: dict) -> None:
        for category in content["categories"]:
            category["supercategory"] = "things"
        content["categories"].insert(0, {"id": 0, "name": "things", "supercategory": "none"})
        if used:
            content["annotations"][0]["category_id"] = 0

    path = Path(shutil.copy(export.annotations, tmp_path))
    edit(path, group)
    (dataset,) = opened(CocoFiles(path, export.images))
    assert dataset.classes == (("things",) if used else ()) + ("cup", "spoon")


def test_perfect_detections_have_a_coco_ap_of_one(coco_root):
    dataset = open_dataset(COCO, coco_root, "test")
    assert len(dataset) == 6
    assert len(dataset.labels[5]) == 0
    assert sum(rows[:, 5].sum() for rows in dataset.labels) > 0
    found = {
        index: Detection(rows[:, 4].astype(int), np.ones(len(rows)), rows[:, :4])
        for index, rows in enumerate(dataset.labels)
    }
    assert metrics.average_precision(dataset, found)["coco_ap"] == pytest.approx(1, abs=0.01)
    nothing = {0: Detection(np.zeros(0), np.zeros(0), np.zeros((0, 4)))}
    assert metrics.average_precision(dataset, nothing)["coco_ap"] == 0


def test_coco_without_pycocotools_names_the_package(coco_root, tmp_path, monkeypatch, rejects):
    monkeypatch.setattr(coco.importlib.util, "find_spec", lambda name: None)
    rejects(train_arguments(coco_root, tmp_path, "--dataset", "coco"), "pip install pycocotools")


def test_categories_of_a_file(tmp_path, capsys):
    """Classes have the order of the training file, whatever the ids and order of other files."""
    names = ("zebra", "Coffee Cup", "\u732b", "never used")
    train, val = (CocoFiles(*write_coco(tmp_path / n[0], n)) for n in (names[:3], names[::-1]))
    edit(
        train.annotations,
        lambda content: content["categories"].append({"id": 1000, "name": "never used"}),
    )
    sets = opened(train, val=val)
    assert sets[0].classes == sets[1].classes == names
    for dataset, order in zip(sets, (names[:3], names[::-1])):
        for number, image in enumerate(reversed(dataset.samples[1:])):
            own = image.labels[~image.crowd]
            assert names[int(own[0][4])] == order[number % len(order)]
    capsys.readouterr()
    (dataset,) = opened(train, "\u732b")
    words = "left out, of classes outside \u732b: 'zebra' (8), 'Coffee Cup' (6)"
    assert words in capsys.readouterr().out
    assert len(dataset) == len(KINDS) + 1


@pytest.mark.parametrize(
    "written", ["photos/{}", "photos\\{}", "C:\\Users\\me\\photos\\{}", "./{}", "/elsewhere/{}"]
)
def test_names_of_images_in_a_file(written, export, tmp_path):
    def rename(content: dict) -> None:
        for image in content["images"]:
            image["file_name"] = written.format(image["file_name"])
            image["coco_url"] = "http://images.example/train2017/1.jpg"

    path = Path(shutil.copy(export.annotations, tmp_path))
    edit(path, rename)
    (dataset,) = opened(CocoFiles(path, export.images))
    assert len(dataset) == len(KINDS) + 1


TRAIN = "--train-annotations FILE --train-images"
OTHERS = f"none of the {len(KINDS) + 1} images of FILE is there, the first would be OTHER/plain.jpg"
WRONG = {
    "--train-annotations FILE": "expected --train-annotations and --train-images",
    "--val-images DIR": "--val-images alone, expected --val-annotations and --val-images",
    f"--dataset voc {TRAIN} DIR": "--train-annotations with --dataset voc, expected --dataset coco",
    "--train-annotations none.json --train-images DIR": "dataset: none.json is missing",
    "--train-annotations DIR --train-images DIR": "my photos is missing",
    f"{TRAIN} OTHER": OTHERS,
    f"{TRAIN} none": "dataset: folder none of images is missing",
    "--val-annotations FILE --val-images DIR": "'coco' without images for 'train', expected",
    f"{TRAIN} DIR --classes cup Spoon": "class 'Spoon' of --classes has no object in the training",
}


@pytest.mark.parametrize("flags", WRONG)
def test_invalid_arguments_are_rejected(flags, export, no_training, tmp_path, rejects):
    places = {"FILE": str(export.annotations), "DIR": str(export.images), "OTHER": str(tmp_path)}
    line = ["train", "--dataset", "coco", "--save-prefix", tmp_path / "run"]
    words = WRONG[flags]
    for word, place in places.items():
        words = words.replace(word, place)
    rejects([*line, *(places.get(word, word) for word in flags.split())], words)
    assert not (tmp_path / "run").exists()
