# SPDX-License-Identifier: Apache-2.0
"""Writing data sets in the folder layout of PASCAL VOC."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import cv2
import numpy as np

from ..errors import InputError
from ..files import read_json, writing
from ..progress import Progress
from .painting import Object, Painter
from .specs import DATASETS

YEAR_FOLDER = "VOC2007"
RECIPE_FILE = "recipe.json"


def write_image(folder: Path, name: str, image: np.ndarray, objects: list[Object]) -> None:
    """Write an image, (H, W, 3) uint8, RGB, as JPEGImages/<name>.jpg and Annotations/<name>.xml."""
    # Not imwrite, which ignores a full disk.
    coded = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])[1]
    (folder / "JPEGImages" / f"{name}.jpg").write_bytes(coded.tobytes())
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = f"{name}.jpg"
    size = ElementTree.SubElement(root, "size")
    for tag, value in zip(("height", "width", "depth"), image.shape):
        ElementTree.SubElement(size, tag).text = str(value)
    for class_name, box, difficult in objects:
        entry = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(entry, "name").text = class_name
        ElementTree.SubElement(entry, "difficult").text = str(int(difficult))
        bounds = ElementTree.SubElement(entry, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box):
            ElementTree.SubElement(bounds, tag).text = str(value + 1)  # VOC counts from 1
    ElementTree.ElementTree(root).write(str(folder / "Annotations" / f"{name}.xml"))


def ensure_dataset(name: str, root: Path, seed: int) -> bool:
    """Generate an embedded data set under root unless it is there; return whether it was made.

    Image i of a split is painted by its own generator, seeded with (seed, split, i), so a larger
    split begins with the images of a smaller one. The set is written beside its final place and
    moved there when complete: an interrupted call leaves nothing half made. A folder of another
    recipe, seed or size is generated again.
    """
    spec, recipe_path = DATASETS[name], root / RECIPE_FILE
    if spec.paint is None:
        raise InputError(f"data: dataset '{name}' is not generated; pass its --dataset-root")
    recorded = {"recipe": spec.recipe, "seed": seed, "splits": spec.counts}
    if recipe_path.is_file() and read_json(recipe_path, "data") == recorded:
        return False
    if root.is_file():
        raise InputError(f"data: {root} is a file, expected a folder")
    if root.exists() and any(root.iterdir()) and not recipe_path.is_file():
        raise InputError(
            f"data: {root} holds files that this command did not write; expected an empty folder"
        )
    with writing(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
        try:
            _write_splits(work / YEAR_FOLDER, spec.paint, spec.counts, seed, spec.recipe)
            (work / RECIPE_FILE).write_text(json.dumps(recorded, indent=2) + "\n")
            work.chmod(0o755)
            if root.exists():
                shutil.rmtree(root)
            os.replace(work, root)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return True


def _write_splits(
    folder: Path, paint: Painter, splits: dict[str, int], seed: int, recipe: str
) -> None:
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    with Progress(f"painting {recipe}", "images", total=sum(splits.values())) as progress:
        for number, (split, count) in enumerate(splits.items()):
            names = [f"{split}_{index:05d}" for index in range(count)]
            for index, name in enumerate(names):
                image, objects = paint(np.random.default_rng([seed, number, index]))
                write_image(folder, name, image, objects)
                progress.update()
            (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
