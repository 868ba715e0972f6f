# SPDX-License-Identifier: Apache-2.0
"""Writes the file of a model, and a second file for the weights of a large model."""

from __future__ import annotations

import glob
import os
import re
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from ..replacement import Replacement, locked, through_links
from .graph import PRODUCER

#: Larger weights, in bytes, have a second file, because protobuf messages are limited to 2**31.
LIMIT = 2_000_000_000
#: Alignment of tensors in the file of weights, so that runtimes can map it to memory.
_PAGE = 4096
_CALLER = "onnx.export: path"


def save(model: onnx.ModelProto, weights: dict[str, np.ndarray], file: Path) -> None:
    """Write the model with its weights; after an error, existing files are unchanged.

    The weights of a large model are written to a file with a new name, so that a process that reads
    the earlier model does not read the new weights. The earlier weights are removed at the end.
    """
    place = through_links(file)
    with locked(place.parent):
        old = _data_files(place)
        with Replacement() as replacement:
            if sum(value.nbytes for value in weights.values()) > LIMIT:
                data = _new_data_file(place, old)
                failure = f"{_CALLER}: the weights of {file} cannot be written to {data}"
                with replacement.part(failure, data) as part, part.open("wb") as stream:
                    for name, value in weights.items():
                        model.graph.initializer.append(_external(name, value, stream, data))
            else:
                model.graph.initializer.extend(
                    onnx.numpy_helper.from_array(value, name) for name, value in weights.items()
                )
            failure = f"{_CALLER}: the model cannot be written to {file}"
            with replacement.part(failure, file) as part:
                part.write_bytes(model.SerializeToString())
        for path in old:
            path.unlink(missing_ok=True)


def _data_files(file: Path) -> list[Path]:
    """The files of weights that belong to an earlier export to this file."""
    name = re.escape(file.name)
    found = [
        path
        for path in file.parent.glob(f"{glob.escape(file.name)}.*")
        if re.fullmatch(rf"{name}(\.[0-9a-f]{{8}})?\.data", path.name)
    ]
    if not found or not file.is_file():
        return []
    try:
        model = onnx.load_model_from_string(file.read_bytes())
    except DecodeError:  # not a model
        return []
    if model.producer_name != PRODUCER:
        return []
    entries = [entry for tensor in model.graph.initializer for entry in tensor.external_data]
    locations = {entry.value for entry in entries if entry.key == "location"}
    return [path for path in found if path.name in locations]


def _new_data_file(file: Path, old: list[Path]) -> Path:
    """The file for the weights of a model; `old` are the files of an earlier export."""
    data = file.with_name(f"{file.name}.data")
    if data in old or not os.path.lexists(data):
        return file.with_name(f"{file.name}.{secrets.token_hex(4)}.data") if old else data
    raise FileExistsError(
        f"{_CALLER}: the weights would be written to {data}, but another file has this name"
    )


def _external(name: str, value: np.ndarray, stream: Any, file: Path) -> onnx.TensorProto:
    """Write a weight to the stream of a file, and return the tensor that refers to it."""
    stream.seek(-(-stream.tell() // _PAGE) * _PAGE)
    begin = stream.tell()
    stream.write(np.ascontiguousarray(value).data)
    tensor = onnx.TensorProto(
        name=name,
        dims=value.shape,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(value.dtype),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    place = {"location": file.name, "offset": begin, "length": value.nbytes}
    for key, number in place.items():
        tensor.external_data.add(key=key, value=str(number))
    return tensor
