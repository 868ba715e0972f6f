# SPDX-License-Identifier: Apache-2.0
"""Helpers of the demo's tests: small data sets on disk, short command lines."""

from __future__ import annotations

import json
import socket
import tempfile
import zipfile
from pathlib import Path

import mxnet as mx
import numpy as np

from demo_rfcn import cli
from demo_rfcn.data import signals, voc_files
from demo_rfcn.run.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[1]
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


def photographs(names: list, seed: int) -> list:
    """Return six images, wide and tall ones, with the objects of `signals` renamed."""
    images = []
    for index in range(6):
        image, objects = signals.paint(np.random.default_rng([seed, index]))
        renamed = [
            (names[signals.CLASSES.index(name) % len(names)], box, difficult)
            for name, box, difficult in objects
        ]
        pad = ((0, 40), (0, 0), (0, 0)) if index % 3 == 0 else ((0, 0), (0, 60), (0, 0))
        images.append((np.pad(image, pad), renamed))
    return images


def train_arguments(data: Path, folder: Path, *more: str) -> list:
    """Return a command line that trains six steps; later arguments override earlier ones."""
    line = ["train", "--dataset-root", str(data), "--save-prefix", str(folder)]
    line += ["--steps", "6", "--batch-size", "2", "--lr-warmup", "2", "--val-images", "2"]
    return [*line, *more]


def settings_of(line: list) -> Settings:
    """Return the settings that a command line asks for."""
    return cli.parse(line).args[0]


def parameters(path: Path, entry: str = "model.params") -> dict:
    """Return the parameters of a checkpoint as NumPy arrays."""
    with tempfile.TemporaryDirectory() as work, zipfile.ZipFile(path) as archive:
        stored = mx.nd.load(archive.extract(entry, work))
        return {name: value.asnumpy() for name, value in dict(stored).items()}


def optimizer(path: Path) -> dict:
    """Return the optimizer's state in a checkpoint: its arrays, and how often it was used."""
    with zipfile.ZipFile(path) as archive:
        updates = json.loads(archive.read("checkpoint.json"))["updates"]
    return {**parameters(path, "optimizer.params"), **updates}


def free_port() -> int:
    """Return a TCP port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
