# SPDX-License-Identifier: Apache-2.0
"""Writing the generated data set as a VOC folder; files that it did not write are not touched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np

from gluon_roi.replacement import work_folder

from ..errors import InputError
from ..files import read_json, writing
from ..progress import Progress
from . import signals
from .images import digest_file

RECIPE = "recipe.json"
YEAR_FOLDER = "VOC2007"


def write_dataset(root: Path, recipe: dict[str, Any]) -> bool:
    """Write the data set of a recipe into a folder; return False if all its files are there.

    The recipe has the `recipe` (name and version of the painter), the `seed`, and the number of
    images of each split in `splits`. Image i of a split is painted by its own generator, seeded
    with (seed, split, i), so a larger split begins with the images of a smaller one. `recipe.json`
    in the folder also has the digest of each file. Files are moved to their places when all are
    complete, and no file is replaced or deleted.

    Raises InputError if the folder is a file, if it has files but no `recipe.json` of the same
    recipe, or if a file has changed since it was written.
    """
    if root.is_file():
        raise InputError(f"data: {root} is a file, expected a folder")
    known: dict[str, str] = {}
    if root.is_dir() and any(root.iterdir()):
        known = _read_digests(root, recipe)
        for name, digest in known.items():
            if (root / name).exists() and digest_file(root / name) != digest:
                raise InputError(
                    f"data: {root / name} has changed since this command wrote it; expected an "
                    "empty folder as --dataset-root"
                )
    if known and all((root / name).exists() for name in known):
        return False
    root = root.resolve()
    with writing(root):
        root.parent.mkdir(parents=True, exist_ok=True)
        with work_folder(root.parent) as work:
            made = work / "made"
            names = write_splits(made / YEAR_FOLDER, recipe)
            digests = {f"{YEAR_FOLDER}/{name}": "" for name in names}
            for name in digests:
                kept = known.get(name) if (root / name).exists() else None
                digests[name] = kept or digest_file(made / name)
            (made / RECIPE).write_text(json.dumps({**recipe, "files": digests}, indent=1) + "\n")
            if not root.exists():
                os.replace(made, root)
            else:
                for name in (*digests, RECIPE):  # the recipe is last, and vouches for the others
                    if name == RECIPE or not (root / name).exists():
                        (root / name).parent.mkdir(parents=True, exist_ok=True)
                        os.replace(made / name, root / name)
    return True


def _read_digests(root: Path, recipe: dict[str, Any]) -> dict[str, str]:
    """Return the digests of the files in a folder that an earlier call wrote."""
    path = root / RECIPE
    recorded = read_json(path, "data") if path.is_file() else None
    files = recorded.pop("files", None) if isinstance(recorded, dict) else None
    expected = {f"{YEAR_FOLDER}/{name}" for name in _file_names(recipe["splits"])}
    if recorded == recipe and isinstance(files, dict) and files.keys() == expected:
        return files
    content = "files that this command did not write"
    if recorded == recipe:
        content = "files without digests, perhaps of an earlier version of this command"
    elif isinstance(recorded, dict) and recorded.keys() == recipe.keys():
        content = f"another data set, '{recorded['recipe']}' of seed {recorded['seed']}"
    raise InputError(f"data: {root} holds {content}; expected an empty folder as --dataset-root")


def _file_names(splits: dict[str, int]) -> list[str]:
    """Return the files of some splits, relative to the VOC folder."""
    stems = [f"{split}_{index:05d}" for split, count in splits.items() for index in range(count)]
    images = [f"JPEGImages/{stem}.jpg" for stem in stems]
    annotations = [f"Annotations/{stem}.xml" for stem in stems]
    return [*images, *annotations, *(f"ImageSets/Main/{split}.txt" for split in splits)]


def write_splits(folder: Path, recipe: dict[str, Any]) -> list[str]:
    """Paint all images of a recipe into a new VOC folder; return the files in it."""
    splits = recipe["splits"]
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    title = f"painting {recipe['recipe']}"
    with Progress(title, "images", total=sum(splits.values())) as progress:
        for number, (split, count) in enumerate(splits.items()):
            names = [f"{split}_{index:05d}" for index in range(count)]
            for index, name in enumerate(names):
                rng = np.random.default_rng([recipe["seed"], number, index])
                write_image(folder, name, *signals.paint(rng))
                progress.update()
            (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
    return _file_names(splits)


def write_image(folder: Path, name: str, image: np.ndarray, objects: list[signals.Object]) -> None:
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
        x1, y1, x2, y2 = box
        pixels = x1 + 1, y1 + 1, x2, y2  # VOC names the first and the last pixel, from 1
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), pixels):
            ElementTree.SubElement(bounds, tag).text = str(value)
    ElementTree.ElementTree(root).write(str(folder / "Annotations" / f"{name}.xml"))
