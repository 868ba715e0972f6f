# SPDX-License-Identifier: Apache-2.0
"""Scores of a detector: GluonCV's and COCO's average precision, recall of the RPN."""

from __future__ import annotations

import math
import time
from contextlib import redirect_stdout
from io import StringIO

import mxnet as mx
import numpy as np
from gluoncv.utils.metrics import VOC07MApMetric, VOCMApMetric

from .data.dataset import BOX, CLASS, DIFFICULT, DetectionSet, plural
from .data.loader import load_image, normalise
from .data.splits import choose_indices
from .errors import InputError
from .model import iou
from .predictor import Detection, Predictor
from .progress import Progress

#: GluonCV's metrics add 1 to x2 and y2, as VOC's do, whose boxes end at their last pixel.
LAST_PIXEL = np.array([0, 0, 1, 1], np.float32)
METRICS = {
    "map50": (VOCMApMetric, 0.5),
    "map75": (VOCMApMetric, 0.75),
    "voc07_map50": (VOC07MApMetric, 0.5),
    "voc07_map75": (VOC07MApMetric, 0.75),
}


def check_annotated(dataset: DetectionSet) -> None:
    """Raise InputError unless an image has an object that is not difficult."""
    if not any((rows[:, DIFFICULT] == 0).any() for rows in dataset.labels):
        where = f"in the {plural(len(dataset), 'image')} of {dataset}"
        expected = "expected at least one that is not difficult"
        raise InputError(f"dataset: no annotated object {where}, {expected}")


def evaluate(predictor: Predictor, dataset: DetectionSet, limit: int | None = None) -> dict:
    """Return `scores` of at most `limit` images, and `ms_per_image` with reading and scaling."""
    check_annotated(dataset)
    indices = choose_indices(dataset, limit)
    start = time.perf_counter()
    found = predictor(dataset, indices)
    elapsed = time.perf_counter() - start
    return {**scores(dataset, found), "ms_per_image": 1000 * elapsed / len(indices)}


def scores(dataset: DetectionSet, found: dict[int, Detection]) -> dict:
    """Return the scores of the detections of some images by index, ready for JSON.

    These are the mAP of each of `METRICS`, the same `per_class`, the number of `images`, and how
    many of them the detector was `trained_on`, None if that is unknown; a COCO file has COCO's own
    figures too. The AP of a class without objects is None.
    """
    names, known = {dataset.samples[index].name for index in found}, dataset.trained_on
    result: dict = {"images": len(found)}
    result["trained_on"] = None if known is None else len(known & names)
    if dataset.is_coco:
        result.update(average_precision(dataset, found))
    per_class: dict[str, dict] = {name: {} for name in dataset.classes}
    for name, (metric_class, iou_thresh) in METRICS.items():
        metric = metric_class(iou_thresh=iou_thresh, class_names=dataset.classes)
        for index, (ids, confidences, boxes) in found.items():
            truth = dataset.samples[index].labels
            predicted = (boxes - LAST_PIXEL, ids, confidences)
            true = (truth[:, BOX] - LAST_PIXEL, truth[:, CLASS], truth[:, DIFFICULT])
            metric.update(*(part[None] for part in (*predicted, *true)))
        _, values = metric.get()  # the classes' and their mean, whose name a class may have, too
        for row, value in zip([*per_class.values(), result], values):
            row[name] = None if math.isnan(value) else float(value)
    return {**result, "per_class": per_class}


def describe_images(scores: dict) -> str:
    """Return the number of images of some scores, and of those that were trained on."""
    images, trained_on = plural(scores["images"], "image"), scores["trained_on"]
    if trained_on is None:
        return f"{images}, perhaps trained on: the checkpoint does not store which images it saw"
    if trained_on:
        return f"{images}, {trained_on} of them trained on"
    return plural(scores["images"], "held-back image")


def rpn_recall(predictor: Predictor, dataset: DetectionSet) -> dict[str, float]:
    """Return the share of objects that the best n proposals cover with an IoU of 0.5, by n.

    At most a hundred images are used, without difficult objects.
    """
    net, propose = predictor.detector.net, predictor.detector.proposals
    covered, total = dict.fromkeys((10, 30, 100), 0), 0
    for index in Progress("recall of the proposals", "images", choose_indices(dataset, 100)):
        image, labels = load_image(dataset, index, *predictor.scale)
        objects = labels[labels[:, DIFFICULT] == 0]
        data = mx.nd.array(normalise(image)[None], ctx=predictor.ctx[0])
        features, _ = net.backbone(data)
        boxes, ranks = propose(*net.rpn(features), net.anchor_grid(features), data)
        boxes = boxes[0].asnumpy()[ranks[0].asnumpy() >= 0]
        total += len(objects)
        for top in covered:
            if len(objects) and len(boxes):
                overlaps = iou(np, boxes[:top, None], objects[:, BOX])[..., 0]
                covered[top] += int((overlaps.max(axis=0) >= 0.5).sum())
    return {str(top): count / max(total, 1) for top, count in covered.items()}


def average_precision(dataset: DetectionSet, found: dict[int, Detection]) -> dict[str, float]:
    """Return COCO's AP (IoU 0.5 to 0.95), AP50 and AP75 of the detections by image index."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    rows = [
        {**_annotation(index, cls, box), "score": float(score)}
        for index, detection in found.items()
        for cls, score, box in zip(*detection)
    ]
    names = "coco_ap", "coco_ap50", "coco_ap75"
    if not rows:
        return dict.fromkeys(names, 0.0)
    objects: list[dict] = []
    for index in found:
        entry = dataset.samples[index]
        for row, crowd in zip(entry.labels, entry.crowd):
            mark = {"id": len(objects) + 1, "iscrowd": int(crowd)}
            objects.append({**mark, **_annotation(index, row[CLASS], row[BOX])})
    images = [{"id": index} for index in found]
    categories = [{"id": cls, "name": name} for cls, name in enumerate(dataset.classes)]
    truth = COCO()
    truth.dataset = dict(info={}, images=images, categories=categories, annotations=objects)
    with redirect_stdout(StringIO()):
        truth.createIndex()
        scorer = COCOeval(truth, truth.loadRes(rows), "bbox")
        scorer.evaluate()
        scorer.accumulate()
        scorer.summarize()
    return {name: float(value) for name, value in zip(names, scorer.stats)}


def _annotation(index: int, cls: float, box: np.ndarray) -> dict:
    """Return COCO's form of a box."""
    x, y, width, height = map(float, (*box[:2], *(box[2:] - box[:2])))
    sides = {"bbox": [x, y, width, height], "area": width * height}
    return {"image_id": index, "category_id": int(cls), **sides}
