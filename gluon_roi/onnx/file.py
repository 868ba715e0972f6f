# SPDX-License-Identifier: Apache-2.0
"""The file of a model, and a second one for the weights of a large model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx

#: Weights of more bytes have their own file: protobuf, in which ONNX writes models, ends at 2**31.
LIMIT = 2_000_000_000
#: Where a tensor may begin in the file of weights, so that runtimes can map it to memory.
_PAGE = 4096


def file_of(path: Any) -> Path:
    """Check the path of the file before any work is done."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"onnx.export: path: expected a file, got {path!r}")
    file = Path(path)
    if file.is_dir():
        raise IsADirectoryError(f"onnx.export: path: {file} is a folder")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"onnx.export: path: there is no folder {file.parent}")
    return file


def save(model: onnx.ModelProto, weights: dict[str, np.ndarray], file: Path) -> None:
    """Write the whole model with its weights, or leave existing files as they are."""
    part = file.with_name(f"{file.stem}.part{file.suffix}")  # onnx.save goes by the suffix
    part_of_weights = file.with_name(f"{_data(file)}.part")
    apart = sum(value.nbytes for value in weights.values()) > LIMIT
    try:
        if apart:
            with open(part_of_weights, "wb") as data:
                for name, value in weights.items():
                    model.graph.initializer.append(_external(name, value, data, file))
        else:
            model.graph.initializer.extend(
                onnx.numpy_helper.from_array(value, name) for name, value in weights.items()
            )
        onnx.save(model, str(part))
        if apart:
            part_of_weights.replace(file.with_name(_data(file)))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
        part_of_weights.unlink(missing_ok=True)


def _data(file: Path) -> str:
    """The name of the file of weights."""
    return f"{file.name}.data"


def _external(name: str, value: np.ndarray, data: Any, file: Path) -> onnx.TensorProto:
    """Write a weight, and return the tensor that refers to it."""
    data.seek(-(-data.tell() // _PAGE) * _PAGE)
    begin = data.tell()
    data.write(np.ascontiguousarray(value).data)
    tensor = onnx.TensorProto(
        name=name,
        dims=value.shape,
        data_type=onnx.helper.np_dtype_to_tensor_dtype(value.dtype),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    place = {"location": _data(file), "offset": begin, "length": value.nbytes}
    for key, number in place.items():
        tensor.external_data.add(key=key, value=str(number))
    return tensor
