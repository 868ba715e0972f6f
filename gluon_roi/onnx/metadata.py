# SPDX-License-Identifier: Apache-2.0
"""Names of the outputs and metadata of GluonCV's detectors."""

from __future__ import annotations

from typing import Any

#: The outputs of GluonCV's detectors in order; only Mask R-CNN has masks.
OUTPUTS = ("ids", "scores", "boxes", "masks")
#: The entry of the metadata that lists the constants of Gluon (``params.get_constant``) among the
#: weights, such as anchors, which training must not change.
CONSTANTS = "gluon_roi.constants"
#: Mean and standard deviation of ImageNet for pixels from 0 to 255.
_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


def detector_metadata(net: Any) -> dict[str, Any]:
    """Metadata of a detector of GluonCV: class names and preprocessing.

    The image size is that of the model, or the default of GluonCV's ``load_test``. `export` writes
    the metadata to the ONNX file of a detector. With ``HybridBlock.export``, write it to a JSON
    file; docs/deploy.md describes each key and has a program that reads the file.

    Parameters
    ----------
    net : mxnet.gluon.HybridBlock
        A Faster, Mask or Double-Head R-CNN, SSD, YOLOv3 or CenterNet of GluonCV.

    Returns
    -------
    dict
        ``classes``, a name for each id; ``short`` and ``max_size``, in pixels; ``resize``, the name
        of OpenCV's interpolation; ``colour_order``; ``mean`` and ``std`` for each channel, of
        pixels from 0 to 255; ``boxes``, a description of the box format.

    Raises
    ------
    TypeError
        The model is not one of these detectors.

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
        "resize": "INTER_CUBIC",  # as load_test does
        "colour_order": "RGB",
        "mean": list(_MEAN),
        "std": list(_STD),
        "boxes": "x1, y1, x2, y2 in pixels of the resized image",
    }


def is_detector(model: Any) -> bool:
    return not _class_names(model).isdisjoint(("RCNN", "SSD", "YOLOV3", "CenterNet"))


def output_names(model: Any, names: list[str]) -> list[str]:
    """Names of a model's outputs: :data:`OUTPUTS` for GluonCV's detectors, otherwise `names`."""
    count = 0 if not is_detector(model) else 4 if "MaskRCNN" in _class_names(model) else 3
    return [*OUTPUTS[:count], *names[count:]]


def gluon_constants(symbol: Any) -> set[str]:
    """The variables of a symbol that are constants of Gluon."""
    return {
        name
        for name, attributes in symbol.attr_dict().items()
        if attributes.get("__init__", "").startswith("Constant_")
    }


def _scale(net: Any) -> tuple[int, int]:
    """Size of the short side, and maximum of the long side."""
    names = _class_names(net)
    if "RCNN" in names:
        sides = net.short if isinstance(net.short, (list, tuple)) else [net.short]
        return sides[-1], net.max_size
    if "SSD" in names:
        return net.anchor_generators[0]._im_size[0], 1024
    return (416, 1024) if "YOLOV3" in names else (512, 1024)


def _class_names(model: Any) -> set[str]:
    """The names of GluonCV's classes that the model is an instance of."""
    return {cls.__name__ for cls in type(model).__mro__ if cls.__module__[:8] == "gluoncv."}
