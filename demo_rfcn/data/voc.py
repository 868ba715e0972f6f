"""Reading VOC-layout folders through GluonCV, with the checks that GluonCV leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from gluoncv.data import VOCDetection

from ..errors import InputError

LABEL_WIDTH = 6  # x1, y1, x2, y2, class, difficult


class VOCFolder(VOCDetection):
    """GluonCV's VOCDetection with given classes; labels are always (M, 6), M = 0 included.

    Parameters
    ----------
    root : str or pathlib.Path
        Folder that holds `VOC<year>` folders.
    splits : sequence of (int or str, str)
        Year (or folder name) and name of the list in ImageSets/Main, as in GluonCV.
    classes : sequence of str
        Lower-case names. An annotation that holds another name is refused.

    Raises
    ------
    InputError
        A folder or list is missing, or an annotation holds an unknown class.
    """

    def __init__(self, root, splits: Sequence, classes: Sequence[str]) -> None:
        self._class_names = tuple(classes)
        for folder, name in splits:
            folder = f"VOC{folder}" if isinstance(folder, int) else folder
            path = Path(root) / folder / "ImageSets" / "Main" / f"{name}.txt"
            if not path.is_file():
                raise InputError(
                    f"dataset: {path} is missing; expected a VOC layout with JPEGImages, "
                    f"Annotations and ImageSets/Main in {Path(root) / folder}"
                )
        super().__init__(root=str(root), splits=splits)

    @property
    def classes(self) -> tuple:
        """Class names; the place in the tuple is the class index."""
        return self._class_names

    @property
    def labels(self) -> list:
        """Labels of all images, each (M, 6) float32."""
        return self._label_cache

    def aspect_ratio(self, index: int) -> float:
        """Return width / height of an image as its annotation gives them."""
        width, height = self._im_shapes[index]
        return width / height

    def _load_items(self, splits):
        # Some tools write "name flag" rows or a last empty line; the name is the first word.
        return [(root, line.split()[0]) for root, line in super()._load_items(splits) if line]

    def _load_label(self, idx):
        path = self._anno_path.format(*self._items[idx])
        for name in annotated_classes(path):
            if name not in self._class_names:
                raise InputError(
                    f"dataset: {path} holds class '{name}', expected one of "
                    f"{', '.join(self._class_names)}"
                )
        return np.asarray(super()._load_label(idx), np.float32).reshape(-1, LABEL_WIDTH)


def annotated_classes(path) -> set:
    """Return the lower-case class names of one annotation file."""
    root = ElementTree.parse(str(path)).getroot()
    return {entry.find("name").text.strip().lower() for entry in root.iter("object")}
