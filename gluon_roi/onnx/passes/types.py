# SPDX-License-Identifier: Apache-2.0
"""Types and shapes of the tensors of a graph, as onnx infers them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper

from ..graph import OnnxGraph

#: Operators that only change the shape, and keep the order of the elements.
RESHAPES = {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}


class TensorType(NamedTuple):
    """Type and shape of a tensor, with None for dynamic sizes."""

    dtype: np.dtype
    shape: tuple


def tensor_types(model: onnx.ModelProto) -> dict[str, TensorType]:
    """The tensors of a model whose shapes have been inferred."""
    graph, found = model.graph, {}
    for value in (*graph.input, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            shape = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            found[value.name] = TensorType(np.dtype(dtype), tuple(shape))
    return found


def type_of(graph: OnnxGraph, types: dict[str, TensorType], tensor: str) -> TensorType | None:
    """Type and shape of a tensor, which may be a constant; None if unknown."""
    value = graph.constants.get(tensor)
    return types.get(tensor) if value is None else TensorType(value.dtype, value.shape)


def cast_type(cast: onnx.NodeProto) -> np.dtype:
    """The type that a Cast converts to."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(helper.get_node_attr_value(cast, "to")))
