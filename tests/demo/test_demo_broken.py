# SPDX-License-Identifier: Apache-2.0
"""Broken and malicious data: every file is named, at once, soon, and without much memory."""

from __future__ import annotations

import os
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from demo_runs import open_dataset, refused, train_arguments

from demo_rfcn import cli
from demo_rfcn.data import DATASETS, images
from demo_rfcn.errors import BrokenFile

NAME = "000003"
XML, JPEG = f"Annotations/{NAME}.xml", f"JPEGImages/{NAME}.jpg"
SIGNALS = DATASETS["signals"]
pytestmark = pytest.mark.usefixtures("little_memory")


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


def change(pattern: bytes, replacement: bytes) -> Callable:
    """Return a damage: the first match of a pattern is replaced."""

    def apply(folder: Path, path: str) -> None:
        before = (folder / path).read_bytes()
        data = re.sub(pattern, replacement, before, count=1, flags=re.DOTALL)
        assert data != before, pattern
        (folder / path).write_bytes(data)

    return apply


def without(tag: str) -> Callable:
    """Return a damage: the first element of this name is missing."""
    return change(f"<{tag}>.*?</{tag}>".encode(), b"")


def element(**values: object) -> Callable:
    """Return a damage: other texts in the first elements of these names."""

    def apply(folder: Path, path: str) -> None:
        for tag, value in values.items():
            replacement = f"<{tag}>{value}</{tag}>".encode()
            change(f"<{tag}>.*?</{tag}>".encode(), replacement)(folder, path)

    return apply


def box(*sides: int) -> Callable:
    """Return a damage: another box of the first object."""
    return element(**dict(zip(("xmin", "ymin", "xmax", "ymax"), sides)))


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


def laughs(levels: int) -> str:
    """Return entities that would grow to ten to the power of the levels."""
    rows = [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "ha"}">' for n in range(levels)]
    return f"<!DOCTYPE a [{''.join(rows)}]><annotation>&e{levels - 1};</annotation>"


OTHER_FILE = b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>'
PARAMETER = b"<!DOCTYPE a [<!ENTITY % p \"<!ENTITY q 'r'>\"> %p;]><a>&q;</a>"
GBK = b'<?xml version="1.0" encoding="gb2312"?><annotation/>'
BROKEN = {
    "xml-missing": (gone, XML, "is missing"),
    "xml-empty": (content(b""), XML, "is empty"),
    "xml-cut": (start(0.6), XML, "is not whole XML: "),
    "xml-latin": (change(b"<name>", b"<name>\xe9"), XML, "is not whole XML: "),
    "xml-gbk": (content(GBK), XML, "is not whole XML: multi-byte encodings are not supported"),
    "xml-rot13": (content(GBK.replace(b"gb2312", b"rot13")), XML, "is not whole XML: "),
    "xml-other": (content(b"<html></html>"), XML, "has <html> without <size>"),
    "xml-deep": (content(b"<a>" * 10**6), XML, "is not whole XML: "),
    "xml-laughs-16": (content(laughs(12).encode("utf-16")), XML, "it declares an entity, 'e0'"),
    "xml-other-file": (content(OTHER_FILE), XML, "it declares an entity, 'x'"),
    "xml-parameter": (content(PARAMETER), XML, "it declares an entity, 'p'"),
    "no-size": (without("size"), XML, "has <annotation> without <size>"),
    "no-xmax": (without("xmax"), XML, "has <bndbox> without <xmax>"),
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
    "image-missing": (gone, JPEG, "is missing"),
    "image-empty": (content(b""), JPEG, "is empty"),
    "image-text": (content(b"404 Not Found\n"), JPEG, "is not an image"),
    "image-half": (start(0.5), JPEG, "is cut short"),
    "image-last-byte": (start(0.9999), JPEG, "is cut short"),
    "image-lost-tail": (lost_tail, JPEG, "is cut short"),
    "image-thumbnail": (half_with_thumbnail, JPEG, "is cut short"),
    "image-half-png": (half_png, JPEG, "cannot be read: "),
    "image-other-size": (other_size, JPEG, "has 120 x 80 pixels, and its annotation says 160"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_file_is_named_before_training(fault, folder, tmp_path, no_training, capsys):
    damage, path, words = BROKEN[fault]
    damage(folder, path)
    line = train_arguments(folder.parent, tmp_path / "run")
    (message,) = refused(line, capsys)
    assert message.startswith(f"demo_rfcn: dataset: {folder / path} ")
    assert words in message
    assert message.endswith("; --skip-broken continues without 1 of 8 images")
    assert not (tmp_path / "run").exists()
    with pytest.raises(no_training):
        cli.main([*line, "--skip-broken"])
    skipped = "demo_rfcn: dataset: --skip-broken leaves out 1 of 8 images\n"
    assert capsys.readouterr().err == skipped


def test_every_broken_file_is_named(folder, tmp_path, capsys):
    gone(folder, XML)
    gone(folder, JPEG)
    start(0.5)(folder, "JPEGImages/000005.jpg")
    messages = refused(train_arguments(folder.parent, tmp_path / "run"), capsys)
    assert len(messages) == 3
    for path, message in zip((JPEG, XML, "JPEGImages/000005.jpg"), messages):
        assert message.startswith(f"demo_rfcn: dataset: {folder / path} ")
    assert messages[2].endswith("; --skip-broken continues without 2 of 8 images")


@pytest.mark.parametrize("split", ["trainval", "val", "test"])
@pytest.mark.parametrize("command", ["train", "demo", "ablate", "eval"])
def test_each_command_checks_the_files_that_it_will_read(
    command, split, written_signals, folder, short_run, tmp_path, no_training, capsys
):
    for name in ("trainval", "val", "test"):
        names = [f"00000{index}" for index in range(8) if index != 3 or name == split]
        (folder / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(names))
    start(0.5)(folder, JPEG)
    line = [command, *train_arguments(folder.parent, tmp_path / "run")[1:]]
    if command == "eval":
        line = ["eval", "--dataset-root", str(folder.parent), "--save-prefix", str(tmp_path / "e")]
        line += ["--pretrained", str(short_run / "best.ckpt")]
    if split in {"train": ("trainval", "val"), "eval": ("test",)}.get(command, (split,)):
        (message,) = refused(line, capsys)
        assert f"{folder / JPEG} is cut short" in message
    else:
        with pytest.raises(no_training):
            cli.main(line)


def test_data_set_without_whole_images_is_rejected(folder, tmp_path, capsys):
    for path in (folder / "JPEGImages").iterdir():
        start(0.5)(path.parent, path.name)
    line = train_arguments(folder.parent, tmp_path / "run", "--skip-broken")
    messages = refused(line, capsys)
    assert messages[0].endswith("leaves out 8 of 8 images")
    assert "no image of VOC2007 trainval" in messages[1]


@pytest.mark.parametrize(
    "damage",
    [
        without("difficult"),
        element(difficult=""),
        element(width="160.0"),
        change(b"<difficult>", b"<pose>Left</pose><truncated>1</truncated><difficult>"),
        change(b"<annotation>", b"\xef\xbb\xbf<annotation>"),
        change(b"</annotation>", b"</annotation>\r\n\r\n"),
    ],
)
def test_annotations_of_other_tools(damage, folder, eight_images):
    damage(folder, XML)
    ours, theirs = (
        open_dataset(SIGNALS, root, "train").labels[3] for root in (folder.parent, eight_images)
    )
    np.testing.assert_array_equal(ours, theirs)


def test_boxes_that_extend_beyond_the_image_by_a_pixel_are_clipped(folder):
    box(0, 0, 161, 161)(folder, XML)
    labels = open_dataset(SIGNALS, folder.parent, "train").labels[3]
    np.testing.assert_array_equal(labels[0, :4], [0, 0, 159, 159])


@pytest.mark.parametrize(
    "make",
    [
        lambda image, data: data + b"appended",
        lambda image, data: with_thumbnail(data),
        lambda image, data: cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_RST_INTERVAL, 4])[1],
    ],
)
def test_whole_images_with_further_markers(make, folder):
    path = folder / JPEG
    path.write_bytes(make(cv2.imread(str(path)), path.read_bytes()))
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


