"""Scores of a detector: mean average precision through GluonCV's metrics, recall of the RPN."""

from __future__ import annotations

import math
import time

import mxnet as mx
from gluoncv.utils.bbox import bbox_iou
from gluoncv.utils.metrics import VOC07MApMetric, VOCMApMetric

from ..data import Dataset
from ..data.coco import COCOFolder
from ..data.loader import load_image, normalise
from ..errors import InputError
from ..model.detections import detect_dataset
from ..model.detector import Detector
from .coco_ap import average_precision

METRICS = {
    "map50": (VOCMApMetric, 0.5),
    "map75": (VOCMApMetric, 0.75),
    "voc07_map50": (VOC07MApMetric, 0.5),
    "voc07_map75": (VOC07MApMetric, 0.75),
}


def check_annotated(dataset: Dataset, limit: int | None) -> None:
    """Refuse images that no detector could be judged by.

    Raises
    ------
    InputError
        None of the first `limit` images has an annotated object.
    """
    labels = dataset.labels[:limit]
    if not any(len(rows) for rows in labels):
        raise InputError(
            f"eval: no annotated object in the first {len(labels)} images of {dataset}, "
            "expected at least one"
        )


def evaluate(
    detector: Detector,
    dataset: Dataset,
    short: int,
    max_size: int,
    ctx: mx.Context,
    limit: int | None = None,
) -> dict:
    """Evaluate a detector on the first `limit` images of a data set.

    Returns
    -------
    dict
        JSON-ready: the names of `METRICS` to mAP, `per_class` to the AP of every class under each,
        `images`, and `ms_per_image`, reading and scaling included; COCO's own figures for a COCO
        folder. A class without objects has None.

    Raises
    ------
    InputError
        No image has an annotated object.
    """
    check_annotated(dataset, limit)
    indices = range(min(limit or len(dataset), len(dataset)))
    labels = {index: dataset.labels[index] for index in indices}
    metrics = {
        name: kind(iou_thresh=iou, class_names=dataset.classes)
        for name, (kind, iou) in METRICS.items()
    }
    start = time.perf_counter()
    found = dict(detect_dataset(detector, dataset, indices, short, max_size, ctx))
    elapsed = time.perf_counter() - start
    for index, detection in found.items():
        truth = labels[index]
        for metric in metrics.values():
            metric.update(
                detection.boxes[None],
                detection.ids[None],
                detection.scores[None],
                truth[None, :, :4],
                truth[None, :, 4],
                truth[None, :, 5],
            )
    result: dict[str, float | None] = {
        "images": len(indices),
        "ms_per_image": 1000 * elapsed / len(indices),
    }
    if isinstance(dataset, COCOFolder):
        result.update(average_precision(dataset, found))
    per_class: dict = {name: {} for name in dataset.classes}
    for name, metric in metrics.items():
        for class_name, value in zip(*metric.get()):
            value = None if math.isnan(value) else float(value)
            if class_name == "mAP":
                result[name] = value
            else:
                per_class[class_name][name] = value
    return {**result, "per_class": per_class}


def rpn_recall(
    detector: Detector,
    dataset: Dataset,
    short: int,
    max_size: int,
    ctx: mx.Context,
    images: int = 100,
) -> dict[str, float]:
    """Return the part of the objects that the best n proposals cover with an IoU of .5.

    Parameters
    ----------
    detector : detector.Detector
    dataset : VOCFolder or COCOFolder
    short, max_size : int
    ctx : mxnet.Context
    images : int
        How many of the first images count; difficult objects do not.

    Returns
    -------
    dict
        n to recall, for n = 10, 30 and 100.
    """
    tops = (10, 30, 100)
    covered = dict.fromkeys(tops, 0)
    total = 0
    for index in range(min(images, len(dataset))):
        image, labels, _ = load_image(dataset, index, short, max_size)
        objects = labels[labels[:, 5] == 0]
        data = mx.nd.array(normalise(image)[None], ctx=ctx)
        features, _ = detector.net.backbone(data)
        anchors = detector.net.anchor_grid(features)
        boxes, scores = detector.proposals(*detector.net.rpn(features), anchors, data)
        boxes = boxes[0].asnumpy()[scores[0].asnumpy() >= 0]
        total += len(objects)
        for top in tops:
            if len(objects) and len(boxes):
                iou = bbox_iou(boxes[:top], objects[:, :4])
                covered[top] += int((iou.max(axis=0) >= 0.5).sum())
    return {str(top): covered[top] / max(total, 1) for top in tops}
