# SPDX-License-Identifier: Apache-2.0
"""Reads files of symbols and parameters, and checks those that are written.

Each error is one sentence that begins with the caller: OSError if a file cannot be read or written,
ValueError if its content is not of the expected type.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import stat
import tempfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Iterator, Mapping, Union

import mxnet as mx
import numpy as np

from . import parameters
from .bridge.symbol_json import parse_symbol, symbol_content
from .replacement import through_links

#: In signatures: the path of a file.
PathLike = Union[str, "os.PathLike[str]"]


def sentence(reason: str) -> str:
    """MXNet's message in one line, without the location in MXNet's source."""
    place = (
        r'Traceback \(most recent call last\):\s+File "\S+", line \d+|\[\d\d:\d\d:\d\d\] \S+?:\d+: '
    )
    reason = re.sub(f"{place}|MXNetError: ", "", reason)
    return " ".join(reason.split())


def _check_exists(caller: str, path: PathLike, kind: str) -> None:
    if os.path.isdir(path):
        raise IsADirectoryError(f"{caller}: expected a {kind}, but {path} is a folder")
    if not os.path.exists(path):
        raise FileNotFoundError(f"{caller}: expected a {kind}, but there is no file {path}")
    mode = os.stat(path).st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):  # some devices never end
        raise OSError(f"{caller}: expected a {kind}, but {path} is a device")


def _read_text(caller: str, path: PathLike, kind: str) -> str:
    _check_exists(caller, path, kind)
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{caller}: {os.fspath(path)} is not a {kind}") from None
    except OSError as error:
        raise OSError(f"{caller}: {path} cannot be read: {error.strerror}") from None


class SymbolText(str):
    """The content of a symbol file, for functions that take the path of one.

    A pipe can be read only once.
    """


def read_symbol(caller: str, path: PathLike) -> SymbolText:
    """The text of a symbol file. Its operators need not be registered."""
    if isinstance(path, SymbolText):
        return path
    text = _read_text(caller, path, "symbol file")
    try:
        content = parse_symbol(text)
        nodes = content["nodes"]
        entries = [entry for node in nodes for entry in node["inputs"]] + content["heads"]
        is_symbol = all(isinstance(node[key], str) for node in nodes for key in ("op", "name"))
        is_symbol &= all(0 <= entry[0] < len(nodes) and entry[1] >= 0 for entry in entries)
    except (ValueError, LookupError, TypeError, RecursionError):
        is_symbol = False
    if not is_symbol:
        raise ValueError(f"{caller}: {os.fspath(path)} is not a symbol file")
    return SymbolText(text)


def load_symbol(caller: str, text: str) -> mx.sym.Symbol:
    """The symbol of a file's text; an error names the node."""
    try:
        symbol = mx.sym.load_json(text)
        check_outputs(caller, symbol)
    except mx.MXNetError as error:
        found = str(error).strip()
        unknown = re.search(r"Cannot find custom operator (\S+)", found)
        if unknown:
            raise ValueError(_unknown_custom(caller, text, unknown[1])) from None
        # MXNet's message lists all arguments between an unknown attribute and the node.
        reason = sentence(re.split(r", Possible Arguments:|, in operator ", found)[0])
        node = re.search(r', in operator (?P<op>\w+)\(name="(?P<name>.*?)"', found)
        node = node or re.search(r"Failed loading Op (?P<name>.*?) of type (?P<op>\w+)", found)
        where = f"node {node['name']} ({node['op']})" if node else "the model cannot be loaded"
        raise ValueError(f"{caller}: {where}: {reason}") from None
    return symbol


def check_outputs(caller: str, symbol: mx.sym.Symbol) -> None:
    """Raise ValueError if an output is read that its node does not have.

    MXNet does not check this, and reads out of bounds.
    """
    internals = symbol.get_internals()
    content = symbol_content(mx.sym.Group([internals, symbol]))
    nodes, count = content["nodes"], len(internals.list_outputs())
    outputs = {tuple(head[:2]) for head in content["heads"][:count]}
    read = [entry for node in nodes for entry in node["inputs"]] + content["heads"][count:]
    for number, output, *_ in read:
        if (number, output) not in outputs:
            node = nodes[number]
            output_count = sum(place == number for place, _ in outputs)
            raise ValueError(
                f"{caller}: node {node['name']} ({node['op']}): the model reads output {output}, "
                f"but the node has {output_count}"
            )


def _unknown_custom(caller: str, text: str, op_type: str) -> str:
    """The error message for a Custom operator that is not registered."""
    names = [
        node["name"]
        for node in parse_symbol(text)["nodes"]
        if (node.get("attrs") or node.get("attr") or node.get("param") or {}).get("op_type")
        == op_type
    ]
    where = f"node {names[0]} (Custom)" if names else "the model"
    return (
        f"{caller}: {where} is the Custom operator {op_type}, which is not registered; import the "
        "Python module that registers it, and call gluon_roi.optimize there"
    )