def png(width: int, height: int) -> bytes:
    """Return a PNG of black pixels, a thousandth of their size; rows beyond 30,000 are missing."""

    def part(name: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    row, packer = bytes(1 + min(width + 7, 30_000) // 8), zlib.compressobj(9)
    rows = b"".join(packer.compress(row) for _ in range(min(height, 30_000)))
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    data = part(b"IHDR", head) + part(b"IDAT", rows + packer.flush()) + part(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


@pytest.mark.parametrize("size", [(30_000, 30_000), (2**31 - 1, 1), (1, 2**30)])
def test_images_that_would_grow_are_rejected(size, folder, short_run, tmp_path, capsys):
    path = folder / JPEG
    path.write_bytes(png(*size))
    words = f"{path} cannot be read: Image size ({size[0] * size[1]} pixels) exceeds limit"
    assert words in refused(train_arguments(folder.parent, tmp_path / "run"), capsys)[0]
    out = ["--pretrained", short_run / "best.ckpt", "--save-prefix", tmp_path / "out"]
    assert words in refused(["detect", path, *out], capsys)[0]


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
def test_broken_list_or_folder_is_named(fault, folder, tmp_path, capsys):
    damage, words = LISTS[fault]
    damage(folder, LIST)
    messages = refused(train_arguments(folder.parent, tmp_path / "run"), capsys)
    assert words in messages[0]
    assert len(messages) == (2 if fault == "absent" else 1)  # its annotation is missing as well


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
    for path in (XML, JPEG):
        (folder / path).rename(folder / path.replace(NAME, "on the road"))
    content(data.replace(NAME.encode(), b"on the road"))(folder, LIST)
    assert len(open_dataset(SIGNALS, folder.parent, "train")) == 8


DEEP = b"[" * 10**6, b'{"a":' * 10**6, b"[" * 10**5 + b"]" * 10**5


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", *DEEP, b"1" * 10**5])
def test_broken_recipe_is_named(data, tmp_path, capsys):
    if data == b"1" * 10**5 and sys.version_info < (3, 11):
        pytest.skip("this Python reads integers of any length")
    (tmp_path / "recipe.json").write_bytes(data)
    (message,) = refused(["data", "--dataset-root", tmp_path], capsys)
    assert f"data: {tmp_path / 'recipe.json'} is not whole JSON: " in message


DAMAGES = [start(0.5), content(b"text"), content(b""), half_png, gone]
WORDS = ["is cut short", "is not an image", "is empty", "cannot be read: ", "is missing"]


@pytest.mark.parametrize(("damage", "words"), [*zip(DAMAGES, WORDS)], ids=WORDS)
def test_detect_checks_all_images_first(damage, words, folder, short_run, tmp_path, capsys):
    damage(folder, JPEG)
    names = [folder / "JPEGImages" / f"00000{index}.jpg" for index in range(4)]
    out = ["--pretrained", short_run / "best.ckpt", "--save-prefix", tmp_path / "out"]
    damage(folder, "JPEGImages/000001.jpg")
    messages = refused(["detect", *names, *out], capsys)
    for path, message in zip((names[1], names[3]), messages):
        assert message.startswith(f"demo_rfcn: detect: {path} {words}")
    assert len(messages) == 2 and not (tmp_path / "out").exists()
