# SPDX-License-Identifier: Apache-2.0
"""COCO's average precision through pycocotools."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import numpy as np

from ..data.dataset import DetectionSet
from ..model.detections import Detection

_NAMES = ("coco_ap", "coco_ap50", "coco_ap75")


def average_precision(dataset: DetectionSet, found: dict[int, Detection]) -> dict[str, float]:
    """Return COCO's AP (IoU .5 to .95), AP50 and AP75 through pycocotools.

    Parameters
    ----------
    dataset : dataset.DetectionSet
    found : dict of int to detections.Detection
        By image index; the images that count.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rows = [
        {
            "image_id": index,
            "category_id": int(cls),
            "score": float(score),
            "bbox": _corner_and_size(box),
        }
        for index, detection in found.items()
        for cls, score, box in zip(*detection)
    ]
    if not rows:
        return dict.fromkeys(_NAMES, 0.0)
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": index} for index in found],
        "categories": [{"id": cls, "name": name} for cls, name in enumerate(dataset.classes)],
        "annotations": _annotations(dataset, found),
    }
    with redirect_stdout(StringIO()):
        truth.createIndex()
        scorer = COCOeval(truth, truth.loadRes(rows), "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    return {name: float(value) for name, value in zip(_NAMES, scorer.stats)}


def _annotations(dataset: DetectionSet, found: dict[int, Detection]) -> list[dict]:
    made: list[dict] = []
    for index in found:
        entry = dataset.entries[index]
        for row, crowd in zip(entry.labels, entry.crowd):
            box = _corner_and_size(row[:4])
            made.append(
                {
                    "id": len(made) + 1,
                    "image_id": index,
                    "category_id": int(row[4]),
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": int(crowd),
                }
            )
    return made


def _corner_and_size(box: np.ndarray) -> list[float]:
    """Return COCO's form of a box whose ends are inclusive."""
    return [float(side) for side in (*box[:2], *(box[2:] - box[:2] + 1))]
