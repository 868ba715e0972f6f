# SPDX-License-Identifier: Apache-2.0
"""Damages of files: functions of their content; and a limit of their size."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import resource
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np


def damage(path: Path, change: bytes | Callable | None) -> None:
    """Replace the content of a file, by a function of it if `change` is one; None removes it."""
    if change is None:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        return
    before = path.read_bytes()
    after = change(before) if callable(change) else change
    assert after != before
    path.write_bytes(after)


def start(share: float) -> Callable:
    """Return a damage: the rest of a file is lost."""
    return lambda data: data[: int(share * len(data))]


def replace(pattern: bytes, replacement: bytes) -> Callable:
    """Return a damage: the first match of a pattern is replaced."""

    def apply(data: bytes) -> bytes:
        changed = re.sub(pattern, replacement, data, count=1, flags=re.DOTALL)
        assert changed != data, pattern
        return changed

    return apply


def element(**values: object) -> Callable:
    """Return a damage: other texts in the first elements of these names; None removes one."""

    def apply(data: bytes) -> bytes:
        for tag, value in values.items():
            other = "" if value is None else f"<{tag}>{value}</{tag}>"
            data = replace(f"<{tag}>.*?</{tag}>".encode(), other.encode())(data)
        return data

    return apply


def box(*sides: int) -> Callable:
    """Return a damage: another box of the first object."""
    return element(**dict(zip(("xmin", "ymin", "xmax", "ymax"), sides)))


def black(suffix: str, width: int, height: int) -> bytes:
    """Return a coded black image."""
    return cv2.imencode(suffix, np.zeros((height, width, 3), np.uint8))[1].tobytes()


def with_thumbnail(data: bytes) -> bytes:
    """Put a whole small JPEG into the header of another."""
    small = black(".jpg", 8, 8)
    return data[:2] + b"\xff\xe1" + (len(small) + 2).to_bytes(2, "big") + small + data[2:]


def laughs(levels: int) -> str:
    """Return entities that would grow to ten to the power of the levels."""
    rows = [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "ha"}">' for n in range(levels)]
    return f"<!DOCTYPE a [{''.join(rows)}]><annotation>&e{levels - 1};</annotation>"


def restarts(data: bytes) -> bytes:
    """Code a JPEG again with restart markers."""
    image = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR))
    return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_RST_INTERVAL, 4])[1].tobytes()


def png(width: int, height: int) -> bytes:
    """Return a PNG whose header has these sides; it has one pixel."""
    data = black(".png", 1, 1)
    head = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + data[24:29]
    return data[:12] + head + zlib.crc32(head).to_bytes(4, "big") + data[33:]


def entry(part: str, place: int = 0, **fields) -> Callable:
    """Return a damage: other fields in one entry of COCO's annotation file; None removes one."""

    def apply(content: dict) -> None:
        content[part][place].update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del content[part][place][name]

    return apply


def edit(path: Path, damage: Callable) -> None:
    """Damage the content of a JSON file."""
    before = path.read_text()
    stored = json.loads(before)
    damage(stored)
    path.write_text(json.dumps(stored))
    assert path.read_text() != before


class _Gadget:
    """Pickles as a call that creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.mark}",)


def put_pickle(path: Path, whole: Path, place: str, mark: Path) -> None:
    """Write a checkpoint with a pickle in a place, which creates a file when it is loaded."""
    if place == "whole file":
        path.write_bytes(pickle.dumps(_Gadget(mark)))
        return
    stored = io.BytesIO()
    np.save(stored, np.array([_Gadget(mark)], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(whole) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**entries, f"{place}.npy": stored.getvalue()}.items():
            archive.writestr(name, data)


def change_checkpoint(path: Path, whole: Path, name: str, value: Any) -> None:
    """Write a checkpoint that differs from another one in a value."""
    with np.load(whole, allow_pickle=False) as stored:
        arrays = dict(stored)
    notes = json.loads(arrays["notes"].tobytes())
    target: Any = next((part for part in (arrays, notes["config"], notes) if name in part), arrays)
    before: Any = target.get(name)
    if value is None:
        del target[name]
    else:
        target[name] = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
        assert not np.array_equal(before, target[name])
    if name != "notes":
        arrays["notes"] = np.frombuffer(json.dumps(notes).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, **arrays)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: writing fails halfway, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
