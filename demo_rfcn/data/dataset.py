# SPDX-License-Identifier: Apache-2.0
"""A data set for detection: images with their boxes, from any source."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import mxnet as mx
import numpy as np

from ..errors import BrokenFile, LostImage
from ..progress import Progress
from .images import Header, Reading, check_image, digest_file, read_image, upright_boxes

#: Columns of labels, (M, 6): a box x1, y1, x2, y2, the class index, whether it is difficult.
#: Boxes are edges in pixels, everywhere: one around the first pixel is 0, 0, 1, 1, and x2 of one
#: around a whole image is the width. Readers convert what files have.
BOX, CLASS, DIFFICULT = slice(0, 4), 4, 5
TOP_LEFT, BOTTOM_RIGHT = slice(0, 2), slice(2, 4)
X, Y = [0, 2], [1, 3]
#: Objects should be as large as this after scaling, pixels: the smallest anchor.
RECOMMENDED_SIZE = 32


class AnnotatedObject(NamedTuple):
    """An annotated object; its box is x1, y1, x2, y2, edges in pixels."""

    name: str
    box: Sequence[float]
    difficult: bool = False
    crowd: bool = False
    clipped: bool = False


class AnnotatedImage(NamedTuple):
    """An image as its annotation describes it; `size` is (0, 0) if the annotation has none."""

    name: str
    path: Path
    size: tuple[float, float]
    objects: list[AnnotatedObject]
    errors: list[str]


class ImageKey(NamedTuple):
    """What a run recognises an image by: its name in the data set, and its content."""

    name: str
    digest: str  # the first 64 bits of the SHA-256 of the file, in hexadecimal


class Sample(NamedTuple):
    """A complete image and its boxes; a crowd is a region of many objects, and difficult."""

    name: str
    path: str
    header: Header
    labels: np.ndarray  # (M, 6) float32, columns BOX, CLASS, DIFFICULT
    crowd: np.ndarray  # (M,) bool
    digest: str  # SHA-256 of the file, in hexadecimal
    clipped: int = 0  # number of boxes that were clipped to the image

    @property
    def key(self) -> ImageKey:
        """What a run recognises the image by."""
        return ImageKey(self.name, self.digest[:16])


class DetectionSet(mx.gluon.data.Dataset):
    """Images with boxes; labels are always (M, 6), M = 0 included."""

    def __init__(self, title: str, classes: Sequence[str], samples: Iterable[Sample] = ()) -> None:
        self._title = title
        self.classes = tuple(classes)
        self.samples = list(samples)
        self.broken: list[str] = []  # a sentence for every broken file
        self.notes: list[str] = []  # a sentence for every other assumption or omission
        self.left_out: set[str] = set()  # paths of images with broken files
        self.annotated_classes = set(classes)  # classes of the annotations, used or not
        self.is_coco = False  # whether COCO's scores are computed too
        self.held_back = False  # whether its images were held back from training
        #: Names of the images that the detector to score is trained on; None if that is unknown.
        self.trained_on: set[str] | None = set()

    def __str__(self) -> str:
        return self._title

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[mx.nd.NDArray, np.ndarray]:
        """Return an image (H, W, 3), uint8, RGB, and its labels, as GluonCV's data sets do."""
        return mx.nd.array(self.read(index), dtype="uint8"), self.samples[index].labels.copy()

    def read(self, index: int) -> np.ndarray:
        """Read an image, (H, W, 3) uint8, RGB, upright; raise LostImage if it is damaged now."""
        sample = self.samples[index]
        try:
            return read_image(Path(sample.path), sample.header)
        except BrokenFile as error:
            raise LostImage(f"dataset: {sample.path} cannot be read any more: {error}") from error

    @property
    def labels(self) -> list[np.ndarray]:
        """Labels of all images, each (M, 6) float32."""
        return [sample.labels for sample in self.samples]

    def add_checked(self, images: Sequence[AnnotatedImage]) -> None:
        """Check the files of images, and add those without errors.

        A set without classes gets the classes of the images, sorted; otherwise objects of other
        classes are left out.
        """
        checked = []
        readings: dict[Reading, list[str]] = {reading: [] for reading in Reading}
        for image in Progress("reading files", "images", images, brief=True):
            errors = [*image.errors]
            try:
                header = check_image(image.path)
                boxes = np.array([each.box for each in image.objects], float).reshape(-1, 4)
                boxes, reading = upright_boxes(image.path, header, image.size, boxes)
                digest = digest_file(image.path)
            except BrokenFile as error:
                errors.insert(0, str(error))
            if errors:
                self.broken += errors
                self.left_out.add(str(image.path))
                continue
            checked.append((image, header, boxes, digest))
            if len(boxes):
                readings[reading].append(image.path.name)
        names = Counter(each.name for image, *_ in checked for each in image.objects)
        self.annotated_classes |= set(names)
        self.classes = self.classes or tuple(sorted(self.annotated_classes))
        duplicates: dict[str, int] = {}
        for image, header, boxes, digest in checked:
            objects = {(o.name, *box, o.crowd): (o, box) for o, box in zip(image.objects, boxes)}
            if len(objects) < len(boxes):
                duplicates[image.path.name] = len(boxes) - len(objects)
            pairs = [(o, box) for o, box in objects.values() if o.name in self.classes]
            rows = [(*b, self.classes.index(o.name), o.difficult or o.crowd) for o, b in pairs]
            labels = np.array(rows, np.float32).reshape(-1, 6)
            crowd = np.array([o.crowd for o, _ in pairs], bool)
            clipped = sum(o.clipped for o, _ in pairs)
            path = str(image.path)
            self.samples.append(Sample(image.name, path, header, labels, crowd, digest, clipped))
        self._note_classes(names)
        self._note_readings(readings)
        if duplicates:
            count = f"{plural(sum(duplicates.values()), 'object')} of {self}"
            where = first_names([*duplicates])
            self.notes.append(f"{count} left out, annotated twice with one box: {where}")

    def _note_classes(self, names: Counter[str]) -> None:
        for _, group in groupby(sorted(self.annotated_classes, key=str.lower), key=str.lower):
            if len(same := sorted(group)) > 1:
                self.notes.append(f"classes that differ only in case: {', '.join(same)}")
        outside = {name: n for name, n in names.most_common() if name not in self.classes}
        if outside:
            counts = ", ".join(f"'{name}' ({n})" for name, n in outside.items())
            objects = f"{plural(sum(outside.values()), 'object')} of {self}"
            classes = ", ".join(self.classes)
            self.notes.append(f"{objects} left out, of classes outside {classes}: {counts}")

    def _note_readings(self, readings: dict[Reading, list[str]]) -> None:
        if names := readings[Reading.STORED]:
            images = f"EXIF turns {plural(len(names), 'image')} of {self}"
            why = "because the annotated size matches the stored pixels"
            self.notes.append(f"{images}: boxes are turned too, {why}")
        if names := readings[Reading.AMBIGUOUS]:
            images = f"EXIF turns {plural(len(names), 'image')} of {self} ({first_names(names)})"
            how = "boxes are read in pixels of the upright image"
            self.notes.append(f"{images}: {how}; the annotated size fits both readings")

    def note_unlabelled(self, names: Sequence[str]) -> None:
        """Note images that are left out because they have no annotation."""
        if names:
            images = plural(len(names), "image")
            self.notes.append(f"{images} without annotation left out: {first_names(names)}")

    def subset(self, title: str, names: set[str]) -> DetectionSet:
        """Return a set of the images of these names; it has no notes."""
        chosen = DetectionSet(title, self.classes, [e for e in self.samples if e.name in names])
        chosen.annotated_classes, chosen.is_coco = self.annotated_classes, self.is_coco
        return chosen

    @cached_property
    def digest(self) -> str:
        """A digest of the classes, and of each image's name, boxes and file, in any folder."""
        result = hashlib.sha256(repr(self.classes).encode())
        for sample in self.samples:
            names = f"{sample.name!r} {sample.crowd.tolist()}".encode()
            for part in (names, sample.labels.tobytes()):
                result.update(hashlib.sha256(part).digest())
            result.update(bytes.fromhex(sample.digest))
        return result.hexdigest()


