# SPDX-License-Identifier: Apache-2.0
"""Data that a crash, a full disk or a labelling tool left broken: named file by file, at once."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from demo_runs import open_dataset, train_arguments

from demo_rfcn import cli
from demo_rfcn.data import DATASETS, images
from demo_rfcn.errors import BrokenFile
from demo_rfcn.model import detector

NAME = "000003"
XML, JPEG = f"Annotations/{NAME}.xml", f"JPEGImages/{NAME}.jpg"


class NetworkBuilt(Exception):
    """The data was accepted: training is about to begin."""


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    """Stop as soon as a command builds a network."""

    def build(*_, **__):
        raise NetworkBuilt

    monkeypatch.setattr(detector, "build", build)


@pytest.fixture
def folder(eight_images, tmp_path) -> Path:
    """A copy of eight images in VOC layout, to be damaged."""
    return Path(shutil.copytree(eight_images / "VOC2007", tmp_path / "data" / "VOC2007"))


def gone(folder: Path, path: str) -> None:
    """Remove a file."""
    (folder / path).unlink()


def content(data: bytes) -> Callable:
    """Return a damage: other bytes in a file."""
    return lambda folder, path: (folder / path).write_bytes(data)


def start(share: float) -> Callable:
    """Return a damage: the rest of a file is lost."""
    return lambda folder, path: os.truncate(
        folder / path, int(share * (folder / path).stat().st_size)
    )


def change(*edits: tuple) -> Callable:
    """Return a damage: the first match of a pattern is replaced."""

    def apply(folder: Path, path: str) -> None:
        data = (folder / path).read_bytes()
        for pattern, replacement in edits:
            data, count = re.subn(pattern, replacement, data, count=1, flags=re.DOTALL)
            assert count == 1, pattern
        (folder / path).write_bytes(data)

    return apply


def without(tag: str) -> Callable:
    """Return a damage: the first element of this name is gone."""
    return change((f"<{tag}>.*?</{tag}>".encode(), b""))


def element(**values: str) -> Callable:
    """Return a damage: other texts in the first elements of these names."""
    return change(
        *(
            (f"<{tag}>.*?</{tag}>".encode(), f"<{tag}>{value}</{tag}>".encode())
            for tag, value in values.items()
        )
    )


def box(xmin: str, ymin: str, xmax: str, ymax: str) -> Callable:
    """Return a damage: another box of the first object."""
    return element(xmin=xmin, ymin=ymin, xmax=xmax, ymax=ymax)


def lost_tail(folder: Path, path: str) -> None:
    """Zero the second half of a file, as a file system may after a power cut."""
    start(0.5)(folder, path)
    with (folder / path).open("ab") as file:
        file.write(bytes(file.tell()))


def with_thumbnail(data: bytes) -> bytes:
    """Put a whole small JPEG into the header of another."""
    small = cv2.imencode(".jpg", np.zeros((8, 8, 3), np.uint8))[1].tobytes()
    return data[:2] + b"\xff\xe1" + (len(small) + 2).to_bytes(2, "big") + small + data[2:]


def half_with_thumbnail(folder: Path, path: str) -> None:
    """Cut an image whose header holds a whole thumbnail."""
    (folder / path).write_bytes(with_thumbnail((folder / path).read_bytes()))
    start(0.6)(folder, path)


def half_png(folder: Path, path: str) -> None:
    """Put half a PNG under the name of the JPEG."""
    coded = cv2.imencode(".png", np.zeros((160, 160, 3), np.uint8))[1]
    (folder / path).write_bytes(coded.tobytes())
    start(0.6)(folder, path)


def other_size(folder: Path, path: str) -> None:
    """Scale an image and leave its annotation as it was."""
    cv2.imwrite(str(folder / path), np.zeros((80, 120, 3), np.uint8))


BROKEN = {
    "xml-missing": (gone, XML, "is missing"),
    "xml-empty": (content(b""), XML, "is empty"),
    "xml-cut": (start(0.6), XML, "is not whole XML: "),
    "xml-zeros": (content(bytes(700)), XML, "is not whole XML: "),
    "xml-binary": (content(b"\xff\xd8\xff\xe0" * 9), XML, "is not whole XML: "),
    "xml-latin": (change((b"<name>", b"<name>\xe9")), XML, "is not whole XML: "),
    "xml-gbk": (
        content(b'<?xml version="1.0" encoding="gb2312"?><annotation/>'),
        XML,
        "is not whole XML: multi-byte encodings are not supported",
    ),
    "xml-other": (content(b"<html></html>"), XML, "has <html> without <size>"),
    "no-size": (without("size"), XML, "has <annotation> without <size>"),
    "no-width": (without("width"), XML, "has <size> without <width>"),
    "no-name": (without("name"), XML, "has <object> without <name>"),
    "no-bndbox": (without("bndbox"), XML, "has <object> without <bndbox>"),
    "no-xmax": (without("xmax"), XML, "has <bndbox> without <xmax>"),
    "width-text": (element(width="wide"), XML, "has 'wide' for <width>, expected a number"),
    "width-empty": (element(width=""), XML, "has '' for <width>, expected a number"),
    "width-zero": (element(width="0"), XML, "gives 0 x 160 as <size>, expected at least 1 x 1"),
    "height-minus": (element(height="-9"), XML, "gives 160 x -9 as <size>, expected at least"),
    "name-empty": (element(name=" "), XML, "holds class '', expected one of disk, square"),
    "name-other": (element(name="zebra"), XML, "holds class 'zebra', expected one of disk"),
    "box-text": (element(xmin="left"), XML, "has 'left' for <xmin>, expected a number"),
    "box-nan": (element(xmin="nan"), XML, "has 'nan' for <xmin>, expected a number"),
    "box-inf": (element(ymax="inf"), XML, "has 'inf' for <ymax>, expected a number"),
    "box-inverted": (
        box("90", "20", "40", "60"),
        XML,
        "from (90, 20) to (40, 60), expected xmin <= xmax",
    ),
    "box-beyond": (
        box("90", "20", "162", "60"),
        XML,
        "from (90, 20) to (162, 60), expected within (1, 1) to (160, 160)",
    ),
    "box-outside": (box("-1", "20", "60", "60"), XML, "expected within (1, 1) to (160, 160)"),
    "box-width-and-height": (box("90", "90", "30", "40"), XML, "expected xmin <= xmax"),
    "image-missing": (gone, JPEG, "is missing"),
    "image-empty": (content(b""), JPEG, "is empty"),
    "image-text": (content(b"404 Not Found\n"), JPEG, "is not an image"),
    "image-byte": (content(b"\xff"), JPEG, "is not an image"),
    "image-zeros": (content(bytes(4000)), JPEG, "is not an image"),
    "image-header": (start(0.02), JPEG, "cannot be read: "),
    "image-half": (start(0.5), JPEG, "is cut short"),
    "image-last-byte": (start(0.9999), JPEG, "is cut short"),
    "image-lost-tail": (lost_tail, JPEG, "is cut short"),
    "image-thumbnail": (half_with_thumbnail, JPEG, "is cut short"),
    "image-half-png": (half_png, JPEG, "cannot be read: "),
    "image-other-size": (other_size, JPEG, "has 120 x 80 pixels, and its annotation says 160"),
}


def refusal(line: list, capsys) -> list:
    """Return the lines that a refused command writes."""
    capsys.readouterr()
    assert cli.main(line) == 2
    return capsys.readouterr().err.strip().splitlines()


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_named_before_training(fault, folder, tmp_path, capsys):
    damage, path, words = BROKEN[fault]
    damage(folder, path)
    line = train_arguments(folder.parent, tmp_path / "run")
    (message,) = refusal(line, capsys)
    assert message.startswith(f"demo_rfcn: dataset: {folder / path} ")
    assert words in message
    assert message.endswith("; --skip-broken continues without 1 of 8 images")
    assert not (tmp_path / "run").exists()
    with pytest.raises(NetworkBuilt):
        cli.main([*line, "--skip-broken"])
    said = "demo_rfcn: dataset: --skip-broken leaves out 1 of 8 images\n"
    assert capsys.readouterr().err == said


def test_every_broken_file_is_named(folder, tmp_path, capsys):
    gone(folder, XML)
    gone(folder, JPEG)
    start(0.5)(folder, "JPEGImages/000005.jpg")
    messages = refusal(train_arguments(folder.parent, tmp_path / "run"), capsys)
    assert len(messages) == 3
    for path, message in zip((JPEG, XML, "JPEGImages/000005.jpg"), messages):
        assert message.startswith(f"demo_rfcn: dataset: {folder / path} ")
    assert messages[-1].endswith("; --skip-broken continues without 2 of 8 images")


@pytest.mark.parametrize("split", ["trainval", "val", "test"])
@pytest.mark.parametrize("command", ["train", "demo", "ablate", "eval"])
def test_every_command_looks_at_the_files_that_it_will_read(
    command, split, folder, short_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(DATASETS, "signals", dataclasses.replace(DATASETS["signals"], paint=None))
    lists = folder / "ImageSets" / "Main"
    for name in ("trainval", "val", "test"):
        names = [f"00000{index}" for index in range(8) if index != 3 or name == split]
        (lists / f"{name}.txt").write_text("\n".join(names))
    start(0.5)(folder, JPEG)
    if command == "eval":
        line = ["eval", "--dataset-root", str(folder.parent), "--save-prefix", str(tmp_path / "e")]
        line += ["--pretrained", str(short_run / "best.ckpt")]
    else:
        line = [command, *train_arguments(folder.parent, tmp_path / "run")[1:]]
    read = {"train": ("trainval", "val"), "eval": ("test",)}
    if split in read.get(command, (split,)):
        (message,) = refusal(line, capsys)
        assert f"{folder / JPEG} is cut short" in message
    else:
        with pytest.raises(NetworkBuilt):
            cli.main(line)


def test_nothing_is_left_without_broken_images(folder, tmp_path, capsys):
    for path in (folder / "JPEGImages").iterdir():
        start(0.5)(path.parent, path.name)
    line = train_arguments(folder.parent, tmp_path / "run", "--skip-broken")
    messages = refusal(line, capsys)
    assert messages[0].endswith("leaves out 8 of 8 images")
    assert "no image of VOC2007 trainval" in messages[1]


@pytest.mark.parametrize(
    "damage",
    [
        without("difficult"),
        element(difficult=""),
        change((b"<difficult>", b"<pose>Left</pose><truncated>1</truncated><difficult>")),
        change((b"<annotation>", b"\xef\xbb\xbf<annotation>")),
        change((b"</annotation>", b"</annotation>\r\n\r\n")),
        element(width="160.0"),
    ],
)
def test_annotations_of_other_tools(damage, folder, eight_images):
    damage(folder, XML)
    spec = DATASETS["signals"]
    ours = open_dataset(spec, folder.parent, "train").labels[3]
    np.testing.assert_array_equal(ours, open_dataset(spec, eight_images, "train").labels[3])


def test_boxes_that_reach_out_by_a_pixel_are_clipped(folder):
    box("0", "0", "161", "161")(folder, XML)
    labels = open_dataset(DATASETS["signals"], folder.parent, "train").labels[3]
    np.testing.assert_array_equal(labels[0, :4], [0, 0, 159, 159])


@pytest.mark.parametrize(
    "make",
    [
        lambda image, data: data,
        lambda image, data: data + b"appended",
        lambda image, data: with_thumbnail(data),
        lambda image, data: cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1],
        lambda image, data: cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_RST_INTERVAL, 4])[1],
        lambda image, data: cv2.imencode(".jpg", image[..., 0])[1],
        lambda image, data: cv2.imencode(".png", image)[1],
        lambda image, data: cv2.imencode(".bmp", image)[1],
    ],
)
def test_whole_images_of_all_kinds(make, folder):
    path = folder / JPEG
    path.write_bytes(make(cv2.imread(str(path)), path.read_bytes()))
    assert len(open_dataset(DATASETS["signals"], folder.parent, "train")) == 8


def test_every_cut_of_a_jpeg_is_found(folder, tmp_path):
    data = with_thumbnail((folder / JPEG).read_bytes())
    path = tmp_path / "cut.jpg"
    path.write_bytes(data)
    assert images.check_image(path).upright == (160, 160)
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(BrokenFile):
            images.check_image(path)


LIST = "ImageSets/Main/trainval.txt"
NAMES = b"".join(b"00000%d\n" % index for index in range(8))
LISTS = {
    "missing": (gone, "is missing; expected a VOC layout"),
    "empty": (content(b""), "names no image, expected one name per line"),
    "blank": (content(b"\n\r\n \n"), "names no image, expected one name per line"),
    "zeros": (content(bytes(64)), "names no image, expected one name per line"),
    "binary": (content(b"\xff\xd8\xff"), "is not a list of images in UTF-8"),
    "utf-16": (content(NAMES.decode().encode("utf-16")), "is not a list of images in UTF-8"),
    "images": (lambda folder, _: shutil.rmtree(folder / "JPEGImages"), "JPEGImages is missing"),
    "labels": (lambda folder, _: shutil.rmtree(folder / "Annotations"), "Annotations is missing"),
    "absent": (content(NAMES + b"000009\n"), "000009.jpg is missing"),
    "twice": (content(NAMES + b"000001\n"), "trainval.txt names 000001 more than once"),
}


@pytest.mark.parametrize("fault", LISTS)
def test_a_broken_list_or_folder_is_named(fault, folder, tmp_path, capsys):
    damage, words = LISTS[fault]
    damage(folder, LIST)
    messages = refusal(train_arguments(folder.parent, tmp_path / "run"), capsys)
    assert words in messages[0]
    assert len(messages) == (2 if fault == "absent" else 1)  # its image is missing as well


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + NAMES,
        NAMES.replace(b"\n", b"\r\n"),
        NAMES.replace(b"\n", b"  1\n"),
        NAMES.replace(b"\n", b" -1\n") + b"\n\n",
    ],
)
def test_lists_of_other_tools(data, folder):
    content(data)(folder, LIST)
    assert len(open_dataset(DATASETS["signals"], folder.parent, "train")) == 8


def test_names_with_spaces(folder):
    for path in (XML, JPEG):
        (folder / path).rename(folder / path.replace(NAME, "on the road"))
    content(NAMES.replace(NAME.encode(), b"on the road"))(folder, LIST)
    assert len(open_dataset(DATASETS["signals"], folder.parent, "train")) == 8


def entry(part: str, place: int = 0, **fields) -> Callable:
    """Return a damage: other fields in one entry of COCO's annotation file; None removes one."""

    def apply(content: dict) -> None:
        chosen = content[part][place]
        chosen.update(fields)
        for name, value in fields.items():
            if value is None:
                del chosen[name]

    return apply


