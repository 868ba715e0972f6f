# SPDX-License-Identifier: Apache-2.0
"""Reading and writing files, completely or not at all; errors are one sentence."""

from __future__ import annotations

import errno
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gluon_roi import replacement

from .errors import InputError, OutputError


def read_json(path: Path, topic: str) -> Any:
    """Read a JSON file in UTF-8; raise InputError, which begins with the topic, if it is none."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{topic}: {path} is not valid JSON: {error}") from error


@contextmanager
def writing(target: Path | str) -> Iterator[None]:
    """Turn the errors of writing a target into one sentence."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        # The messages of gluon_roi.replacement repeat the message of their cause.
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        reason = cause.strerror or cause
        if cause.errno in (errno.EEXIST, errno.ENOTDIR):
            reason = "a part of the path is a file"
        raise OutputError(f"cannot write {target}: {reason}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path of the same name, and move the file to its path when it is complete.

    On failure the previous file stays, and nothing else remains.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacement.replacing(f"cannot write {path}", path) as part:
            yield part


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON."""
    with replacing(path) as part:
        part.write_text(json.dumps(value, indent=2) + "\n")


@contextmanager
def replacing_all(folder: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, and move its files into a folder when all are complete.

    On failure the previous files stay, and nothing else remains.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with replacement.Replacement() as files:
            work = files.folder(folder)
            try:
                yield work
            except OutputError as error:  # names the file as the user will know it
                raise OutputError(str(error).replace(str(work), str(folder))) from error
            for path in sorted(work.iterdir()):  # the summary of an evaluation is last
                files.add(f"cannot write {folder / path.name}", path, folder / path.name)


def is_json_of(path: Path, *keys: str) -> bool:
    """Return whether a file holds a JSON object that has these keys, as its writer gave it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and set(keys) <= content.keys()


def prepare(folder: Path) -> None:
    """Make a folder, and refuse it before the work is done if nothing can be written there."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**12))
