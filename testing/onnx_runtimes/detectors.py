# SPDX-License-Identifier: Apache-2.0
"""Whole detectors as ONNX: detections of onnxruntime, OpenVINO and PyTorch against MXNet.

    .venv/bin/python -m testing.onnx_runtimes.detectors FOLDER --export
        [--pretrained FILE --images FILE ...]
    build/runtimes/bin/python -m testing.onnx_runtimes.detectors FOLDER

The first command exports GluonCV's detectors, switched, with random weights, and with --pretrained
an R-FCN of the demo, for which it needs images. It keeps the images and MXNet's detections. The
second needs an environment as in check.py, without MXNet. It prints how many detections are found
again, and their largest differences in score and corners.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from .check import WAYS, installed

ROOT = Path(__file__).resolve().parents[2]
GLUONCV = ("faster_rcnn_resnet50_v1b_voc", "faster_rcnn_fpn_resnet50_v1b_coco")
SIZE = (256, 320)  # of GluonCV's image, pixels
#: Within these, a row of detections of the same class is the same one.
SCORES, CORNERS = 1e-3, 0.05  # pixels


def rows(outputs: list) -> np.ndarray:
    """Class, score and corners of each detection."""
    parts = [np.asarray(out) for out in outputs]
    table = np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts], axis=1)
    return table[table[:, 0] >= 0]


def export_gluoncv(folder: Path) -> None:
    import mxnet as mx

    import gluon_roi
    import gluon_roi.onnx

    from ..detectors import make_detector, scale

    image = mx.nd.random.normal(shape=(1, 3, *SIZE))
    for name in GLUONCV:
        net = make_detector(name, image)
        # With plain random weights scores are so near each other that rounding decides which of two
        # boxes suppresses the other.
        gluon_roi.optimize(net, image)
        scale(net.class_predictor.weight, 30)
        found = rows([out.asnumpy() for out in net(image)])
        gluon_roi.onnx.export(net, [image.shape], folder / f"{name}.onnx")
        np.savez(folder / f"{name}.npz", image0=image.asnumpy(), rows0=found)


def export_rfcn(folder: Path, pretrained: Path, images: list[Path]) -> None:
    import mxnet as mx

    from demo_rfcn.checkpoint import read
    from demo_rfcn.data.images import check_image, read_image
    from demo_rfcn.data.loader import normalise, resize
    from demo_rfcn.export import export_onnx

    stored = read(pretrained)
    detect = stored.detector([mx.cpu()])
    arrays: dict[str, Any] = {}
    for i, path in enumerate(images):
        pixels = read_image(path, check_image(path))
        image = normalise(resize(pixels, *stored.scale)[0])[None]
        image = image.astype("float32")
        found = detect(mx.nd.array(image))
        arrays.update({f"image{i}": image, f"rows{i}": rows([out.asnumpy() for out in found])})
    export_onnx(detect, folder / "rfcn.onnx", stored.scale[0])
    np.savez(folder / "rfcn.npz", **arrays)


def compare(found: np.ndarray, expected: np.ndarray) -> tuple[int, float, float]:
    """How many expected rows were found, and their largest differences in scores and corners."""
    count, score, corner = 0, 0.0, 0.0
    for row in expected:
        off = np.abs(found - row)
        corners = off[:, 2:].max(axis=1, initial=0)
        same = (off[:, 0] == 0) & (off[:, 1] <= SCORES) & (corners <= CORNERS)
        if not same.any():
            continue
        best = np.flatnonzero(same)[corners[same].argmin()]
        count, score = count + 1, max(score, off[best, 1])
        corner = max(corner, corners[best])
        found = np.delete(found, best, axis=0)
    return count, score, corner


def study(path: Path, runtime: str) -> None:
    run = WAYS[runtime](str(path))
    arrays = np.load(path.with_suffix(".npz"))
    total, counts, scores, corners = 0, 0, 0.0, 0.0
    for i in range(len(arrays.files) // 2):
        expected = arrays[f"rows{i}"]
        count, score, corner = compare(rows(run(arrays[f"image{i}"])), expected)
        total, counts = total + len(expected), counts + count
        scores, corners = max(scores, score), max(corners, corner)
    print(
        f"{path.stem:34} {runtime:12} {counts} of {total}; {scores:.1g}, {corners:.1g} pixels",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--pretrained", type=Path, help="with --export: a checkpoint of the demo")
    parser.add_argument("--images", type=Path, nargs="+", default=[], help="for --pretrained")
    arguments = parser.parse_args()
    if bool(arguments.pretrained) != bool(arguments.images):
        parser.error("--pretrained and --images: expected both or none")
    if arguments.export:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        export_gluoncv(arguments.folder)
        if arguments.pretrained:
            export_rfcn(arguments.folder, arguments.pretrained, arguments.images)
        return
    for path in sorted(arguments.folder.glob("*.onnx")):
        for runtime in installed():
            study(path, runtime)


if __name__ == "__main__":
    main()
