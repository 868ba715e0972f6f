# SPDX-License-Identifier: Apache-2.0
"""Writes an exported model as a program of torch.export, a .pt2 file."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, Iterator

from ..replacement import Replacement, failing, through_links
from .metadata import CONSTANTS


@contextlib.contextmanager
def onnx_or_program(file: Path, shapes: dict[str, tuple]) -> Iterator[Path]:
    """Context manager: yield the path of the ONNX file to write, and convert it if needed.

    It is `file` itself, or, if its name ends with .pt2, a temporary file next to it, which becomes
    the program `file` at the end of the block. `shapes` has the shapes of inputs by their names.
    The metadata of the model is the extra file metadata.json of the program.
    """
    if file.suffix != ".pt2":
        yield file
        return
    torch, gluon_roi_torch = _packages()
    import onnx

    failure, target = f"export: -o: the program cannot be written to {file}", through_links(file)
    with Replacement() as replacement:
        with failing(failure):
            folder = replacement.folder(target.parent)
        path, part = folder / "model.onnx", folder / target.name
        yield path
        model = onnx.load(str(path), load_external_data=False)
        metadata = gluon_roi_torch.convert.metadata_of(model)
        metadata.pop(CONSTANTS, None)
        inputs = [shapes.get(entry.name) for entry in model.graph.input]
        program = gluon_roi_torch.to_program(path, inputs)
        # Into memory, because PyTorch ends the process if it cannot write a file.
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files={"metadata.json": json.dumps(metadata)})
        with failing(failure):
            part.write_bytes(buffer.getbuffer())
        replacement.add(failure, part, target)


def _packages() -> tuple[Any, Any]:
    try:
        import torch

        import gluon_roi_torch
    except ImportError as error:
        raise ImportError(
            f"export: -o: a .pt2 file needs the packages onnx, torch and torchvision ({error}); "
            "run 'pip install onnx torch torchvision'"
        ) from error
    return torch, gluon_roi_torch
