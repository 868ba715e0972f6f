# SPDX-License-Identifier: Apache-2.0
"""What an exported detector needs besides its graph: names of its outputs, and metadata."""

from __future__ import annotations

from typing import Any

#: The outputs of GluonCV's detectors, in their order; only Mask R-CNN has the last.
OUTPUTS = ("ids", "scores", "boxes", "masks")
#: ImageNet's, of pixels from 0 to 255.
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def detector_metadata(net: Any) -> dict[str, Any]:
    """What a program has to know to use one of GluonCV's detectors: classes, and preparation.

    The scale is that of the model, or of GluonCV's ``load_test`` if the model has none. `export`
    writes all of it into the ONNX file of such a detector. For the files of
    ``HybridBlock.export``, write it beside them as JSON; docs/deploy.md has a program that reads
    it, and describes each key.

    Parameters
    ----------
    net : mxnet.gluon.HybridBlock
        A Faster, Mask or Double-Head R-CNN, SSD, YOLOv3 or CenterNet of GluonCV.

    Returns
    -------
    dict
        ``classes``, a name for each id; ``short`` and ``max_size``, in pixels; ``resize``, the name
        of OpenCV's interpolation; ``colour_order``; ``mean`` and ``std`` for each channel, of
        pixels from 0 to 255; ``boxes``, a sentence on the form of boxes.

    Raises
    ------
    TypeError
        It is another model.

    Examples
    --------
    >>> import gluon_roi
    >>> from gluoncv.model_zoo import get_model
    >>> net = get_model('ssd_300_mobilenet0.25_voc', pretrained_base=False)
    >>> found = gluon_roi.onnx.detector_metadata(net)
    >>> found['classes'][:2], found['short'], found['max_size'], found['resize']
    (['aeroplane', 'bicycle'], 300, 1024, 'INTER_CUBIC')
    """
    if not is_detector(net):
        raise TypeError(
            f"onnx.detector_metadata: expected one of GluonCV's detectors, got {type(net).__name__}"
        )
    short, max_size = _scale(net)
    return {
        "classes": list(net.classes),
        "short": int(short),
        "max_size": int(max_size),
        "resize": "INTER_CUBIC",  # of load_test
        "colour_order": "RGB",
        "mean": list(_MEAN),
        "std": list(_STD),
        "boxes": "x1, y1, x2, y2 in pixels of the resized image",
    }


def is_detector(model: Any) -> bool:
    return not _kinds(model).isdisjoint(("RCNN", "SSD", "YOLOV3", "CenterNet"))


def output_names(model: Any, own: list[str]) -> list[str]:
    """Names of a model's outputs: its own, but :data:`OUTPUTS` for GluonCV's detectors."""
    count = 0 if not is_detector(model) else 4 if "MaskRCNN" in _kinds(model) else 3
    return [*OUTPUTS[:count], *own[count:]]


def _scale(net: Any) -> tuple[int, int]:
    """Short side, and limit of the long one."""
    kinds = _kinds(net)
    if "RCNN" in kinds:
        sides = net.short if isinstance(net.short, (list, tuple)) else [net.short]
        return sides[-1], net.max_size
    if "SSD" in kinds:
        return net.anchor_generators[0]._im_size[0], 1024
    return (416, 1024) if "YOLOV3" in kinds else (512, 1024)


def _kinds(model: Any) -> set[str]:
    """The names of GluonCV's classes that a model is of."""
    return {kind.__name__ for kind in type(model).__mro__ if kind.__module__[:8] == "gluoncv."}