def replaced(**parts) -> Callable:
    """Return a damage: other lists in COCO's annotation file."""
    return lambda content: content.update(parts)


COCO = {
    "no-images": (replaced(images=None), "does not hold lists of images, annotations, categories"),
    "no-categories": (replaced(categories=[]), "has no categories, expected at least one"),
    "other-categories": (
        entry("categories", 1, name="person"),
        "categories[1] has the name or id of another: 2 'person'",
    ),
    "category-text": (replaced(categories=["person"]), "categories[0] has None for 'id'"),
    "image-no-id": (entry("images", id=None), "images[0] has None for 'id'"),
    "image-no-width": (entry("images", 1, width=None), "images[1] has None for 'width'"),
    "image-text-width": (entry("images", width="wide"), "images[0] has 'wide' for 'width'"),
    "image-nan-width": (
        entry("images", width=float("nan")),
        "images[0] gives nan x 200 as its size",
    ),
    "image-twice": (entry("images", 1, id=10), "images[1] has the id of another image, 10"),
    "image-no-name": (entry("images", coco_url=None, file_name=None), "has None for 'file_name'"),
    "image-other-size": (
        entry("images", width=9),
        "has 160 x 200 pixels, and its annotation says 9",
    ),
    "image-absent": (entry("images", coco_url="x/train2017/none.jpg"), "none.jpg is missing"),
    "of-no-image": (entry("annotations", image_id=99), "annotations[0] is of image 99, which the"),
    "of-no-category": (entry("annotations", category_id=99), "annotations[0] is of category 99, "),
    "same-id": (
        entry("annotations", 1, id=1),
        "annotations[1] has the id of another annotation, 1",
    ),
    "no-box": (entry("annotations", bbox=None), "annotations[0] has None for 'bbox'"),
    "short-box": (entry("annotations", bbox=[1, 2, 3]), "has the box [1, 2, 3], expected x, y, w"),
    "box-nan": (entry("annotations", bbox=[1, float("nan"), 3, 4]), "has the box [1, nan, 3, 4]"),
    "box-huge": (entry("annotations", bbox=[1, 10**400, 3, 4]), "expected x, y, width, height"),
    "box-text": (entry("annotations", bbox=["1", 2, 3, 4]), "has the box ['1', 2, 3, 4]"),
    "box-minus": (entry("annotations", bbox=[9, 9, -5, 4]), "has the box [9, 9, -5, 4], expected"),
    "box-outside": (entry("annotations", bbox=[900, 9, 5, 4]), "outside its image of 160 x 200"),
    "area-text": (entry("annotations", area="large"), "annotations[0] has 'large' for 'area'"),
    "annotation-text": (lambda content: content["annotations"].append("dog"), "for 'image_id'"),
}


