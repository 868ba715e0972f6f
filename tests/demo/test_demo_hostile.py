# SPDX-License-Identifier: Apache-2.0
"""Files made to harm: each is refused in a sentence, soon, and without much memory."""

from __future__ import annotations

import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from demo_runs import REPOSITORY, train_arguments

from demo_rfcn import cli

NAME = "000003"
#: More than any of these files may take, and far less than it asks for.
MEMORY = 2**29


@pytest.fixture(autouse=True)
def little_memory() -> Any:
    """See that no test takes more than that for a file that it should refuse."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY / 2**10


@pytest.fixture
def folder(eight_images, tmp_path) -> Path:
    """A copy of eight images in VOC layout, to be damaged."""
    return Path(shutil.copytree(eight_images / "VOC2007", tmp_path / "data" / "VOC2007"))


def refused(line: list, capsys: Any) -> str:
    """Return the sentence of a command that is refused."""
    capsys.readouterr()
    assert cli.main(line) == 2
    (message,) = capsys.readouterr().err.strip().splitlines()
    return message


def laughs(levels: int) -> str:
    """Return entities that would grow to ten to the power of the levels."""
    entities = ['<!ENTITY e0 "ha">']
    for level in range(1, levels):
        entities.append(f'<!ENTITY e{level} "{f"&e{level - 1};" * 10}">')
    return f"<!DOCTYPE a [{''.join(entities)}]><annotation>&e{levels - 1};</annotation>"


ANNOTATIONS = {
    "laughs": (laughs(12).encode(), "it declares an entity, 'e0'"),
    "laughs in UTF-16": (laughs(12).encode("utf-16"), "it declares an entity, 'e0'"),
    "quadratic": (
        b'<!DOCTYPE a [<!ENTITY x "' + b"y" * 10**5 + b'">]><a>' + b"&x;" * 10**4 + b"</a>",
        "it declares an entity, 'x'",
    ),
    "another file": (
        b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        "it declares an entity, 'x'",
    ),
    "parameters": (
        b"<!DOCTYPE a [<!ENTITY % p \"<!ENTITY q 'r'>\"> %p;]><a>&q;</a>",
        "it declares an entity, 'p'",
    ),
    "deep": (b"<a>" * 10**6, "is not whole XML: "),
    "deep and whole": (b"<a>" * 10**5 + b"</a>" * 10**5, "has <a> without <size>"),
    "encoding": (b'<?xml version="1.0" encoding="rot13"?><a/>', "is not whole XML: "),
}


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_annotations_that_grow(name, folder, tmp_path, capsys):
    data, words = ANNOTATIONS[name]
    path = folder / "Annotations" / f"{NAME}.xml"
    path.write_bytes(data)
    message = refused(train_arguments(folder.parent, tmp_path / "run"), capsys)
    assert message.startswith(f"demo_rfcn: dataset: {path} ") and words in message


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
def test_images_that_grow(size, folder, short_run, tmp_path, capsys):
    path = folder / "JPEGImages" / f"{NAME}.jpg"
    path.write_bytes(png(*size))
    words = f"{path} cannot be read: Image size ({size[0] * size[1]} pixels) exceeds limit"
    assert words in refused(train_arguments(folder.parent, tmp_path / "run"), capsys)
    out = ["--pretrained", str(short_run / "best.ckpt"), "--save-prefix", str(tmp_path / "out")]
    assert words in refused(["detect", str(path), *out], capsys)


@pytest.mark.parametrize(
    "data", [b"[" * 10**6, b'{"a":' * 10**6, b"[" * 10**5 + b"]" * 10**5, b"1" * 10**5]
)
def test_deep_or_long_json(data, tmp_path, capsys):
    (tmp_path / "recipe.json").write_bytes(data)
    line = ["data", "--dataset-root", str(tmp_path)]
    if data == b"1" * 10**5 and sys.version_info < (3, 11):
        pytest.skip("this Python reads integers of any length")
    assert f"data: {tmp_path / 'recipe.json'} is not whole JSON: " in refused(line, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["checkpoints", "symbols"])
def test_damaged_files_of_mxnet(kind, tmp_path):
    program = str(REPOSITORY / "tests" / "scripts" / "damaged_files.py")
    made = subprocess.run(
        [sys.executable, "-W", "ignore", program, kind, "150", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr[-2000:]
    found = re.search(r"read (\d+), refused (\d+)", made.stdout)
    assert found and int(found[2]) > 60


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is not a parameter file of MXNet"),
        (b"404 Not Found", "it is not a parameter file of MXNet"),
        (b"PK\x03\x04" * 99, "it is not a parameter file of MXNet"),
        (struct.pack("<4Q", 0x112, 0, 2**60, 0), "it is not a parameter file of MXNet"),
    ],
)
def test_files_that_hold_no_pretrained_weights(data, words, eight_images, tmp_path, capsys):
    path = tmp_path / "resnet18.params"
    path.write_bytes(data)
    line = train_arguments(eight_images, tmp_path / "run", "--network", "resnet18_v1b")
    message = refused([*line, "--pretrained-base", str(path)], capsys)
    assert f"--pretrained-base {path} holds no 'resnet18_v1b' of GluonCV: {words}" in message
