# SPDX-License-Identifier: Apache-2.0
"""A data set for detection: images with their boxes, from any source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import mxnet as mx
import numpy as np

from ..errors import BrokenFile, LostImage
from ..progress import Progress
from .images import Header, check_image, read_image, upright_boxes


class AnnotatedObject(NamedTuple):
    """An annotated object; its box is x1, y1, x2, y2, inclusive and counted from 0."""

    name: str
    box: Sequence[float]
    difficult: bool
    crowd: bool = False


class AnnotatedImage(NamedTuple):
    """An image as its annotation describes it; `size` is (0, 0) if it is not known."""

    name: str
    path: Path
    size: tuple[float, float]
    objects: list[AnnotatedObject]
    faults: list[str]


class Sample(NamedTuple):
    """A whole image and its boxes; a crowd is a region of several objects, and difficult."""

    name: str
    path: str
    header: Header
    labels: np.ndarray  # (M, 6) float32: x1, y1, x2, y2 (as in `AnnotatedObject`), class, difficult
    crowd: np.ndarray  # (M,) bool


class DetectionSet(mx.gluon.data.Dataset):
    """Images with boxes; labels are always (M, 6), M = 0 included."""

    def __init__(self, title: str, classes: Sequence[str], entries: Iterable[Sample] = ()) -> None:
        self._title = title
        self.classes = tuple(classes)
        self.samples = list(entries)
        self.broken: list[str] = []  # a sentence for every broken file
        self.notes: list[str] = []  # a sentence for every other assumption or omission
        self.left_out: set[str] = set()  # paths of images with broken files
        self.annotated_classes = set(classes)  # classes that the annotations know, used or not
        self.is_coco = False  # whether it has COCO's own scores
        self.held_back = False  # whether its images were held back from training

    def __str__(self) -> str:
        return self._title

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[mx.nd.NDArray, np.ndarray]:
        """Return an image (H, W, 3), uint8, RGB, and its labels, as GluonCV's data sets do."""
        return mx.nd.array(self.read(index), dtype="uint8"), self.samples[index].labels.copy()

    def read(self, index: int) -> np.ndarray:
        """Read an image, (H, W, 3) uint8, RGB, upright; raise LostImage if it is damaged now."""
        entry = self.samples[index]
        try:
            return read_image(Path(entry.path), entry.header)
        except BrokenFile as error:
            raise LostImage(f"dataset: {entry.path} cannot be read any more: {error}") from error

    @property
    def labels(self) -> list[np.ndarray]:
        """Labels of all images, each (M, 6) float32."""
        return [entry.labels for entry in self.samples]

    def add_checked(self, images: Sequence[AnnotatedImage]) -> None:
        """Check the files of images, and take those of which nothing is broken.

        A set without classes gets those of the images, sorted; objects of others are left out.
        """
        whole, turned = [], 0
        for image in Progress("looking at files", "images", images, brief=True):
            faults, moved = [*image.faults], False
            try:
                header = check_image(image.path)
                boxes = np.array([each.box for each in image.objects], float).reshape(-1, 4)
                if image.size != (0, 0):
                    boxes, moved = upright_boxes(image.path, header, image.size, boxes)
            except BrokenFile as error:
                faults.insert(0, str(error))
            if faults:
                self.broken += faults
                self.left_out.add(str(image.path))
            else:
                whole.append((image, header, boxes))
                turned += moved
        names = Counter(each.name for image, _, _ in whole for each in image.objects)
        self.annotated_classes |= set(names)
        self.classes = self.classes or tuple(sorted(self.annotated_classes))
        for image, header, boxes in whole:
            known = [(o, box) for o, box in zip(image.objects, boxes) if o.name in self.classes]
            rows = [(*b, self.classes.index(o.name), o.difficult or o.crowd) for o, b in known]
            labels = np.array(rows, np.float32).reshape(-1, 6)
            crowd = np.array([o.crowd for o, _ in known], bool)
            self.samples.append(Sample(image.name, str(image.path), header, labels, crowd))
        self._note(names, turned)

    def _note(self, names: Counter[str], turned: int) -> None:
        for _, group in groupby(sorted(self.annotated_classes, key=str.lower), key=str.lower):
            if len(same := sorted(group)) > 1:
                self.notes.append(f"classes that differ only in case: {', '.join(same)}")
        outside = {name: n for name, n in names.most_common() if name not in self.classes}
        if outside:
            counts = ", ".join(f"'{name}' ({n})" for name, n in outside.items())
            objects = f"{plural(sum(outside.values()), 'object')} of {self}"
            classes = ", ".join(self.classes)
            self.notes.append(f"{objects} left out, of classes outside {classes}: {counts}")
        if turned:
            images = f"{plural(turned, 'image')} of {self} stored turned"
            how = "with annotations of the stored size: their boxes are turned with the pixels"
            self.notes.append(f"{images}, {how}")

    def subset(self, title: str, names: set[str]) -> DetectionSet:
        """Return a set of the images of these names; it has no notes."""
        chosen = DetectionSet(title, self.classes, [e for e in self.samples if e.name in names])
        chosen.annotated_classes, chosen.is_coco = self.annotated_classes, self.is_coco
        return chosen


def plural(count: int, name: str, many: str = "") -> str:
    """Return a number with its noun, "1 box" or "2 boxes"."""
    return f"{count} {name if count == 1 else many or name + 's'}"