def _sides(labels: np.ndarray) -> np.ndarray:
    """Return width and height of boxes, (M, 2)."""
    return labels[:, BOTTOM_RIGHT] - labels[:, TOP_LEFT]


def summarize(
    train_set: DetectionSet, held_back: DetectionSet | None, scale: tuple[int, int]
) -> list[str]:
    """Describe annotated objects: their number per class, clipped boxes, size after scaling.

    Images that are held back from training count too. `scale` is the short side of the scaled
    images and the limit of the long one, in pixels.
    """
    classes, to_train_on = train_set.classes, _count_objects(train_set)
    counts = to_train_on + _count_objects(held_back) if held_back else to_train_on
    samples = [*train_set.samples, *(held_back.samples if held_back else [])]
    rarest_first = sorted(range(len(classes)), key=lambda cls: counts[cls])
    lines = ["objects: " + ", ".join(f"{classes[cls]} ({counts[cls]})" for cls in rarest_first)]
    if absent := [name for name, count in zip(classes, to_train_on) if not count]:
        lines.append(f"no object to train on: {', '.join(absent)}")
    if clipped := sum(sample.clipped for sample in samples):
        lines.append(f"{plural(clipped, 'box', 'boxes')} clipped to their image")
    sizes = [
        scale_factor(sample.header.upright, scale) * np.sqrt(np.prod(_sides(sample.labels), axis=1))
        for sample in samples
    ]
    if counts.sum():
        median = f"median object size {np.median(np.concatenate(sizes)):.0f} pixels"
        scaled = f"in images scaled to --short {scale[0]} --max-size {scale[1]}"
        lines.append(f"{median} {scaled}; at least {RECOMMENDED_SIZE} are recommended")
    return lines


