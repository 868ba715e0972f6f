# SPDX-License-Identifier: Apache-2.0
"""The forms of a user's folder: YOLO, COCO and VOC exports; what is printed about them."""

from __future__ import annotations

import json
import runpy
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from odd_images import annotation, picture, turned
from PIL import Image
from support.damages import start
from support.demo_data import open_dataset
from support.demo_runs import REPOSITORY, run, settings_of, train_arguments

from demo_rfcn import cli
from demo_rfcn.data import DATASETS, ValidationSplit, open_datasets, yolo
from demo_rfcn.data.dataset import summarize
from demo_rfcn.errors import InputError

VOC_LIKE = DATASETS["voc-like"]
OWN = ("--dataset", "voc-like")
#: The bright box of `picture()`, edges, and as YOLO writes it.
BOX = (20, 10, 60, 50)
ROW = f"{40 / 96:.6f} {30 / 72:.6f} {40 / 96:.6f} {40 / 72:.6f}"
NAMES = "names: [cup, spoon]\n"


def write_yolo(root: Path, images: str, labels: str, first: int = 0) -> None:
    """Write three images and their rows, of the two classes by turns, into two folders."""
    for folder in (images, labels):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + 3):
        Image.fromarray(picture(seed=number)).save(root / images / f"{number}.png")
        (root / labels / f"{number}.txt").write_text(f"{number % 2} {ROW}\n")


@pytest.fixture
def flat(tmp_path) -> Path:
    """A folder with data.yaml, images and labels."""
    root = tmp_path / "photos"
    write_yolo(root, "images", "labels")
    (root / "data.yaml").write_text(f"{NAMES}train: images\n")
    return root


def names_of(root: Path, *purposes: str) -> list[set[str]]:
    """Return the names of the images of each purpose; a third is held back if need be."""
    found = open_datasets(VOC_LIKE, root, purposes, split=ValidationSplit(0.34))
    return [{sample.name for sample in dataset.samples} for dataset in found]


def test_yolo_boxes_and_classes(flat, capsys):
    (flat / "labels" / "1.txt").write_text("")
    (flat / "labels" / "2.txt").write_text(f"1 {ROW}\n0 0.25 0.5 0.5 0.5 0.5 1 0.25 1\n")
    dataset = open_dataset(VOC_LIKE, flat, "train")
    assert dataset.classes == ("cup", "spoon")
    labels = {sample.name: sample.labels for sample in dataset.samples}
    np.testing.assert_allclose(labels["images/0.png"], [[*BOX, 0, 0]], atol=1e-4)
    assert labels["images/1.png"].shape == (0, 6)
    expected = [[*BOX, 1, 0], [24, 36, 48, 72, 0, 0]]
    np.testing.assert_allclose(labels["images/2.png"], expected, atol=1e-4)
    assert "dataset: classes of the annotations: cup, spoon\n" in capsys.readouterr().out


