# SPDX-License-Identifier: Apache-2.0
"""The file of a model, and a second one for the weights of a large model."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..files import replacing

#: Weights of more bytes have their own file: protobuf, in which ONNX writes models, ends at 2**31.
LIMIT = 2_000_000_000
#: Where a tensor may begin in the file of weights, so that runtimes can map it to memory.
_PAGE = 4096


def save(model: onnx.ModelProto, weights: dict[str, np.ndarray], file: Path) -> None:
    """Write the whole model with its weights, or leave existing files as they are."""
    with contextlib.ExitStack() as parts:
        part = parts.enter_context(replacing(file))
        if sum(value.nbytes for value in weights.values()) > LIMIT:
            part_of_weights = parts.enter_context(replacing(file.with_name(_data(file))))
            with open(part_of_weights, "wb") as data:
                for name, value in weights.items():
                    model.graph.initializer.append(_external(name, value, data, file))
        else:
            model.graph.initializer.extend(
                onnx.numpy_helper.from_array(value, name) for name, value in weights.items()
            )
        onnx.save(model, str(part))


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
