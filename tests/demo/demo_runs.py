"""Helpers of the demo's tests: small data sets on disk, short command lines."""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import mxnet as mx

from demo_rfcn.data import voc_files

REPOSITORY = Path(__file__).resolve().parents[2]
SPLITS = ("trainval", "val", "test")


def write_voc(root: Path, images: list) -> Path:
    """Write (image, objects) pairs as a VOC folder whose three lists name them all."""
    folder = root / voc_files.YEAR_FOLDER
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    names = [f"{index:06d}" for index in range(len(images))]
    for name, (image, objects) in zip(names, images):
        voc_files.write_image(folder, name, image, objects)
    for split in SPLITS:
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
    return root


def train_arguments(data: Path, folder: Path, *more: str) -> list:
    """Return a command line that trains six steps; later arguments override earlier ones."""
    line = ["train", "--dataset-root", str(data), "--save-prefix", str(folder)]
    line += ["--steps", "6", "--batch-size", "2", "--lr-warmup", "2", "--val-images", "2"]
    return [*line, *more]


def parameters(path: Path) -> dict:
    """Return the parameters of a checkpoint as NumPy arrays."""
    with tempfile.TemporaryDirectory() as work, zipfile.ZipFile(path) as archive:
        stored = mx.nd.load(archive.extract("model.params", work))
        return {name: value.asnumpy() for name, value in stored.items()}
