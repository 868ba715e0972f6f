"""Reading COCO folders through GluonCV and pycocotools."""

from __future__ import annotations

import importlib.util
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from gluoncv.data import COCODetection

from ..errors import InputError
from .voc import LABEL_WIDTH


class COCOFolder(COCODetection):
    """GluonCV's COCODetection with labels of `VOCFolder`'s form; crowds count as difficult.

    Images without boxes are kept.

    Parameters
    ----------
    root : str or pathlib.Path
        Folder with `annotations` and the image folders.
    split : str
        Name of the annotation file, `instances_val2017` for example.

    Raises
    ------
    InputError
        pycocotools or a file is missing.
    """

    def __init__(self, root, split: str) -> None:
        # GluonCV would run pip by itself.
        if importlib.util.find_spec("pycocotools") is None:
            raise InputError("dataset: 'coco' needs pycocotools; run 'pip install pycocotools'")
        path = Path(root) / "annotations" / f"{split}.json"
        if not path.is_file():
            raise InputError(f"dataset: {path} is missing; expected the COCO layout in {root}")
        with redirect_stdout(StringIO()):
            super().__init__(root=str(root), splits=(split,), skip_empty=False)
        labels = [np.array(rows, np.float32).reshape(-1, LABEL_WIDTH) for rows in self._labels]
        self._labels = [rows[rows[:, 4] >= 0] for rows in labels]

    @property
    def labels(self) -> list:
        """Labels of all images, each (M, 6) float32."""
        return self._labels

    def aspect_ratio(self, index: int) -> float:
        """Return width / height of an image."""
        return self._im_aspect_ratios[index]

    def image_id(self, index: int) -> int:
        """Return COCO's number of an image."""
        return sorted(self.coco.getImgIds())[index]

    def _check_load_bbox(self, coco, entry):
        self._use_crowd = False
        plain = super()._check_load_bbox(coco, entry)
        self._use_crowd = True
        return [[*row, int(row not in plain)] for row in super()._check_load_bbox(coco, entry)]


def average_precision(dataset: COCOFolder, found: dict) -> dict:
    """Return COCO's AP (IoU .5 to .95), AP50 and AP75 through pycocotools.

    Parameters
    ----------
    dataset : COCOFolder
    found : dict of int to evaluate.Detection
        By image index; the images that count.
    """
    from pycocotools.cocoeval import COCOeval

    numbers = {index: dataset.image_id(index) for index in found}
    rows = [
        {
            "image_id": numbers[index],
            "category_id": dataset.contiguous_id_to_json[int(cls)],
            "score": float(score),
            "bbox": [float(v) for v in (box[0], box[1], *(box[2:] - box[:2] + 1))],
        }
        for index, detection in found.items()
        for cls, score, box in zip(*detection)
    ]
    names = ("coco_ap", "coco_ap50", "coco_ap75")
    if not rows:
        return dict.fromkeys(names, 0.0)
    with redirect_stdout(StringIO()):
        judge = COCOeval(dataset.coco, dataset.coco.loadRes(rows), "bbox")
        judge.params.imgIds = list(numbers.values())
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return {name: float(value) for name, value in zip(names, judge.stats)}