LAYOUTS: dict[str, tuple] = {
    # folders of images and labels; data.yaml; its training and validation images
    "flat": (["images labels"], f"{NAMES}train: images\nval: images\n", None, None),
    "no yaml keys": (["images labels"], NAMES, None, None),
    "with the images": ([". ."], f"{NAMES}train: .\n", None, None),
    "split inside": (
        ["images/train labels/train", "images/val labels/val"],
        f"path: .\ntrain: images/train\nval: images/val\n{NAMES}",
        "images/train",
        "images/val",
    ),
    "Roboflow": (
        ["train/images train/labels", "valid/images valid/labels"],
        f"train: ../train/images\nval: ../valid/images\ntest: ../test/images\n\nnc: 2\n{NAMES}"
        "\nroboflow:\n  workspace: mine\n  license: CC BY 4.0\n",
        "train/images",
        "valid/images",
    ),
    "of another machine": (
        ["train/images train/labels", "valid/images valid/labels"],
        "path: C:/data\ntrain: /home/me/photos/train/images\nval: /home/me/photos/valid/images\n"
        + NAMES,
        "train/images",
        "valid/images",
    ),
    "conventional folders": (
        ["train/images train/labels", "val/images val/labels"],
        NAMES,
        "train/images",
        "val/images",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_yolo_layouts(layout, tmp_path):
    folders, config, train, val = LAYOUTS[layout]
    root = tmp_path / "photos"
    for pair in folders:
        write_yolo(root, *pair.split())
    (root / "data.yaml").write_text(config)
    names = names_of(root, "train", "val")
    if val:
        assert names == [{f"{part}/{n}.png" for n in range(3)} for part in (train, val)]
    else:
        assert len(names[0]) == 2 and len(names[1]) == 1 and not names[0] & names[1]


def test_names_of_images_are_the_same_in_every_spelling_of_the_folder(flat, monkeypatch):
    """The names of the images that are held back are compared with them."""
    (flat / "data.yaml").write_text(f"path: {flat}\n{NAMES}train: images\n")
    monkeypatch.chdir(flat)
    assert (
        names_of(Path(), "train") == names_of(flat, "train") == names_of(Path("../photos"), "train")
    )


def write_list(root: Path, *lines: str, name: str = "train") -> None:
    """Write a list of images, and a data.yaml with all lists."""
    (root / f"{name}.txt").write_text("\n".join(lines) + "\n")
    keys = "".join(f"{path.stem}: {path.name}\n" for path in root.glob("*.txt"))
    (root / "data.yaml").write_text(f"{NAMES}{keys}")


def test_lists_of_images(flat):
    """Two lists divide one folder; a line may be a path on another machine."""
    write_list(flat, "./images/0.png", "C:\\photos\\images\\2.png")
    write_list(flat, "/home/me/photos/images/1.png", name="val")
    assert names_of(flat, "train", "val") == [{"images/0.png", "images/2.png"}, {"images/1.png"}]


def test_rows_with_keypoints_are_boxes(flat):
    """Two or three numbers for each of twelve points, which are all in the upper left corner."""
    for values in (2, 3):
        (flat / "data.yaml").write_text(f"{NAMES}train: images\nkpt_shape: [12, {values}]\n")
        points = " ".join(["0.01"] * 12 * values)
        (flat / "labels" / "0.txt").write_text(f"0 {ROW} {points}\n1 {ROW}\n")
        labels = open_dataset(VOC_LIKE, flat, "train").labels[0]
        np.testing.assert_allclose(labels, [[*BOX, 0, 0], [*BOX, 1, 0]], atol=1e-4)


def test_images_in_linked_folders_are_read(flat, tmp_path):
    """A link back does not end in a loop, and is no second set of images."""
    write_yolo(tmp_path / "disk", "images", "labels", first=3)
    for part in ("images", "labels"):
        (flat / part / "more").symlink_to(tmp_path / "disk" / part)
    (flat / "images" / "loop").symlink_to(flat / "images")
    found = {sample.name for sample in open_dataset(VOC_LIKE, flat, "train").samples}
    folders = ("images", 0), ("images/more", 3)
    assert found == {f"{name}/{first + n}.png" for name, first in folders for n in range(3)}


def test_a_link_inside_the_folder_keeps_its_labels(flat):
    """The labels of images/all are in labels/all, wherever the images are."""
    (flat / "images").rename(flat / "pool")
    (flat / "labels").rename(flat / "boxes")
    for part, target in (("images", "pool"), ("labels", "boxes")):
        (flat / part).mkdir()
        (flat / part / "all").symlink_to(flat / target)
    (flat / "data.yaml").write_text(f"{NAMES}train: images/all\n")
    dataset = open_dataset(VOC_LIKE, flat, "train")
    assert [sample.name for sample in dataset.samples] == [f"images/all/{n}.png" for n in range(3)]


def test_rows_that_are_repeated_are_left_out(flat, capsys):
    (flat / "labels" / "0.txt").write_text(f"0 {ROW}\n1 {ROW}\n0 {ROW}\n")
    (labels, *_) = open_dataset(VOC_LIKE, flat, "train").labels
    np.testing.assert_allclose(labels, [[*BOX, 0, 0], [*BOX, 1, 0]], atol=1e-4)
    words = "dataset: 1 object of photos images left out, annotated twice with one box: 0.png\n"
    assert words in capsys.readouterr().out


def test_classes_without_yaml(flat):
    """Label Studio and labelImg write classes.txt."""
    (flat / "data.yaml").unlink()
    (flat / "classes.txt").write_text("cup\nspoon\n")
    (flat / "notes.json").write_text('{"categories": [{"id": 0, "name": "cup"}], "info": {}}')
    assert open_dataset(VOC_LIKE, flat, "train").classes == ("cup", "spoon")


YAML = {
    "names: ['a, b', \"c\"]  # two": ["a, b", "c"],
    "names:\n- a\n- 'b'\nnc: 2": ["a", "b"],
    "names:\n  - a # first\n  - 'it''s'": ["a", "it's"],
    "names: [a,\n  b]": ["a", "b"],
    "names:\n  0: a\n  1: b c": {"0": "a", "1": "b c"},
    "names: {0: a, 1: 'b, c'}": {"0": "a", "1": "b, c"},
    "download: |\n  import os\n  names: 1\nnames: [x]": ["x"],
    "---\nnames: single": "single",
}


@pytest.mark.parametrize("text", YAML)
def test_yaml_of_exports(text, tmp_path):
    path = tmp_path / "data.yaml"
    path.write_text(text)
    assert yolo.parse_yaml(path, ["names"]) == {"names": YAML[text]}


WRONG_ROWS = {
    "7 0.5 0.5 0.1 0.1": "0.txt: line 2 has class 7, expected 0 to 1",
    "cup 0.5 0.5 0.1 0.1": "0.txt: line 2 is 'cup 0.5 0.5 0.1 0.1', expected a class and 4 numb",
    "0 0.5 0.5 0.1": "0.txt: line 2 is '0 0.5 0.5 0.1', expected a class and 4 numbers",
    "0 0.5 0.5 0.1 nan": "0.txt: line 2 is '0 0.5 0.5 0.1 nan', expected a class and 4 numbers",
    "0 0.9 0.5 0.4 0.1": "0.txt: line 2 has the box 0.9 0.5 0.4 0.1, expected fractions of the",
    "0 48 36 20 20": "0.txt: line 2 has the box 48 36 20 20, expected fractions of the image's",
    "0 0.5 0.5 0 0.1": "0.txt: line 2 has the box 0.5 0.5 0 0.1, expected fractions of the image",
}


@pytest.mark.parametrize("row", WRONG_ROWS)
def test_wrong_rows_are_named(row, flat, tmp_path, no_training, rejects):
    (flat / "labels" / "0.txt").write_text(f"0 {ROW}\n{row}\n")
    line = train_arguments(flat, tmp_path / "run", *OWN, "--batch-size", "1")
    (message,) = rejects(line, WRONG_ROWS[row])
    assert message.startswith(f"demo_rfcn: dataset: {flat / 'labels'}")
    assert message.endswith("; --skip-broken continues without 1 of 3 images")
    with pytest.raises(no_training):
        cli.main([*line, "--skip-broken"])


WRONG_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "names": (
        lambda root: (root / "data.yaml").unlink(),
        "has YOLO's labels without names of classes; expected them in data.yaml, or in classes.txt",
    ),
    "same names": (
        lambda root: (root / "data.yaml").write_text("names: [cup, cup]\n"),
        "data.yaml has ['cup', 'cup'] as names, expected a list of different names",
    ),
    "numbers": (
        lambda root: (root / "data.yaml").write_text("names: {0: cup, 2: spoon}\n"),
        "data.yaml names classes 0, 2, expected 0, 1, ...",
    ),
    "bracket": (
        lambda root: (root / "data.yaml").write_text("names: [cup, spoon\n"),
        "data.yaml has 'names' in an unknown form: '[cup, spoon' has no closing bracket",
    ),
    "train": (
        lambda root: (root / "data.yaml").write_text(f"{NAMES}train: ../other/pictures\n"),
        "folder ../other/pictures of data.yaml is missing in",
    ),
    "labels": (
        lambda root: shutil.rmtree(root / "labels"),
        "has no image with a file of boxes",
    ),
    "image": (
        lambda root: (root / "images" / "1.png").unlink(),
        "labels/1.txt has boxes of an image that is missing",
    ),
    "twin": (
        lambda root: shutil.copy(root / "images" / "1.png", root / "images" / "1.jpg"),
        "1.png has the boxes of another image, ",
    ),
    "cut": (
        lambda root: (root / "images" / "1.png").write_bytes(
            start(0.5)((root / "images" / "1.png").read_bytes())
        ),
        "images/1.png cannot be read: ",
    ),
    "binary": (
        lambda root: (root / "labels" / "1.txt").write_bytes(b"\xff\xfe\x00"),
        "labels/1.txt is not text in UTF-8",
    ),
    "list": (
        lambda root: write_list(root, "pictures/0.png", "pictures/1.png"),
        "none of the 2 images of FOLDER/train.txt is there, the first would be FOLDER/pictures/0.p",
    ),
    "listed image": (
        lambda root: write_list(root, "images/0.png", "images/none.png"),
        "FOLDER/images/none.png is missing; --skip-broken continues without 1 of 2 images",
    ),
    "listed twice": (
        lambda root: write_list(root, "images/0.png", "images/1.png", "images/0.png"),
        "FOLDER/train.txt names images/0.png more than once",
    ),
    "keypoints": (
        lambda root: (root / "data.yaml").write_text(f"{NAMES}train: images\nkpt_shape: 12\n"),
        "data.yaml has kpt_shape 12, expected [points, 2 or 3]",
    ),
    "keypoint rows": (
        lambda root: [
            (root / "data.yaml").write_text(f"{NAMES}train: images\nkpt_shape: [2, 3]\n"),
            (root / "labels" / "1.txt").write_text("0 0.25 0.5 0.5 0.5 0.5 1 0.25 1\n"),
        ],
        "expected a class, the 4 numbers of a box, and 6 of keypoints",
    ),
    "nothing": (
        lambda root: [shutil.rmtree(root / "labels"), (root / "data.yaml").rename(root / "a")],
        "has none of the three forms: VOC (Annotations/*.xml and JPEGImages, or *.xml with the "
        "images), COCO (a *.json with lists of images and annotations), YOLO (data.yaml, images",
    ),
}


@pytest.mark.parametrize("fault", WRONG_FOLDERS)
def test_wrong_yolo_folders_are_named(fault, flat, tmp_path, rejects):
    damage, words = WRONG_FOLDERS[fault]
    damage(flat)
    words = words.replace("FOLDER", str(flat))
    rejects(train_arguments(flat, tmp_path / "run", *OWN), words)


def test_unlabelled_and_turned_images_are_named(flat, capsys):
    (flat / "labels" / "1.txt").unlink()
    (flat / "images" / "0.png").unlink()
    turned(6)(picture(), flat / "images" / "0.jpg")
    dataset = open_dataset(VOC_LIKE, flat, "train")
    np.testing.assert_allclose(dataset.labels[0][:, :4], [BOX], atol=1e-4)
    output = capsys.readouterr().out
    assert "dataset: 1 image without annotation left out: 1.png\n" in output
    words = "boxes are read in pixels of the upright image; the annotated size fits both readings\n"
    assert f"EXIF turns 1 image of photos images (0.jpg): {words}" in output


def write_coco(path: Path, names: list[str]) -> None:
    """Write the annotations of images with these names."""
    images = [
        {"id": n, "file_name": name, "width": 96, "height": 72} for n, name in enumerate(names)
    ]
    boxes = [
        {"id": n, "image_id": n, "category_id": 4, "bbox": [20, 10, 40, 40]}
        for n in range(len(names))
    ]
    categories = [{"id": 4, "name": "cup"}]
    content = {"info": {}, "images": images, "annotations": boxes, "categories": categories}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("names", ["train_a.json train_b.json", "train/a.json train/b.json"])
def test_two_coco_files_for_one_purpose_are_named(names, tmp_path, rejects):
    for name in names.split():
        write_coco(tmp_path / "photos" / name, ["a.png"])
    words = "b.json may be the annotations for train: use --dataset coco --train-annotations"
    rejects(train_arguments(tmp_path / "photos", tmp_path / "run", *OWN), words)


@pytest.fixture
def voc_flat(tmp_path) -> Path:
    """Three images with their XML files in one folder."""
    root = tmp_path / "photos"
    root.mkdir()
    for number in range(3):
        Image.fromarray(picture(seed=number)).save(root / f"{number}.png")
        annotation(root / f"{number}.xml", (96, 72), [("cup", BOX)])
    return root


def name_file(path: Path, name: str) -> None:
    """Write the <filename> of an annotation."""
    text = path.read_text().replace("<size>", f"<filename>{name}</filename><size>", 1)
    path.write_text(text)


def test_folders_of_annotations_that_are_not_read_are_named(voc_flat, capsys):
    (voc_flat / "day 2").mkdir()
    for name in ("1.png", "1.xml"):
        shutil.copy(voc_flat / name, voc_flat / "day 2")
    assert len(open_dataset(VOC_LIKE, voc_flat, "train")) == 3
    assert f"dataset: folders in {voc_flat} are not read: day 2\n" in capsys.readouterr().out


def test_the_file_that_an_annotation_names_is_taken_before_a_twin(voc_flat, tmp_path, rejects):
    Image.fromarray(picture(50, 50)).save(voc_flat / "1.jpg")
    line = train_arguments(voc_flat, tmp_path / "run", *OWN)
    rejects(line, "1.jpg has 50 x 50 pixels", "1.jpg has the name of 1.png; --skip-broken")
    name_file(voc_flat / "1.xml", "1.png")
    paths = [sample.path for sample in open_dataset(VOC_LIKE, voc_flat, "train").samples]
    assert paths == [str(voc_flat / f"{number}.png") for number in range(3)]


def test_the_file_that_an_annotation_names_may_have_another_stem(voc_flat, capsys):
    (voc_flat / "1.png").rename(voc_flat / "photo.png")
    name_file(voc_flat / "1.xml", "photo.png")
    name_file(voc_flat / "2.xml", "photo.png")  # stale: the image of its own name is there
    dataset = open_dataset(VOC_LIKE, voc_flat, "train")
    found = [Path(sample.path).name for sample in dataset.samples]
    assert found == ["0.png", "photo.png", "2.png"]
    assert "without annotation" not in capsys.readouterr().out


def test_a_square_image_that_is_turned_is_named(tmp_path, capsys):
    """Its size does not show whether the boxes are those of the stored or the upright image."""
    square = picture(72, 72)
    turned(6)(square, tmp_path / "phone.jpg")
    Image.fromarray(square).save(tmp_path / "plain.png")
    for name in ("phone", "plain"):
        annotation(tmp_path / f"{name}.xml", (72, 72), [("cup", BOX)])
    dataset = open_dataset(VOC_LIKE, tmp_path, "train")
    np.testing.assert_array_equal(dataset.labels[0][:, :4], [BOX])
    words = "boxes are read in pixels of the upright image; the annotated size fits both readings\n"
    assert f" (phone.jpg): {words}" in capsys.readouterr().out


def test_summary_before_training(voc_flat, tmp_path, no_training, capsys):
    """A typing error in a class, boxes that extend beyond, and the size after scaling."""
    annotation(voc_flat / "1.xml", (96, 72), [("cupp", (86, 0, 97, 10)), ("cup", (5, 5, 25, 25))])
    line = train_arguments(voc_flat, tmp_path / "run", *OWN, "--short", "36", "--max-size", "500")
    with pytest.raises(no_training):
        cli.main([*line, "--batch-size", "1", "--val-share", "0.01", "--seed", "1"])
    lines = capsys.readouterr().out.splitlines()
    settings = settings_of(line)
    (dataset,) = open_datasets(settings.data.spec, voc_flat, ("train",))
    summary = [
        "objects: cupp (1), cup (3)",
        "1 box clipped to their image",
        "median object size 15 pixels in images scaled to --short 36 --max-size 500; at least 32 "
        "are recommended",
    ]
    assert summarize(dataset, None, (36, 500)) == summary
    assert {f"dataset: {text}" for text in summary} <= set(lines)
    train_set, held_back = (dataset.subset("", names) for names in ({"0", "2"}, {"1"}))
    first, second, *others = summarize(train_set, held_back, (36, 500))
    assert (second, [first, *others]) == ("no object to train on: cupp", summary)


VOC_CORNERS = {
    # in an XML file: whether corners count from 0, and what is printed
    "plain": ({}, False, ""),
    "zero": ({"<xmin>21<": "<xmin>0<"}, True, "1 file with a corner below 1 (1.xml)"),
    "fraction": ({"<ymin>11<": "<ymin> 0.5 <"}, True, "1 file with a corner below 1 (1.xml)"),
    "not below": ({"<ymin>11<": "<ymin>09.5<"}, False, ""),
    "Label Studio": (
        {"<size>": "<owner><name>Label Studio</name></owner><size>"},
        True,
        "Label Studio wrote them (1.xml)",
    ),
    "labelImg": (
        {"<size>": "<path>/a.jpg</path><source><database>Unknown</database></source><size>"},
        True,
        "labelImg wrote them (1.xml)",
    ),
}


@pytest.mark.parametrize("case", VOC_CORNERS)
def test_corners_that_count_from_0(case, voc_flat, capsys):
    """All files of the folder are read alike, whichever of them shows the tool."""
    changes, from_zero, reason = VOC_CORNERS[case]
    text = (voc_flat / "1.xml").read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    (voc_flat / "1.xml").write_text(text)
    first, _, last = open_dataset(VOC_LIKE, voc_flat, "train").labels
    expected = [21, 11, 60, 50] if from_zero else [20, 10, 60, 50]
    np.testing.assert_array_equal([first[0, :4], last[0, :4]], [expected, expected])
    note = f"dataset: boxes of photos count from 0, VOC's from 1: {reason}\n"
    assert (note in capsys.readouterr().out) == from_zero


def test_folders_do_not_show_the_tool(voc_flat, capsys):
    """Label Studio's folders are images and Annotations, but so are those of others."""
    for name, suffix in (("images", ".png"), ("Annotations", ".xml")):
        (voc_flat / name).mkdir()
        for path in voc_flat.glob(f"*{suffix}"):
            path.rename(voc_flat / name / path.name)
    first, *_ = open_dataset(VOC_LIKE, voc_flat, "train").labels
    np.testing.assert_array_equal(first[0, :4], [20, 10, 60, 50])
    assert "count from 0" not in capsys.readouterr().out


def test_a_box_between_edges_needs_an_area(voc_flat, tmp_path, rejects):
    """VOC's box from 30 to 30 is one pixel wide; between two edges at 30 is none."""
    path = voc_flat / "1.xml"
    path.write_text(path.read_text().replace("<xmin>21<", "<xmin>60<"))
    assert len(open_dataset(VOC_LIKE, voc_flat, "train").labels[1]) == 1
    other = voc_flat / "0.xml"
    other.write_text(other.read_text().replace("<xmin>21<", "<xmin>0<"))
    words = "1.xml has a box of 'cup' from (60, 11) to (60, 50), expected xmin < xmax and ymin < "
    rejects(train_arguments(voc_flat, tmp_path / "run", *OWN), words)


def test_batch_size_above_the_number_of_images(voc_flat, tmp_path, rejects):
    Image.fromarray(picture(seed=9)).save(voc_flat / "3.png")
    annotation(voc_flat / "3.xml", (96, 72), [("cup", BOX)])
    line = train_arguments(voc_flat, tmp_path / "run", *OWN, "--batch-size", "4")
    words = "train: --batch-size 4 exceeds the 3 training images: --batch-size 3"
    rejects(line, words, starts=True)


@pytest.mark.slow
def test_detect_goes_on_without_the_broken_images_of_a_folder(
    short_run, voc_flat, tmp_path, rejects
):
    path = voc_flat / "1.png"
    path.write_bytes(start(0.5)(path.read_bytes()))
    saved = ["--pretrained", short_run / "last.ckpt", "--save-prefix", tmp_path / "out"]
    rejects(["detect", voc_flat, *saved], f"detect: {path} cannot be read: ", starts=True)
    assert sorted(each.name for each in (tmp_path / "out").glob("*.json")) == ["0.json", "2.json"]


@pytest.mark.slow
def test_a_yolo_folder_from_training_to_evaluation(flat, tmp_path):
    run(*train_arguments(flat, tmp_path / "run", *OWN, "--short", "64", "--batch-size", "1"))
    saved = ["--pretrained", tmp_path / "run" / "last.ckpt", "--save-prefix", tmp_path / "out"]
    run("eval", *saved)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["test"]["images"] == 1 and [*summary["test"]["per_class"]] == ["cup", "spoon"]


def test_files_without_text_are_reported_as_such(tmp_path):
    (tmp_path / "data.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="data.yaml is not text in UTF-8"):
        open_dataset(VOC_LIKE, tmp_path, "train")


def test_tiles_of_annotated_photographs(tmp_path):
    """examples/tree_crowns.py cuts photographs in a wheel; a tile has the trees of its half."""
    wheel = tmp_path / "deepforest.whl"
    script = runpy.run_path(str(REPOSITORY / "examples" / "tree_crowns.py"))
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in script["PHOTOGRAPHS"].values():
            stem = tmp_path / name
            Image.fromarray(picture(660, 330)).save(f"{stem}.png")
            # The middle of the last one is on the edge of two tiles to validate on.
            boxes = [BOX, (315, 10, 325, 20), (645, 5, 651, 10)]
            annotation(Path(f"{stem}.xml"), (660, 330), [("Tree", box) for box in boxes])
            for suffix in (".png", ".xml"):
                archive.write(f"{stem}{suffix}", f"deepforest/data/{name}{suffix}")
    script["main"](wheel, tmp_path / "trees")
    train, val = open_datasets(VOC_LIKE, tmp_path / "trees", ("train", "val"))
    assert [sample.name for sample in val.samples] == ["val_0000_0000", "val_0000_0320"]
    np.testing.assert_array_equal(val.labels[0][:, :4], [BOX, (315, 10, 320, 20)])
    np.testing.assert_array_equal(val.labels[1][:, :4], [(0, 10, 5, 20)])
    assert [len(labels) for labels in train.labels] == [2, 1, 1]
    assert train.classes == ("tree",)