def _count_objects(dataset: DetectionSet) -> np.ndarray:
    """Return the number of objects of each class."""
    indices = np.concatenate([rows[:, CLASS] for rows in dataset.labels]).astype(int)
    return np.bincount(indices, minlength=len(dataset.classes))


def scale_factor(size: tuple[int, int], scale: tuple[int, int]) -> float:
    """Return the factor that scales an image of a size, in any order of its sides.

    `scale` is the short side of the scaled image, and the limit of the long one, which prevails.
    """
    return min(scale[0] / min(size), scale[1] / max(size))


def clip_box(box: Sequence[float], size: Sequence[float]) -> list[float] | None:
    """Return the part of a box inside an image, width and height; None if it extends beyond.

    The box is x1, y1, x2, y2. A pixel beyond the image is clipped: tools that count from 0, or use
    the width as the last column, write such boxes.
    """
    x1, y1, x2, y2 = box
    width, height = size
    if min(x1, y1) < -1 or x2 > width + 1 or y2 > height + 1:
        return None
    if x1 >= width or y1 >= height or min(x2, y2) <= 0:
        return None
    return [min(max(side, 0), limit) for side, limit in zip(box, (width, height) * 2)]


def is_clipped(box: Sequence[float], inside: Sequence[float]) -> bool:
    """Return whether clipping changed a side by more than a rounded decimal fraction does."""
    return any(abs(side - other) > 0.01 for side, other in zip(box, inside))


def plural(count: int, name: str, many: str = "") -> str:
    """Return a number with its noun, "1 box" or "2 boxes"."""
    return f"{count} {name if count == 1 else many or name + 's'}"


def first_names(names: Sequence[str]) -> str:
    """Return the first three of some names, to be printed."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
