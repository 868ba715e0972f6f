# SPDX-License-Identifier: Apache-2.0
"""A data set for detection: images with their boxes, from any source."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import mxnet as mx
import numpy as np

from .images import Header, read_image

LABEL_WIDTH = 6  # x1, y1, x2, y2, class, difficult


class Entry(NamedTuple):
    """One image and its boxes.

    Attributes
    ----------
    name : str
        Its name within the data set.
    path : str
    header : images.Header
    labels : numpy.ndarray
        (M, 6) float32: x1, y1, x2, y2 (inclusive, counted from 0), class, difficult.
    crowd : numpy.ndarray
        (M,) bool: whether a box, a difficult one then, is a region with more objects of its class.
    """

    name: str
    path: str
    header: Header
    labels: np.ndarray
    crowd: np.ndarray


class DetectionSet(mx.gluon.data.Dataset):
    """Images with boxes; labels are always (M, 6), M = 0 included.

    All files are checked when a set is created. Broken ones are recorded, and their images left
    out.

    Parameters
    ----------
    title : str
        Its name in messages.
    classes : sequence of str
        The place of a name is its class index.
    entries : sequence of Entry
    broken : sequence of str
        One sentence for every broken file.
    left_out : iterable of str
        Paths of the images that are left out.
    notes : sequence of str
        Other assumptions and omissions, one sentence each.

    Attributes
    ----------
    known : set of str
        The classes that the annotations know, used or not.
    of_coco : bool
        Whether COCO's own scores are wanted.
    held_back : bool
        Whether its images were held back from training.
    """

    def __init__(
        self,
        title: str,
        classes: Sequence[str],
        entries: Sequence[Entry],
        broken: Sequence[str] = (),
        left_out: Iterable[str] = (),
        notes: Sequence[str] = (),
    ) -> None:
        self._title = title
        self.classes = tuple(classes)
        self.entries = list(entries)
        self.broken = list(broken)
        self.left_out = set(left_out)
        self.notes = list(notes)
        self.known = set(classes)
        self.of_coco = self.held_back = False

    def __str__(self) -> str:
        return self._title

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> tuple[mx.nd.NDArray, np.ndarray]:
        """Return an image (H, W, 3), uint8, RGB, and its labels, as GluonCV's data sets do."""
        return mx.nd.array(self.read(index), dtype="uint8"), self.entries[index].labels.copy()

    def read(self, index: int) -> np.ndarray:
        """Read an image, (H, W, 3) uint8, RGB, upright.

        Raises
        ------
        BrokenFile
            It was whole when the data set was opened, and no longer is.
        """
        entry = self.entries[index]
        return read_image(Path(entry.path), entry.header)

    def _note_outside(self, outside: Counter[str], what: str) -> None:
        """Note the objects that were left out, with the names of their classes."""
        if outside:
            shown = ", ".join(f"'{name}' ({count})" for name, count in outside.most_common())
            self.notes.append(
                f"{counted(sum(outside.values()), 'object')}{what} outside "
                f"{', '.join(self.classes)}: {shown}"
            )

    def _note_case(self) -> None:
        """Note classes whose names differ only in case, perhaps by mistake."""
        for name in sorted(self.known):
            same = sorted(each for each in self.known if each.lower() == name.lower())
            if len(same) > 1 and same[0] == name:
                self.notes.append(f"classes that differ only in case: {', '.join(same)}")

    def _note_turned(self, count: int) -> None:
        """Note the assumption for images whose annotation has the size of their stored pixels."""
        if count:
            self.notes.append(
                f"{counted(count, 'image')} stored turned, with annotations of the stored size: "
                "the boxes are taken for those of the stored pixels, and turned with them"
            )

    @property
    def labels(self) -> list[np.ndarray]:
        """Labels of all images, each (M, 6) float32."""
        return [entry.labels for entry in self.entries]

    @property
    def images(self) -> list[str]:
        """Paths of all images."""
        return [entry.path for entry in self.entries]

    def aspect_ratio(self, index: int) -> float:
        """Return width / height of an image."""
        width, height = self.entries[index].header.upright
        return width / height

    def part(self, title: str, names: set[str]) -> DetectionSet:
        """Return a set of the images of these names; it notes nothing."""
        entries = [entry for entry in self.entries if entry.name in names]
        chosen = DetectionSet(title, self.classes, entries)
        chosen.known, chosen.of_coco = self.known, self.of_coco
        return chosen


def counted(count: int, name: str, many: str = "") -> str:
    """Return a number of things with their name, "1 box" or "2 boxes"."""
    return f"{count} {name if count == 1 else many or name + 's'}"


def choose_held_back(dataset: DetectionSet, share: float, seed: int) -> set[str]:
    """Choose the images of a data set that are held back from training, by their names.

    The seed gives each image a place in an order that does not depend on the other images, so few
    images change sides when some are added. Images with boxes and those without are divided in the
    same way, and at least one with boxes is held back.

    Parameters
    ----------
    dataset : DetectionSet
    share : float
        Above 0 and below 1.
    seed : int

    Returns
    -------
    set of str
    """
    chosen: set[str] = set()
    for annotated in (True, False):
        names = [entry.name for entry in dataset.entries if bool(len(entry.labels)) == annotated]
        names.sort(key=lambda name: hashlib.sha256(os.fsencode(f"{seed} {name}")).digest())
        count = round(share * len(names))
        if annotated and len(names) > 1:
            count = min(max(count, 1), len(names) - 1)
        chosen.update(names[:count])
    return chosen
