# SPDX-License-Identifier: Apache-2.0
"""Files of symbols and parameters.

Each error is one sentence that begins with the caller: OSError if a file cannot be read or written,
ValueError if its content is of another kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any, Iterator, Union

import mxnet as mx

from .bridge.nodes import parsed

#: In signatures: the path of a file.
PathLike = Union[str, "os.PathLike[str]"]


def sentence(reason: str) -> str:
    """MXNet's message, without its place in MXNet's source."""
    reason = re.sub(r"\[\d\d:\d\d:\d\d\] \S+?:\d+: |MXNetError: ", "", reason)
    return " ".join(reason.split())


def _check_there(caller: str, path: PathLike, kind: str) -> None:
    if os.path.isdir(path):
        raise IsADirectoryError(f"{caller}: expected a {kind}, but {path} is a folder")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{caller}: expected a {kind}, but there is no file {path}")


def _read_text(caller: str, path: PathLike, kind: str) -> str:
    _check_there(caller, path, kind)
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{caller}: {os.fspath(path)} is not a {kind}") from None
    except OSError as error:
        raise OSError(f"{caller}: {path} cannot be read: {error.strerror}") from None


def read_symbol(caller: str, path: PathLike) -> str:
    """The text of a symbol file. Its operators need not be registered."""
    text = _read_text(caller, path, "symbol file")
    try:
        content = parsed(text)
        nodes = content["nodes"]
        entries = [entry for node in nodes for entry in node["inputs"]] + content["heads"]
        is_symbol = all(isinstance(node[key], str) for node in nodes for key in ("op", "name"))
        is_symbol &= all(0 <= entry[0] < len(nodes) and entry[1] >= 0 for entry in entries)
    except (ValueError, LookupError, TypeError, RecursionError):
        is_symbol = False
    if not is_symbol:
        raise ValueError(f"{caller}: {os.fspath(path)} is not a symbol file")
    return text


def load_symbol(caller: str, text: str) -> mx.sym.Symbol:
    """The symbol that the text of a file describes. An error names the node."""
    try:
        return mx.sym.load_json(text)
    except mx.MXNetError as error:
        found = str(error).strip()
        # Between an unknown attribute and the node, MXNet lists all arguments.
        reason = sentence(re.split(r", Possible Arguments:|, in operator ", found)[0])
        node = re.search(r', in operator (?P<op>\w+)\(name="(?P<name>.*?)"', found)
        node = node or re.search(r"Failed loading Op (?P<name>.*?) of type (?P<op>\w+)", found)
        where = f"node {node['name']} ({node['op']})" if node else "the model cannot be loaded"
        raise ValueError(f"{caller}: {where}: {reason}") from None


def read_parameters(caller: str, path: PathLike) -> dict[str, mx.nd.NDArray]:
    """The arrays of a .params file by name."""
    _check_there(caller, path, "file of parameters")
    try:
        arrays = mx.nd.load(os.fspath(path))
    except mx.MXNetError:
        arrays = None
    if not isinstance(arrays, dict):
        raise ValueError(f"{caller}: {os.fspath(path)} is not a whole file of parameters")
    return arrays


def read_json(caller: str, path: PathLike) -> Any:
    text = _read_text(caller, path, "JSON file")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{caller}: {os.fspath(path)} is not a JSON file") from None


def target(caller: str, path: Any) -> Path:
    """Check the path of a file to be written, before any work is done."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{caller}: expected a file, got {path!r}")
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"{caller}: {file} is a folder")
    if file.exists() and not file.is_file():
        raise OSError(f"{caller}: expected a file, but {file} is a device")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"{caller}: there is no folder {file.parent}")
    return file


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield the path of a part beside a file, which takes its place at the end.

    If the body fails, an existing file stays as it is.
    """
    part = file.with_name(f"{file.stem}.part{file.suffix}")
    try:
        yield part
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)
