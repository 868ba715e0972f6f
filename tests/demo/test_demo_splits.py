# SPDX-License-Identifier: Apache-2.0
"""Which images are trained on and which are scored, and that a figure says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
from odd_images import annotation, picture
from PIL import Image
from support.demo_data import open_dataset
from support.demo_runs import run, train, train_arguments

from demo_rfcn import checkpoint, evaluate, metrics
from demo_rfcn.config import Data
from demo_rfcn.data import DATASETS, RunImages, ValidationSplit, open_datasets, resolve_location
from demo_rfcn.data.dataset import DetectionSet
from demo_rfcn.data.splits import choose_indices, images_of_run

VOC_LIKE = DATASETS["voc-like"]
OWN = ("--dataset", "voc-like", "--short", "48", "--batch-size", "1", "--steps", "1")


def write_photos(root: Path, count: int = 12, seed: int = 0) -> Path:
    """Write different photographs with an XML file each."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        Image.fromarray(picture(seed=seed + number)).save(root / f"{number:02}.png")
        annotation(root / f"{number:02}.xml", (96, 72), [("cup", (20, 10, 60, 50))])
    return root


def names(dataset: DetectionSet) -> set[str]:
    return {sample.name for sample in dataset.samples}


def location_of(root: Path) -> dict[str, str]:
    return resolve_location({"dataset": "voc-like", "dataset_root": root})


@pytest.fixture
def photos(tmp_path) -> Path:
    return write_photos(tmp_path / "photos")


@pytest.fixture
def images(photos) -> RunImages:
    """What a run trains on and holds back: nine photographs and three."""
    split = ValidationSplit(0.25)
    train_set, val_set = open_datasets(VOC_LIKE, photos, ("train", "val"), split=split)
    return images_of_run(location_of(photos), train_set, val_set, before=None)


def opened(root: Path, images: RunImages) -> DetectionSet:
    """Open the images that `eval` scores."""
    data = Data(dataset="voc-like", dataset_root=root)
    (dataset,) = data.open("test", before=images)
    return dataset


def copy(root: Path) -> Path:
    return Path(shutil.copytree(root, root.parent / "copy"))


def rename(root: Path) -> Path:
    return root.rename(root.parent / "other")


def rename_files(root: Path) -> Path:
    for path in sorted(root.iterdir()):
        path.rename(path.with_name(f"img_{path.name}"))
    return root


def edit_files(root: Path) -> Path:
    """Change the bytes of each image, as a tool that stores a rating does."""
    for path in root.glob("*.png"):
        path.write_bytes(path.read_bytes() + b"a rating of five stars")
    return root


MOVES = {"nothing": Path, "copy": copy, "rename": rename, "names": rename_files, "edit": edit_files}


@pytest.mark.parametrize("move", MOVES)
def test_images_are_recognised_by_content_or_name(move, photos, images, capsys):
    dataset = opened(MOVES[move](photos), images)
    prefix = "img_" if move == "names" else ""
    assert names(dataset) == {prefix + key.name for key in images.held_back}
    assert len(dataset) == 3 and dataset.trained_on == set()
    assert "because the detector was trained on them: 9 of 12 images of " in capsys.readouterr().out


def test_files_that_exchange_their_names_are_recognised(photos, images):
    """Content prevails over the name."""
    assert images.trained_on
    held_back, trained_on = images.held_back[0].name, images.trained_on[0].name
    for suffix in (".png", ".xml"):
        one, other = (photos / f"{name}{suffix}" for name in (held_back, trained_on))
        one.rename(photos / "between")
        other.rename(one)
        (photos / "between").rename(other)
    expected = {key.name for key in images.held_back} - {held_back} | {trained_on}
    assert names(opened(photos, images)) == expected


def test_names_at_another_location_prove_nothing(tmp_path, images):
    dataset = opened(write_photos(tmp_path / "other", seed=100), images)
    assert len(dataset) == 12 and dataset.trained_on == set()


def test_new_images_are_scored_too(photos, images):
    Image.fromarray(picture(seed=99)).save(photos / "new.png")
    shutil.copy(photos / "00.xml", photos / "new.xml")
    assert names(opened(photos, images)) == {key.name for key in images.held_back} | {"new"}


