# SPDX-License-Identifier: Apache-2.0
"""`detect`: boxes of any image file, as a picture and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
from PIL import Image

from . import files
from .checkpoint import Checkpoint
from .config import Devices
from .data.dataset import AnnotatedImage, DetectionSet, plural
from .data.images import has_suffix
from .errors import InputError
from .model import Detector
from .predictor import Detection, Predictor
from .progress import Progress

#: What the numbers of a box in the JSON files are.
BOX_FORMAT = "x1, y1, x2, y2: edges in pixels of the upright image; x2 - x1 is the width"


def command(
    devices: Devices, stored: Checkpoint, images: list[Path], thresh: float, save_prefix: Path
) -> None:
    """Detect objects in image files: write <stem>.png and <stem>.json for each.

    A folder stands for all its images. All files are checked first. A broken file is an error at
    once if it was named, and after the others have their results if it was found in a folder.
    """
    dataset = open_images(images)
    check_targets([Path(sample.path) for sample in dataset.samples], save_prefix)
    ctx = devices.contexts()
    files.prepare(save_prefix)
    predictor = Predictor(stored.detector(ctx), stored.scale, ctx, devices.batch_size)
    with Progress("detecting", "images", total=len(dataset)) as progress:
        for index, image, detection in predictor.iterate(dataset, range(len(dataset))):
            file = dataset.samples[index].path
            stem, classes = Path(file).stem, stored.config.classes
            count = write(save_prefix, stem, image, detection, classes, thresh)
            hint = "" if count else f"; {describe_best(detection)}"
            results = f"{save_prefix / stem}.png, .json"
            progress.results(f"{file}: {plural(count, 'object')} -> {results}{hint}")
            progress.update()
    if dataset.broken:
        raise InputError("\n".join(f"detect: {sentence}" for sentence in dataset.broken))


def open_images(paths: list[Path]) -> DetectionSet:
    """Return image files, and the images of folders, as a data set.

    Raises InputError for broken files, unless they are in folders and others are not broken.
    """
    images: list[Path] = []
    for path in paths:
        found = sorted(filter(has_suffix, path.iterdir())) if path.is_dir() else [path]
        if not found:
            raise InputError(f"detect: folder {path} holds no image, expected one at least")
        images += found
    dataset = DetectionSet("images", ())
    dataset.add_checked(
        [AnnotatedImage(path.name, path, (0, 0), [], []) for path in dict.fromkeys(images)]
    )
    named = {str(path) for path in paths}
    if dataset.broken and (named & dataset.left_out or not len(dataset)):
        raise InputError("\n".join(f"detect: {sentence}" for sentence in dataset.broken))
    return dataset


def describe_best(detection: Detection) -> str:
    """Return the best score of an image and the --thresh that would show it."""
    if not len(detection.scores):
        return f"no score reaches {Detector.SCORE_THRESH}"
    best = float(detection.scores.max())
    thresh = math.floor(100 * best) / 100  # so that the best score reaches it
    return f"the best score is {best:.3f}: --thresh {thresh:g} would show it"


def write(
    folder: Path,
    stem: str,
    image: np.ndarray,
    detection: Detection,
    classes: tuple[str, ...],
    thresh: float,
) -> int:
    """Write the detections of an image, and return their number."""
    from .report import pictures  # the import of pyplot needs a second

    rows = [
        {"class": classes[cls], "score": float(score), "box": [*map(float, box)]}
        for cls, score, box in zip(*detection)
        if score >= thresh
    ]
    height, width = image.shape[:2]
    scale = 9 / max(height, width)  # the longer side is 9 inches, none is below 2
    figure, axis = pictures.plt.subplots(figsize=(max(scale * width, 2), max(scale * height, 2)))
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
    axis.set_axis_off()
    pictures.draw_detections(axis, image, detection, classes, thresh, 10)
    with files.replacing_all(folder) as work:
        pictures.write(figure, work / f"{stem}.png")
        files.write_json(work / f"{stem}.json", {"box": BOX_FORMAT, "detections": rows})
    return len(rows)


def check_targets(images: list[Path], save_prefix: Path) -> None:
    """Raise InputError if a result would replace another one, an image, or a user's file."""
    inputs = {path.resolve(): path for path in images}
    writers: dict[str, Path] = {}
    for path in inputs.values():
        target = save_prefix / f"{path.stem}.png"
        other = writers.setdefault(path.stem, path)
        if other is not path:
            both = f"{other} and {path} would both be written to {target}"
            raise InputError(f"detect: {both}, expected different names")
        if target.resolve() in inputs:
            twice = f"{target} is an image to read, and would be written"
            raise InputError(f"detect: {twice}; expected another folder as --save-prefix")
    for stem in writers:
        picture, rows = save_prefix / f"{stem}.png", save_prefix / f"{stem}.json"
        for result, is_result in ((picture, is_picture), (rows, is_rows)):
            if result.exists() and not is_result(result):
                foreign = f"{result} was not written by detect"
                raise InputError(f"detect: {foreign}; expected another folder as --save-prefix")


def is_rows(path: Path) -> bool:
    """Return whether a file is a list of detections, with its picture in the same folder."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    # A list alone is of an earlier version.
    rows = content.get("detections") if isinstance(content, dict) else content
    keys = {"class", "score", "box"}
    of_detect = isinstance(rows, list) and all(isinstance(r, dict) and keys == set(r) for r in rows)
    return of_detect and (bool(rows) or is_picture(path.with_suffix(".png")))


def is_picture(path: Path) -> bool:
    """Return whether a file is a picture that Matplotlib wrote, as `write` does."""
    try:
        with Image.open(path) as image:
            return str(image.info.get("Software", "")).startswith("Matplotlib")
    except (OSError, ValueError, Image.DecompressionBombError):
        return False
