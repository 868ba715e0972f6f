# SPDX-License-Identifier: Apache-2.0
"""Exported models as programs of torch.export, which PyTorch loads without this package."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import onnx
import torch

from .convert import load, to_module


def to_program(
    path: str | os.PathLike, shapes: Sequence[Sequence[int]] | None = None
) -> torch.export.ExportedProgram:
    """Load a model that ``gluon_roi.onnx.export`` wrote, as a program of ``torch.export``.

    ``torch.export.save(program, "model.pt2")`` writes it to a file, which ``torch.export.load``
    reads where only PyTorch and torchvision are installed; import torchvision first, which has the
    operators of boxes.

    Parameters
    ----------
    path : str or os.PathLike
        The ONNX file.
    shapes : sequence, optional
        A shape for each input, with which PyTorch traces the model. Only needed for dynamic axes,
        which stay dynamic; use sizes above 1, because PyTorch treats 0 and 1 as fixed.

    Returns
    -------
    torch.export.ExportedProgram
        ``program.module()`` is a module whose weights have their names in Gluon.

    Raises
    ------
    ValueError
        The shapes are not those of the inputs, or an axis cannot stay dynamic; the message has the
        reason of PyTorch.
    FileNotFoundError, NotImplementedError
        As for ``to_torch``.
    """
    model = load(Path(path))
    inputs = model.graph.input
    given: Sequence[Any] = [None] * len(inputs) if shapes is None else shapes
    if len(given) != len(inputs):
        raise ValueError(
            f"gluon_roi_torch.to_program: shapes: expected a shape for each of {len(inputs)} "
            f"inputs, got {len(given)}"
        )
    arrays = tuple(_example(entry, shape) for entry, shape in zip(inputs, given))
    free = tuple(
        {axis: torch.export.Dim.DYNAMIC for axis, size in enumerate(_sizes(entry)) if size is None}
        for entry in inputs
    )
    module = to_module(model)
    try:
        program = torch.export.export(module, arrays, dynamic_shapes=free)
    except (torch._dynamo.exc.UserError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:500]
        raise ValueError(
            f"gluon_roi_torch.to_program: path: {path} has no program of torch.export for any size "
            f"of its dynamic axes: {reason}"
        ) from error
    return program


def _sizes(entry: onnx.ValueInfoProto) -> list[int | None]:
    """The sizes of an input; None for a dynamic axis."""
    dims = entry.type.tensor_type.shape.dim
    return [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]


def _example(entry: onnx.ValueInfoProto, shape: Sequence[int] | None) -> torch.Tensor:
    """Zeros for an input, of the shape that is given, or of the file's."""
    expected = _sizes(entry)
    sizes: list[Any] = [*expected] if shape is None else list(shape)
    fits = len(sizes) == len(expected) and all(
        size is not None and known in (None, size) for size, known in zip(sizes, expected)
    )
    if not fits:
        text = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(
            f"gluon_roi_torch.to_program: shapes: input {entry.name}: expected ({text}), "
            f"got {shape}"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
    return torch.tensor(np.zeros(sizes, dtype))