def test_images_that_were_all_trained_on_are_scored_as_such(photos, images):
    for key in images.held_back:
        for path in photos.glob(f"{key.name}.*"):
            path.unlink()
    dataset = opened(photos, images)
    assert len(dataset) == 9 and dataset.trained_on == names(dataset)


def write_list(root: Path, name: str, lines: list[str]) -> None:
    path = root / "ImageSets" / "Main" / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))


def test_a_checkpoint_without_the_images_it_saw(photos, images, tmp_path):
    """Earlier versions stored the names of the images that were held back."""
    held_back = tuple(key._replace(digest="") for key in images.held_back)
    before = RunImages(images.location, None, held_back)
    dataset = opened(photos, before)
    assert names(dataset) == {key.name for key in held_back} and dataset.trained_on == set()
    dataset = opened(Path(shutil.copytree(photos, tmp_path / "copy")), before)
    assert len(dataset) == 12 and dataset.trained_on is None
    known = metrics.describe_images({"images": 12, "trained_on": None})
    assert known.startswith("12 images, perhaps trained on")


@pytest.mark.slow
@pytest.mark.usefixtures("blank_pictures")
def test_a_figure_says_that_images_were_trained_on(photos, tmp_path, capsys):
    """The folder is moved after training; then a list names all images."""
    last = train(photos, tmp_path / "run", *OWN, "--val-share", "0.25", "--val-limit", "3")
    moved = photos.rename(tmp_path / "moved")
    line = ("eval", "--pretrained", last, "--dataset-root", moved, "--save-prefix")
    capsys.readouterr()
    run(*line, tmp_path / "first")
    assert "voc-like: 3 held-back images, mAP@0.5 " in capsys.readouterr().out
    write_list(moved, "val", [f"{number:02}" for number in range(12)])
    run(*line, tmp_path / "second")
    assert "voc-like: 12 images, 9 of them trained on, mAP@0.5 " in capsys.readouterr().out
    test = json.loads((tmp_path / "second" / "summary.json").read_text())["test"]
    assert (test["images"], test["trained_on"]) == (12, 9)
    page = (tmp_path / "second" / "report.html").read_text()
    assert "12 images, 9 of them trained on; " in page and "held-back" not in page


@pytest.mark.slow
def test_first_weights_keep_what_they_were_trained_on(photos, tmp_path, capsys):
    """Another seed would hold back images that the first weights were trained on."""
    first = train(photos, tmp_path / "first", *OWN, "--val-share", "0.25")
    seed = ("--pretrained", first, "--seed", "5", "--val-share", "0.25")
    moved = photos.rename(tmp_path / "moved")
    second = train(moved, tmp_path / "second", *OWN, *seed)
    one, other = (checkpoint.read(path).images for path in (first, second))
    assert {key.digest for key in one.held_back} == {key.digest for key in other.held_back}
    split = ValidationSplit(0.25, 5)
    _, plain = open_datasets(VOC_LIKE, moved, ("train", "val"), split=split)
    assert {key.digest for key in one.held_back} != {s.key.digest for s in plain.samples}
    # A third run on other photographs still knows those of the first.
    more = ("--pretrained", second, "--val-share", "0.25")
    third = train(write_photos(tmp_path / "new", seed=50), tmp_path / "third", *OWN, *more)
    data = Data(dataset="voc-like", dataset_root=moved)
    dataset = evaluate.open_test_set(data, checkpoint.read(third))
    assert {sample.key.digest for sample in dataset.samples} == {k.digest for k in one.held_back}
    # If all have been trained on, the new scores say so.
    write_list(moved, "train", ["00", "01"])
    write_list(moved, "val", [key.name for key in one.trained_on or ()])
    capsys.readouterr()
    run(*train_arguments(moved, tmp_path / "fourth", *OWN, "--pretrained", third))
    output = capsys.readouterr().out
    assert "dataset: scored, although they are trained on: 9 of 9 images of moved val (" in output
    assert " on 2 images, 2 of them trained on\n" in output
    (row,) = checkpoint.read(tmp_path / "fourth" / "last.ckpt").history["val"]
    assert row["trained_on"] == 2


def voc_lists(root: Path) -> None:
    write_photos(root)
    write_list(root, "train", [f"{number:02}" for number in range(8)])
    write_list(root, "val", [f"{number:02}" for number in range(7, 12)])