@pytest.mark.parametrize("fault", COCO)
def test_broken_coco_entries_are_named(fault, coco_root, tmp_path, capsys):
    pytest.importorskip("pycocotools")
    damage, words = COCO[fault]
    root = Path(shutil.copytree(coco_root, tmp_path / "data"))
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    line = train_arguments(root, tmp_path / "run", "--dataset", "coco")
    (first, *_) = refusal(line, capsys)
    assert first.startswith(f"demo_rfcn: dataset: {root}") and words in first
    if "skip-broken" in first:
        with pytest.raises(NetworkBuilt):
            cli.main([*line, "--skip-broken"])


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe{}", b"[" * 100000])
def test_a_broken_coco_file_is_named(data, coco_root, tmp_path, capsys):
    pytest.importorskip("pycocotools")
    root = Path(shutil.copytree(coco_root, tmp_path / "data"))
    path = root / "annotations" / "instances_val2017.json"
    path.write_bytes(data)
    (message,) = refusal(train_arguments(root, tmp_path / "run", "--dataset", "coco"), capsys)
    assert str(path) in message


def test_a_missing_coco_folder_is_named_once(coco_root, tmp_path, capsys):
    pytest.importorskip("pycocotools")
    root = Path(shutil.copytree(coco_root, tmp_path / "data"))
    shutil.rmtree(root / "train2017")
    (message,) = refusal(train_arguments(root, tmp_path / "run", "--dataset", "coco"), capsys)
    assert message == f"demo_rfcn: dataset: folder {root / 'train2017'} of images is missing"


def test_coco_without_what_may_be_absent(coco_root, tmp_path):
    pytest.importorskip("pycocotools")
    root = Path(shutil.copytree(coco_root, tmp_path / "data"))
    path = root / "annotations" / "instances_train2017.json"
    content = json.loads(path.read_text())
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
    path.write_text(json.dumps(content))
    before, after = (
        open_dataset(DATASETS["coco"], folder, "train").labels for folder in (coco_root, root)
    )
    np.testing.assert_array_equal(after[0][-1, :4], [0, 150, 16, 199])
    np.testing.assert_array_equal(after[0][:-1], before[0])
    for ours, theirs in zip(after[1:], before[1:]):
        np.testing.assert_array_equal(ours, theirs)


def test_broken_images_keep_their_numbers_in_coco(coco_root, tmp_path):
    pytest.importorskip("pycocotools")
    root = Path(shutil.copytree(coco_root, tmp_path / "data"))
    gone(root, "val2017/000000000011.jpg")
    dataset = open_dataset(DATASETS["coco"], root, "test")
    whole = open_dataset(DATASETS["coco"], coco_root, "test")
    assert [entry.name for entry in dataset.entries] == [
        f"{n:012}.jpg" for n in (10, 12, 13, 14, 15)
    ]
    np.testing.assert_array_equal(dataset.labels[1], whole.labels[2])
    assert dataset.entries[1].path.endswith("val2017/000000000012.jpg")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (start(0.5), "is cut short"),
        (content(b"text"), "is not an image"),
        (content(b""), "is empty"),
        (half_png, "cannot be read: "),
        (gone, "is missing"),
    ],
)
def test_detect_looks_at_all_images_first(damage, words, folder, short_run, tmp_path, capsys):
    damage(folder, JPEG)
    names = [str(folder / "JPEGImages" / f"00000{index}.jpg") for index in range(4)]
    checkpoint = ["--pretrained", str(short_run / "best.ckpt")]
    (message,) = refusal(
        ["detect", *names, *checkpoint, "--save-prefix", str(tmp_path / "out")], capsys
    )
    assert f"detect: {folder / JPEG} {words}" in message


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 100000])
def test_a_broken_recipe_is_named(data, tmp_path, capsys):
    (tmp_path / "recipe.json").write_bytes(data)
    (message,) = refusal(["data", "--dataset-root", str(tmp_path)], capsys)
    assert f"data: {tmp_path / 'recipe.json'} is not whole JSON: " in message


def test_a_file_is_no_folder(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    (message,) = refusal(["data", "--dataset-root", str(tmp_path / "file")], capsys)
    assert message == f"demo_rfcn: data: {tmp_path / 'file'} is a file, expected a folder"
