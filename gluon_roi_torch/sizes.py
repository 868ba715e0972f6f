# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of sizes: ONNX's operators on the shapes of tensors, as Python numbers.

A size is a NumPy array of objects, so that torch.export follows free sizes (``torch.SymInt``)
through it; as tensors, sizes would be data, on which no other shape may depend.
"""

from __future__ import annotations

import operator
from typing import Any, Callable

import numpy as np
import torch


def shape(data: torch.Tensor, *, start: int = 0, end: int | None = None) -> np.ndarray:
    """The sizes of the axes [start, end)."""
    return np.array(data.shape[start:end], dtype=object)


def numbers(value: Any) -> Any:
    """A size or a tensor as a Python number, or as a list of them."""
    return value.tolist() if hasattr(value, "tolist") else value


def tensor(size: Any, like: torch.Tensor | None) -> torch.Tensor:
    """A size as a tensor of int64, on the device of `like`."""
    array = _array(size)
    device = None if like is None else like.device
    values = [torch.scalar_tensor(n, dtype=torch.int64, device=device) for n in array.flat]
    if not values:
        return torch.empty(array.shape, dtype=torch.int64, device=device)
    return torch.stack(values).reshape(array.shape)


def _divide(a: Any, b: Any) -> Any:
    return a // b if a >= 0 else -(-a // b)  # ONNX rounds towards zero


_add = np.frompyfunc(operator.add, 2, 1)
_subtract = np.frompyfunc(operator.sub, 2, 1)
_multiply = np.frompyfunc(operator.mul, 2, 1)
_quotient = np.frompyfunc(_divide, 2, 1)
_minimum = np.frompyfunc(torch.sym_min, 2, 1)
_maximum = np.frompyfunc(torch.sym_max, 2, 1)


def add(a: Any, b: Any) -> Any:
    return _add(a, b)


def subtract(a: Any, b: Any) -> Any:
    return _subtract(a, b)


def multiply(a: Any, b: Any) -> Any:
    return _multiply(a, b)


def divide(a: Any, b: Any) -> Any:
    return _quotient(a, b)


def minimum(a: Any, b: Any) -> Any:
    return _minimum(a, b)


def maximum(a: Any, b: Any) -> Any:
    return _maximum(a, b)


def gather(data: Any, indices: Any, *, axis: int = 0) -> Any:
    return np.take(_array(data), np.asarray(indices, dtype=np.int64), axis)


def concat(*parts: Any, axis: int) -> np.ndarray:
    return np.concatenate([_array(part) for part in parts], axis)


def part(data: Any, starts: list, ends: list, axes: Any = None, steps: Any = (1,)) -> np.ndarray:
    """ONNX's Slice, of a vector."""
    (start,), (end,), (step,) = starts, ends, steps
    return _array(data)[start:end:step]


def squeeze(data: Any, axes: Any = None) -> Any:
    return np.squeeze(_array(data), None if axes is None else tuple(axes))


def unsqueeze(data: Any, axes: Any) -> Any:
    return np.expand_dims(_array(data), tuple(axes))


def product(data: Any, *, axes: Any = None, keepdims: int = 1) -> Any:
    return np.prod(_array(data), axis=axes, keepdims=keepdims == 1)  # type: ignore[call-overload]


def _array(size: Any) -> np.ndarray:
    return np.asarray(size, dtype=object)


#: Functions of sizes by the name of ONNX's operator.
OPERATORS: dict[str, Callable] = {
    "Add": add,
    "Sub": subtract,
    "Mul": multiply,
    "Div": divide,
    "Min": minimum,
    "Max": maximum,
    "Gather": gather,
    "Concat": concat,
    "Slice": part,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "ReduceProd": product,
}
