# SPDX-License-Identifier: Apache-2.0
"""`detect`: boxes of any image file, as a picture and as JSON."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import numpy as np

from .. import files
from ..data.dataset import Described, DetectionSet
from ..data.images import has_suffix
from ..data.loader import resize
from ..errors import InputError
from ..model.detections import Detection, detect_images
from ..progress import Progress
from ..run import checkpoint
from ..settings import Devices


def command(
    devices: Devices, images: list[Path], thresh: float, path: Path, save_prefix: Path
) -> None:
    """Detect objects in image files: write <stem>.png and <stem>.json for each.

    A folder stands for all its images. All files are checked first.
    """
    dataset = open_images(images)
    check_targets([Path(entry.path) for entry in dataset.entries], save_prefix)
    ctx, batch_size = devices.contexts(), devices.batch_size
    stored = checkpoint.read(path)
    files.prepare(save_prefix)
    detect = stored.detector(ctx)
    limits = stored.notes["short"], stored.notes["max_size"]
    with Progress("detecting", "images", total=len(dataset)) as progress:
        for first in range(0, len(dataset), batch_size):
            chunk = range(len(dataset))[first : first + batch_size]
            # Read once, and kept to be drawn on.
            read = [(dataset.entries[index].path, dataset.read(index)) for index in chunk]
            scaled = [(image, pixels, *resize(pixels, *limits)) for image, pixels in read]
            for _, group in groupby(scaled, key=lambda each: each[2].shape):
                images, originals, smaller, scales = zip(*group)
                found = detect_images(detect, smaller, scales, ctx)
                for image, pixels, detection in zip(images, originals, found):
                    stem = save_prefix / Path(image).stem
                    count = write(stem, pixels, detection, stored.config.classes, thresh)
                    progress.results(f"{image}: {count} objects -> {stem}.png, .json")
                    progress.update()


def open_images(paths: list[Path]) -> DetectionSet:
    """Return image files, and those of folders, as a data set; raise InputError for broken ones."""
    images = dict.fromkeys(image for path in paths for image in images_of(path))
    dataset = DetectionSet("images", ())
    dataset.take([Described(path.name, path, (0, 0), [], []) for path in images])
    if dataset.broken:
        raise InputError("\n".join(f"detect: {sentence}" for sentence in dataset.broken))
    return dataset


def images_of(path: Path) -> list[Path]:
    """Return the image files of a folder, at least one, or the file itself."""
    if not path.is_dir():
        return [path]
    found = [each for each in sorted(path.iterdir()) if has_suffix(each)]
    if not found:
        raise InputError(f"detect: folder {path} holds no image, expected one at least")
    return found


def write(
    stem: Path, image: np.ndarray, detection: Detection, classes: tuple[str, ...], thresh: float
) -> int:
    """Write the detections of an image, and return their number."""
    from ..show import pictures  # pyplot takes long to import

    height, width = image.shape[:2]
    scale = 9 / max(height, width)  # the longer side is 9 inches, none is below 2
    figure, axis = pictures.plt.subplots(figsize=(max(scale * width, 2), max(scale * height, 2)))
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
    pictures.draw_detections(axis, image, detection, classes, thresh, 10)
    pictures.write(figure, Path(f"{stem}.png"))
    rows = [
        {"class": classes[cls], "score": float(score), "box": [*map(float, box)]}
        for cls, score, box in zip(*detection)
        if score >= thresh
    ]
    files.write_json(Path(f"{stem}.json"), rows)
    return len(rows)


def check_targets(images: list[Path], save_prefix: Path) -> None:
    """Raise InputError if the results of an image would replace those of another, or an image."""
    inputs = {path.resolve(): path for path in images}
    writers: dict[str, Path] = {}
    for path in inputs.values():
        other = writers.setdefault(path.stem, path)
        if other is not path:
            raise InputError(
                f"detect: {other} and {path} would both be written to "
                f"{save_prefix / path.stem}.png, expected different names"
            )
        target = save_prefix / f"{path.stem}.png"
        if target.resolve() in inputs:
            raise InputError(
                f"detect: {target} is an image to read, and would be written; expected another "
                "folder as --save-prefix"
            )
