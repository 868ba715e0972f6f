# SPDX-License-Identifier: Apache-2.0
"""`export`: the test graph as symbol.json and parameters, or as ONNX.

Both load where demo_rfcn is not installed (README.md). Classes and the preparation of images are in
rfcn-metadata.json, or in the ONNX file: examples/detect.py reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mxnet as mx

import gluon_roi.onnx
from gluon_roi.files import saved_by_mxnet

from . import files
from .checkpoint import Checkpoint
from .data.loader import MEAN, STD
from .errors import InputError
from .model import Detector

FORMATS = ("mxnet", "onnx")
PARTS = ("symbol.json", "0000.params", "metadata.json")  # of the format "mxnet"


def command(stored: Checkpoint, name: str, format: str, save_prefix: Path) -> None:
    """Write <name>-symbol.json, <name>-0000.params and <name>-metadata.json, or <name>.onnx."""
    short, max_size = stored.scale
    metadata = {  # the keys of `gluon_roi.onnx.detector_metadata`
        "classes": list(stored.config.classes),
        "short": short,
        "max_size": max_size,
        "resize": "INTER_LINEAR",
        "colour_order": "RGB",
        "mean": MEAN.tolist(),
        "std": STD.tolist(),
        "boxes": "x1, y1, x2, y2: edges in pixels of the resized image",
    }
    names = [f"{name}.onnx"] if format == "onnx" else [f"{name}-{part}" for part in PARTS]
    paths = [save_prefix / each for each in names]
    _refuse_foreign(paths, metadata)
    files.prepare(save_prefix)
    detector = stored.detector([mx.cpu()])
    if format == "onnx":
        export_onnx(detector, paths[0], short, metadata)
    else:
        with files.replacing_all(save_prefix) as work:
            export(detector, work / name, short)
            files.write_json(work / names[-1], metadata)
    print(*paths, sep="\n")


def _refuse_foreign(paths: list[Path], metadata: Mapping[str, Any]) -> None:
    """Raise InputError if an export would replace a file that none has written."""
    last = paths[-1]
    exported = _is_onnx_export if last.suffix == ".onnx" else files.is_json_of
    foreign = [path for path in paths if path.exists()]
    if foreign and not exported(last, *metadata):
        other = f"{foreign[0]} was not written by an export"
        raise InputError(f"export: {other}; choose another --save-prefix or --name")


def _is_onnx_export(path: Path, *keys: str) -> bool:
    """Return whether a file is an ONNX model with these keys as metadata."""
    try:
        import onnx

        model = onnx.load(str(path), load_external_data=False)
    except ImportError:  # which `export_onnx` reports
        return True
    except Exception:  # of protobuf, or of the file
        return False
    return set(keys) <= {entry.key for entry in model.metadata_props}


def export(detector: Detector, stem: Path, side: int) -> tuple[Path, Path]:
    """Export a hybridized detector as <stem>-symbol.json and <stem>-0000.params; return both paths.

    An image of `side` x `side` pixels traces the graph, which accepts other sizes as well.
    """
    symbol, parameters = f"{stem.name}-symbol.json", f"{stem.name}-0000.params"
    detector(mx.nd.zeros((1, 3, side, side)))
    with files.replacing_all(stem.parent) as work, saved_by_mxnet(work / parameters, work / symbol):
        detector.export(str(work / stem.name))
    return stem.with_name(symbol), stem.with_name(parameters)


def export_onnx(
    detector: Detector, path: Path, side: int, metadata: dict[str, Any] | None = None
) -> Path:
    """Export a detector as ONNX, for any number of images of any size, as `export` does.

    Weights of more than 2 GB are in a second file. Raises InputError if the package onnx is
    missing, or a part of the detector has no translation.
    """
    names = ["ids", "scores", "boxes"]
    options: dict[str, Any] = {"dynamic": [(0, 2, 3)], "metadata": metadata, "output_names": names}
    with files.writing(path):
        try:
            gluon_roi.onnx.export(detector, [(1, 3, side, side)], path, **options)
        except (ImportError, NotImplementedError) as error:
            raise InputError(f"export: {error}") from error
    return path