def yolo_folders(root: Path) -> None:
    """The folder of the validation images is within that of the training images."""
    for number in range(6):
        folder = "val" if number == 5 else "."
        for part in ("images", "labels"):
            (root / part / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(seed=number)).save(root / "images" / folder / f"{number}.png")
        (root / "labels" / folder / f"{number}.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    (root / "data.yaml").write_text("names: [cup]\ntrain: images\nval: images/val\n")


def coco_files(root: Path) -> None:
    """Two files share an image, in two folders and under two names."""
    for part, seeds in (("train2017", range(5)), ("val2017", range(4, 7))):
        (root / part).mkdir(parents=True)
        images, boxes = [], []
        for seed in seeds:
            name = f"{part}{seed}.png"
            Image.fromarray(picture(seed=seed)).save(root / part / name)
            images.append({"id": seed, "file_name": name, "width": 96, "height": 72})
            box = [20, 10, 40, 40]
            boxes.append({"id": seed, "image_id": seed, "category_id": 1, "bbox": box})
        content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "a"}]}
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))


SHARED = {voc_lists: "1 of 5", yolo_folders: "1 of 1", coco_files: "1 of 3"}


@pytest.mark.parametrize("write", SHARED)
def test_an_image_in_training_and_validation_is_named(write, tmp_path, capsys):
    pytest.importorskip("pycocotools")
    root = tmp_path / "photos"
    write(root)
    _, val = open_datasets(VOC_LIKE, root, ("train", "val"), split=ValidationSplit())
    words = f"dataset: scored, although they are trained on: {SHARED[write]} image"
    assert words in capsys.readouterr().out
    assert len(val.trained_on or ()) == 1


def test_images_of_equal_content_stay_on_one_side(photos):
    for number in range(12):
        for suffix in (".png", ".xml"):
            shutil.copy(photos / f"{number:02}{suffix}", photos / f"copy of {number:02}{suffix}")
    for seed in range(3):
        split = ValidationSplit(0.25, seed)
        train_set, val_set = open_datasets(VOC_LIKE, photos, ("train", "val"), split=split)
        assert {s.digest for s in train_set.samples}.isdisjoint(s.digest for s in val_set.samples)
        assert len(val_set) == 6 and val_set.trained_on == set()


def test_images_to_score_are_chosen_by_chance(tmp_path):
    """The files are sorted by class, and the first half has no objects."""
    for number in range(40):
        Image.fromarray(picture(seed=number)).save(tmp_path / f"{number:02}.png")
        objects = [] if number < 20 else [(f"class {number // 5}", (20, 10, 60, 50))]
        annotation(tmp_path / f"{number:02}.xml", (96, 72), objects)
    dataset = open_dataset(VOC_LIKE, tmp_path, "train")
    for limit in (2, 8, 20):
        chosen = choose_indices(dataset, limit)
        assert chosen == choose_indices(dataset, limit) == sorted(chosen)
        assert len(chosen) == limit and sum(index >= 20 for index in chosen) == limit // 2
    rows = [dataset.labels[index] for index in choose_indices(dataset, 24)]
    assert len({row[0, 4] for row in rows if len(row)}) == 4
    assert len(dataset.labels[choose_indices(dataset, 1)[0]]) == 1
    assert choose_indices(dataset, None) == choose_indices(dataset, 40) == list(range(40))


def test_scores_are_of_the_chosen_images(photos, monkeypatch):
    dataset = open_dataset(VOC_LIKE, photos, "train")
    monkeypatch.setattr(metrics, "scores", lambda dataset, found: {})
    predictor = mock.Mock()
    metrics.evaluate(predictor, dataset, 4)
    (chosen,) = (call.args[1] for call in predictor.call_args_list)
    assert chosen == choose_indices(dataset, 4) != [0, 1, 2, 3]


def test_image_files_are_read_once(photos, monkeypatch):
    """The pass with a progress bar gives the digests too."""
    dataset = open_dataset(VOC_LIKE, photos, "train")
    before = dataset.digest
    again = open_dataset(VOC_LIKE, photos, "train")
    shutil.rmtree(photos)
    assert again.digest == before
    assert len({sample.digest for sample in again.samples}) == 12
