# SPDX-License-Identifier: Apache-2.0
"""Writes an exported model as a program of torch.export, a .pt2 file."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any, Iterator

from ..replacement import replacing


@contextlib.contextmanager
def onnx_file(file: Path, shapes: dict[str, tuple]) -> Iterator[Path]:
    """Context manager: yield the path of the ONNX file to write.

    It is `file` itself, or, if its name ends with .pt2, a temporary file, which becomes the program
    `file` at the end of the block. `shapes` are those of the inputs, by name. The metadata of the
    model is the extra file metadata.json of the program.
    """
    if file.suffix != ".pt2":
        yield file
        return
    torch, gluon_roi_torch = _packages()
    with tempfile.TemporaryDirectory(prefix="gluon_roi-") as folder:
        path = Path(folder) / "model.onnx"
        yield path
        import onnx

        inputs = onnx.load(str(path), load_external_data=False).graph.input
        metadata = json.dumps(gluon_roi_torch.to_torch(path).meta)
        program = gluon_roi_torch.to_program(path, [shapes.get(entry.name) for entry in inputs])
    failure = f"export: -o: the program cannot be written to {file}"
    with replacing(failure, file) as part, part.open("wb") as stream:
        torch.export.save(program, stream, extra_files={"metadata.json": metadata})


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