def read_arrays(caller: str, path: PathLike) -> dict[str, np.ndarray]:
    """The arrays of a file of numpy.savez by name."""
    kind = "file of numpy.savez"
    _check_exists(caller, path, kind)
    try:
        content = io.BytesIO(Path(path).read_bytes())  # a pipe cannot be read twice
        with np.load(content, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (ValueError, AttributeError, EOFError, zipfile.BadZipFile, TypeError):
        raise ValueError(f"{caller}: {os.fspath(path)} is not a {kind}") from None
    except OSError as error:
        raise OSError(f"{caller}: {path} cannot be read: {error.strerror or error}") from None


def read_parameters(caller: str, path: PathLike) -> dict[str, mx.nd.NDArray]:
    """The arrays of a .params file by name."""
    _check_exists(caller, path, "file of parameters")
    arrays = None
    try:
        with open(path, "rb") as stream, _seekable(stream) as content:
            is_numpy = parameters.check(content)
            # MXNet treats the path "stdin" and names with :// differently.
            is_copy = content is not stream
            file = f"/proc/self/fd/{content.fileno()}" if is_copy else os.path.abspath(path)
            with mx.util.np_shape(is_numpy or mx.util.is_np_shape()):
                arrays = mx.nd.load(file) or {}
    except OSError as error:
        raise OSError(f"{caller}: {path} cannot be read: {error.strerror}") from None
    except (mx.MXNetError, ValueError):
        pass
    if not isinstance(arrays, dict):
        raise ValueError(f"{caller}: {os.fspath(path)} is not a complete file of parameters")
    return arrays


@contextlib.contextmanager
def _seekable(stream: BinaryIO) -> Iterator[Any]:
    """Context manager: a stream, or a temporary copy of it if it is a pipe."""
    if stream.seekable():
        yield stream
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(stream, copy)
        copy.seek(0)
        yield copy


@contextlib.contextmanager
def saved_by_mxnet(params: Path, symbol: Path | None = None) -> Iterator[None]:
    """Context manager: raise OSError if MXNet does not write these files completely in the block.

    MXNet does not check whether the last bytes of a file reached the disk.
    """
    try:
        yield
        with params.open("rb") as stream:
            parameters.check(stream)
        if symbol is not None:
            read_symbol("", symbol)
    except (mx.MXNetError, ValueError) as error:
        for file in filter(None, (params, symbol)):
            with file.open("ab") as stream:
                stream.write(bytes(2**16))  # Python raises the reason
        if isinstance(error, mx.MXNetError):
            raise
        raise OSError("MXNet has written only a part of it") from error


def read_json(caller: str, path: PathLike) -> Any:
    text = _read_text(caller, path, "JSON file")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{caller}: {os.fspath(path)} is not a JSON file") from None


def target(caller: str, path: Any) -> Path:
    """Check the path of a file to be written, before the work begins."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str) or "\0" in text:
        raise TypeError(f"{caller}: expected a file, got {path!r}")
    if text.endswith(os.sep):
        raise IsADirectoryError(f"{caller}: expected a file, got the folder {text}")
    file = Path(path)
    try:
        file.stat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise OSError(f"{caller}: {text} cannot be written: {error.strerror}") from error
    if file.is_dir():
        raise IsADirectoryError(f"{caller}: {file} is a folder")
    if file.exists() and not file.is_file():
        raise OSError(f"{caller}: expected a file, but {file} is a device")
    if file.exists():
        try:
            with file.open("r+b"):  # it would be replaced even if it were write-protected
                pass
        except OSError as error:
            raise OSError(f"{caller}: {file} cannot be written: {error.strerror}") from error
    target_path = through_links(file)
    if target_path.is_symlink():
        raise OSError(f"{caller}: {file} is a symbolic link that leads to itself")
    if not target_path.parent.is_dir():
        folder = target_path.parent if file.is_symlink() else file.parent
        raise FileNotFoundError(f"{caller}: there is no folder {folder}")
    return file


def check_other_file(caller: str, path: PathLike, inputs: Mapping[str, Any]) -> None:
    """Raise ValueError if the file to be written is one of the files to be read.

    Parameters
    ----------
    inputs : dict
        Argument -> the path of a file, or any other value, which is ignored.
    """
    for argument, source in inputs.items():
        is_path = isinstance(source, (str, os.PathLike))
        both = is_path and os.path.exists(source) and os.path.exists(path)
        # Links and different spellings of a path may refer to the same file.
        if both and os.path.samefile(source, path):
            raise ValueError(f"{caller}: expected another file than {argument}, got {path}")
