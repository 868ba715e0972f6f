"""`detect`: boxes of any image file, as a picture and as JSON."""

from __future__ import annotations

import contextlib
from pathlib import Path

import cv2
import mxnet as mx
import numpy as np
from matplotlib import pyplot as plt
from PIL import UnidentifiedImageError

from .. import files
from ..data.images import is_cut_jpeg, read_header
from ..data.loader import resize
from ..errors import BrokenFile, InputError
from ..model.detections import detect_images
from ..run import checkpoint
from ..show import pictures


def command(images: list[Path], thresh: float, pretrained: Path, save_prefix: Path) -> None:
    """Write <stem>.png and <stem>.json for every image, after a look at all of them."""
    for path in images:
        read_image(path)
    check_targets(images, save_prefix)
    files.prepare(save_prefix)
    ctx = mx.cpu()
    detect, meta = checkpoint.load_detector(pretrained, ctx)
    classes = meta["config"].classes
    for path in images:
        image = read_image(path)
        scaled, scale = resize(image, meta["short"], meta["max_size"])
        detection = detect_images(detect, [scaled], [scale], ctx)[0]
        figure, axis = plt.subplots(figsize=pictures.size_of(image))
        figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
        pictures.draw_detections(axis, image, detection, classes, thresh, 10)
        pictures.write(figure, save_prefix / f"{path.stem}.png")
        rows = [
            {"class": classes[cls], "score": float(score), "box": [float(side) for side in box]}
            for cls, score, box in zip(*detection)
            if score >= thresh
        ]
        files.write_json(save_prefix / f"{path.stem}.json", rows)
        print(f"{path}: {len(rows)} objects -> {save_prefix / path.stem}.png, .json")


def check_targets(images: list[Path], save_prefix: Path) -> None:
    """Make sure that no image is lost to another one's files.

    Raises
    ------
    InputError
    """
    inputs = {path.resolve(): path for path in images}
    writers: dict[str, Path] = {}
    for path in inputs.values():
        other = writers.setdefault(path.stem, path)
        if other is not path:
            raise InputError(
                f"detect: {other} and {path} would both be written to "
                f"{save_prefix / path.stem}.png, expected different names"
            )
        for suffix in (".png", ".json"):
            target = save_prefix / f"{path.stem}{suffix}"
            if target.resolve() in inputs:
                raise InputError(
                    f"detect: {target} is an image to read, and would be written; expected "
                    "another folder as --save-prefix"
                )


def read_image(path: Path) -> np.ndarray:
    """Read an image file, (H, W, 3) uint8, RGB, upright as its header says.

    Raises
    ------
    InputError
    """
    if not path.is_file():
        raise InputError(f"detect: image {path} is missing")
    try:
        with contextlib.suppress(UnidentifiedImageError):  # OpenCV knows other formats
            read_header(path)
    except BrokenFile as error:
        raise InputError(f"detect: {error}") from error
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise InputError(f"detect: {path} is no image that OpenCV reads, or not a whole one")
    if is_cut_jpeg(path):
        raise InputError(f"detect: {path} is cut short")
    return image[..., ::-1]
