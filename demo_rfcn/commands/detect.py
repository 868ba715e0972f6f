# SPDX-License-Identifier: Apache-2.0
"""`detect`: boxes of any image file, as a picture and as JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import files
from ..data.dataset import AnnotatedImage, DetectionSet
from ..data.images import has_suffix
from ..errors import InputError
from ..model.detections import Detection, Finder
from ..progress import Progress
from ..run import checkpoint
from ..settings import Devices


def command(
    devices: Devices, images: list[Path], thresh: float, path: Path, save_prefix: Path
) -> None:
    """Detect objects in image files: write <stem>.png and <stem>.json for each.

    A folder stands for all its images. All files are checked first: broken ones are errors, but
    those of folders only after the others have their results.
    """
    dataset = open_images(images)
    check_targets([Path(entry.path) for entry in dataset.samples], save_prefix)
    ctx = devices.contexts()
    stored = checkpoint.read(path)
    files.prepare(save_prefix)
    scale = stored.notes["short"], stored.notes["max_size"]
    find = Finder(stored.detector(ctx), scale, ctx, devices.batch_size)
    with Progress("detecting", "images", total=len(dataset)) as progress:
        for index, image, detection in find.each(dataset, range(len(dataset))):
            file = dataset.samples[index].path
            stem = save_prefix / Path(file).stem
            count = write(stem, image, detection, stored.config.classes, thresh)
            progress.results(f"{file}: {count} objects -> {stem}.png, .json")
            progress.update()
    if dataset.broken:
        raise InputError("\n".join(f"detect: {sentence}" for sentence in dataset.broken))


def open_images(paths: list[Path]) -> DetectionSet:
    """Return image files, and those of folders, as a data set.

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


def write(
    stem: Path, image: np.ndarray, detection: Detection, classes: tuple[str, ...], thresh: float
) -> int:
    """Write the detections of an image, and return their number."""
    from ..show import pictures  # pyplot takes long to import

    height, width = image.shape[:2]
    scale = 9 / max(height, width)  # the longer side is 9 inches, none is below 2
    figure, axis = pictures.plt.subplots(figsize=(max(scale * width, 2), max(scale * height, 2)))
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
    axis.set_axis_off()
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
        target = save_prefix / f"{path.stem}.png"
        other = writers.setdefault(path.stem, path)
        if other is not path:
            both = f"{other} and {path} would both be written to {target}"
            raise InputError(f"detect: {both}, expected different names")
        if target.resolve() in inputs:
            twice = f"{target} is an image to read, and would be written"
            raise InputError(f"detect: {twice}; expected another folder as --save-prefix")
