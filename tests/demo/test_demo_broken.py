# SPDX-License-Identifier: Apache-2.0
"""Broken and malicious data: every file is named, at once, soon, and without much memory."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support import damages
from support.damages import black, box, damage, element, png, replace, start, with_thumbnail
from support.demo_data import SPLITS, open_dataset
from support.demo_runs import train_arguments

from demo_rfcn import cli
from demo_rfcn.data import DATASETS, images
from demo_rfcn.errors import BrokenFile

NAME = "000003"
XML, JPEG = f"Annotations/{NAME}.xml", f"JPEGImages/{NAME}.jpg"
SIGNALS = DATASETS["signals"]
pytestmark = pytest.mark.usefixtures("little_memory")


OTHER_FILE = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'
PARAMETER = b"<!DOCTYPE a [<!ENTITY % p \"<!ENTITY q 'r'>\"> %p;]><a>&q;</a>"
GBK = b'<?xml version="1.0" encoding="gb2312"?><annotation/>'
BROKEN = {
    "xml-missing": (None, XML, "is missing"),
    "xml-empty": (b"", XML, "is empty"),
    "xml-cut": (start(0.6), XML, "is not valid XML: "),
    "xml-latin": (replace(b"<name>", b"<name>\xe9"), XML, "is not valid XML: "),
    "xml-gbk": (GBK, XML, "is not valid XML: multi-byte encodings are not supported"),
    "xml-rot13": (GBK.replace(b"gb2312", b"rot13"), XML, "is not valid XML: "),
    "xml-other": (b"<html></html>", XML, "has <html> without <size>"),
    "xml-deep": (b"<a>" * 10**5, XML, "is not valid XML: "),
    "xml-laughs-16": (damages.laughs(12).encode("utf-16"), XML, "it declares a document type, 'a'"),
    "xml-other-file": (OTHER_FILE, XML, "it declares a document type, 'a'"),
    "xml-parameter": (PARAMETER, XML, "it declares a document type, 'a'"),
    "no-size": (element(size=None), XML, "has <annotation> without <size>"),
    "no-xmax": (element(xmax=None), XML, "has <bndbox> without <xmax>"),
    "width-text": (element(width="wide"), XML, "has 'wide' for <width>, expected a number"),
    "width-zero": (element(width="0"), XML, "gives 0 x 160 as <size>, expected at least 1 x 1"),
    "height-minus": (element(height="-9"), XML, "gives 160 x -9 as <size>, expected at least"),
    "name-empty": (element(name=" "), XML, "holds class '', expected one of disk, square"),
    "name-other": (element(name="zebra"), XML, "holds class 'zebra', expected one of disk"),
    "box-inf": (element(ymax="inf"), XML, "has 'inf' for <ymax>, expected a number"),
    "box-nan": (element(xmin="nan"), XML, "has 'nan' for <xmin>, expected a number"),
    "box-inverted": (box(90, 20, 40, 60), XML, "from (90, 20) to (40, 60), expected xmin <= xmax"),
    "box-beyond": (box(9, 2, 162, 6), XML, "to (162, 6), expected within (1, 1) to (160, 160)"),
    "box-width-and-height": (box(90, 90, 30, 40), XML, "expected xmin <= xmax and ymin <= ymax"),
    "image-missing": (None, JPEG, "is missing"),
    "image-empty": (b"", JPEG, "is empty"),
    "image-text": (b"404 Not Found\n", JPEG, "is not an image"),
    "image-half": (start(0.5), JPEG, "is truncated"),
    "image-last-byte": (start(0.9999), JPEG, "is truncated"),
    "image-lost-tail": (lambda data: start(0.5)(data) + bytes(9999), JPEG, "is truncated"),
    "image-thumbnail": (lambda data: start(0.6)(with_thumbnail(data)), JPEG, "is truncated"),
    "image-half-png": (start(0.6)(black(".png", 160, 160)), JPEG, "cannot be read: "),
    "image-size": (black(".jpg", 90, 80), JPEG, "has 90 x 80 pixels, and its annotation has 160"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_file_is_named_before_training(
    fault, folder, tmp_path, no_training, rejects, capsys
):
    change, path, words = BROKEN[fault]
    damage(folder / path, change)
    line = train_arguments(folder.parent, tmp_path / "run")
    (message,) = rejects(line, words)
    assert message.startswith(f"demo_rfcn: dataset: {folder / path} ")
    assert message.endswith("; --skip-broken continues without 1 of 8 images")
    assert not (tmp_path / "run").exists()
    with pytest.raises(no_training):
        cli.main([*line, "--skip-broken"])
    skipped = "demo_rfcn: dataset: --skip-broken leaves out 1 of 8 images\n"
    assert capsys.readouterr().err == skipped


def test_every_broken_file_is_named(folder, tmp_path, rejects):
    paths = [folder / path for path in (JPEG, XML, "JPEGImages/000005.jpg")]
    for path, change in zip(paths, (None, None, start(0.5))):
        damage(path, change)
    words = [f"demo_rfcn: dataset: {path} " for path in paths]
    messages = rejects(train_arguments(folder.parent, tmp_path / "run"), *words)
    assert messages[2].endswith("; --skip-broken continues without 2 of 8 images")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("command", ["train", "demo", "eval"])
def test_each_command_checks_the_files_that_it_will_read(
    command, split, written_signals, folder, short_run, tmp_path, no_training, rejects
):
    for name in SPLITS:
        names = [f"00000{index}" for index in range(8) if index != 3 or name == split]
        (folder / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(names))
    damage(folder / JPEG, start(0.5))
    line = [command, *train_arguments(folder.parent, tmp_path / "run")[1:]]
    if command == "eval":
        line = ["eval", "--dataset-root", str(folder.parent), "--save-prefix", str(tmp_path / "e")]
        line += ["--pretrained", str(short_run / "best.ckpt")]
    if split in {"train": ("trainval", "val"), "eval": ("test",)}.get(command, (split,)):
        rejects(line, f"{folder / JPEG} is truncated")
    else:
        with pytest.raises(no_training):
            cli.main(line)


def test_data_set_without_whole_images_is_rejected(folder, tmp_path, rejects):
    for path in (folder / "JPEGImages").iterdir():
        damage(path, start(0.5))
    line = train_arguments(folder.parent, tmp_path / "run", "--skip-broken")
    rejects(line, "leaves out 8 of 8 images", "no image of VOC2007 trainval")


@pytest.mark.parametrize(
    "change",
    [
        element(difficult=None),
        element(difficult=""),
        element(width="160.0"),
        replace(b"<difficult>", b"<pose>Left</pose><truncated>1</truncated><difficult>"),
        replace(b"<annotation>", b"\xef\xbb\xbf<annotation>"),
        replace(b"</annotation>", b"</annotation>\r\n\r\n"),
    ],
)
def test_annotations_of_other_tools(change, folder, eight_images):
    damage(folder / XML, change)
    changed, original = (
        open_dataset(SIGNALS, root, "train").labels[3] for root in (folder.parent, eight_images)
    )
    np.testing.assert_array_equal(changed, original)


def test_boxes_that_extend_beyond_the_image_by_a_pixel_are_clipped(folder):
    damage(folder / XML, box(0, 0, 161, 161))
    labels = open_dataset(SIGNALS, folder.parent, "train").labels[3]
    np.testing.assert_array_equal(labels[0, :4], [0, 0, 160, 160])


@pytest.mark.parametrize(
    "change", [lambda data: data + b"appended", with_thumbnail, damages.restarts]
)
def test_whole_images_with_further_markers(change, folder):
    damage(folder / JPEG, change)
    assert len(open_dataset(SIGNALS, folder.parent, "train")) == 8


def test_every_cut_of_a_jpeg_with_a_thumbnail_is_found(folder, tmp_path):
    data = with_thumbnail((folder / JPEG).read_bytes())
    path = tmp_path / "cut.jpg"
    path.write_bytes(data)
    assert images.check_image(path).upright == (160, 160)
    for length in range(0, len(data), 97):
        path.write_bytes(data[:length])
        with pytest.raises(BrokenFile):
            images.check_image(path)


@pytest.mark.parametrize("size", [(30_000, 30_000), (2**31 - 1, 1), (1, 2**30)])
def test_images_that_would_grow_are_rejected(size, folder, short_run, tmp_path, rejects):
    path = folder / JPEG
    damage(path, png(*size))
    words = f"{path} cannot be read: Image size ({size[0] * size[1]} pixels) exceeds limit"
    rejects(train_arguments(folder.parent, tmp_path / "run"), words)
    out = ["--pretrained", short_run / "best.ckpt", "--save-prefix", tmp_path / "out"]
    rejects(["detect", path, *out], words)


LIST = "ImageSets/Main/trainval.txt"
NAMES = b"".join(b"00000%d\n" % index for index in range(8))
NO_NAME = "names no image, expected one name per line"
NO_TEXT = "is not a list of images in UTF-8"
LISTS: dict[str, tuple] = {
    "missing": (None, LIST, "is missing; expected a VOC layout"),
    "empty": (b"", LIST, NO_NAME),
    "blank": (b"\n\r\n \n", LIST, NO_NAME),
    "zeros": (bytes(64), LIST, NO_NAME),
    "binary": (b"\xff\xd8\xff", LIST, NO_TEXT),
    "utf-16": (NAMES.decode().encode("utf-16"), LIST, NO_TEXT),
    "absent": (NAMES + b"000009\n", LIST, "000009.jpg is missing", "000009.xml is missing"),
    "twice": (NAMES + b"000001\n", LIST, "trainval.txt names 000001 more than once"),
    "images": (None, "JPEGImages", "JPEGImages is missing"),
    "labels": (None, "Annotations", "Annotations is missing"),
}


@pytest.mark.parametrize("fault", LISTS)
def test_broken_list_or_folder_is_named(fault, folder, tmp_path, rejects):
    change, path, *words = LISTS[fault]
    damage(folder / path, change)
    rejects(train_arguments(folder.parent, tmp_path / "run"), *words)


DEEP = b"[" * 10**6, b'{"a":' * 10**6, b"[" * 10**5 + b"]" * 10**5


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", *DEEP, b"1" * 10**5])
def test_broken_recipe_is_named(data, tmp_path, rejects):
    if data == b"1" * 10**5 and sys.version_info < (3, 11):
        pytest.skip("this Python reads integers of any length")
    (tmp_path / "recipe.json").write_bytes(data)
    words = f"data: {tmp_path / 'recipe.json'} is not valid JSON: "
    rejects(["data", "--dataset-root", tmp_path], words)


UNREADABLE = {
    "is truncated": start(0.5),
    "is not an image": b"text",
    "is empty": b"",
    "cannot be read: ": start(0.6)(black(".png", 160, 160)),
    "is missing": None,
}


@pytest.mark.parametrize("words", UNREADABLE)
def test_detect_checks_all_images_first(words, folder, short_run, tmp_path, rejects):
    names = [folder / "JPEGImages" / f"00000{index}.jpg" for index in range(4)]
    for path in names[1::2]:
        damage(path, UNREADABLE[words])
    out = ["--pretrained", short_run / "best.ckpt", "--save-prefix", tmp_path / "out"]
    rejects(
        ["detect", *names, *out], *(f"demo_rfcn: detect: {path} {words}" for path in names[1::2])
    )
    assert not (tmp_path / "out").exists()
