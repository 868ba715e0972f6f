# SPDX-License-Identifier: Apache-2.0
"""Small data sets of the demo's tests on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from demo_rfcn.data import DATASETS, DatasetSpec, generate, loader, open_datasets, signals
from demo_rfcn.data.dataset import DetectionSet

SPLITS = ("trainval", "val", "test")


def write_voc(root: Path, images: list) -> Path:
    """Write (image, objects) pairs as a VOC folder whose three lists name them all."""
    folder = root / generate.YEAR_FOLDER
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    names = [f"{index:06d}" for index in range(len(images))]
    for name, (image, objects) in zip(names, images):
        generate.write_image(folder, name, image, objects)
    for split in SPLITS:
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
    return root


def write_eight(root: Path) -> Path:
    """Write eight images of `signals` as a VOC folder."""
    return write_voc(root, [signals.paint(np.random.default_rng([7, n])) for n in range(8)])


def write_coco(root: Path, split: str, images: list) -> None:
    """Write (image, objects) pairs as COCO 2017 does, ids from 10; the first object is a crowd."""
    folder, classes = root / split, DATASETS["coco"].classes
    content: dict[str, list[dict]] = {"images": [], "annotations": []}
    content["categories"] = [{"id": n, "name": name} for n, name in enumerate(classes, start=1)]
    folder.mkdir()
    for number, (image, objects) in enumerate(images, start=10):
        name, (height, width) = f"{number:012d}.jpg", image.shape[:2]
        Image.fromarray(image).save(folder / name)
        entry = {"id": number, "height": height, "width": width, "file_name": name}
        content["images"].append({**entry, "coco_url": f"http://images.example/{split}/{name}"})
        for cls, (x1, y1, x2, y2), difficult in objects:
            width, height = x2 - x1, y2 - y1
            count = len(content["annotations"])
            entry = {"id": count + 1, "image_id": number, "segmentation": []}
            entry.update(bbox=[x1, y1, width, height], area=width * height)
            entry.update(category_id=classes.index(cls) + 1, iscrowd=int(difficult or not count))
            content["annotations"].append(entry)
    path = root / "annotations" / f"instances_{split}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


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


def open_dataset(spec: DatasetSpec, root: Path, purpose: str) -> DetectionSet:
    """Open a data set for one purpose, without its broken images."""
    return open_datasets(spec, root, (purpose,), skip_broken=True)[0]


def batches_of(dataset: DetectionSet, seed: int = 0, **parts: Any) -> loader.TrainLoader:
    """Return a loader of four images a batch, 80 pixels wide, without RPN targets."""

    def no_targets(labels, size, padded, rng):
        return np.zeros(1, np.float32), np.zeros((1, 4), np.float32)

    change = 0.5, (0.8, 1.2), 0.2
    return loader.TrainLoader(dataset, 4, (80, 200), 16, no_targets, seed, *change, **parts)
