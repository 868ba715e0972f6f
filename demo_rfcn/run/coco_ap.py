"""COCO's average precision through pycocotools."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

from ..data.coco import COCOFolder
from ..model.detections import Detection


def average_precision(dataset: COCOFolder, found: dict[int, Detection]) -> dict[str, float]:
    """Return COCO's AP (IoU .5 to .95), AP50 and AP75 through pycocotools.

    Parameters
    ----------
    dataset : COCOFolder
    found : dict of int to detections.Detection
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
