# SPDX-License-Identifier: Apache-2.0
"""Every family of GluonCV's models as ONNX: the smallest model, with random weights.

    .venv/bin/pip install onnxruntime openvino==2026.4.1
    .venv/bin/python -m testing.onnx_runtimes.zoo [FAMILY ...]

Prints the table of docs/results/onnx.md, with PyTorch where it is installed: the largest difference
of the outputs from MXNet's, relative to the largest number of each; for detectors, how many
detections are found again. Detectors are optimized first, because MXNet's own operators are wrong
on padding rows.
tests/onnx/test_onnx_zoo.py runs the same models.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any, Callable, NamedTuple

import numpy as np

from .check import WAYS, difference, installed
from .detectors import compare, rows


class Model(NamedTuple):
    """A model of the zoo."""

    name: str
    shapes: tuple  # of its inputs
    detects: bool = False  # its outputs are detections: classes, scores, boxes
    options: dict = {}
    magnitude: float = 2.0  # of the weights: scores are apart, and boxes finite
    output_names: tuple = ()  # where several outputs have one name in MXNet


def _image(name: str, height: int = 64, width: int = 64, **options: Any) -> Model:
    return Model(name, ((1, 3, height, width),), options=options)


def _detector(name: str, height: int = 128, width: int = 160, magnitude: float = 2.0) -> Model:
    return Model(name, ((1, 3, height, width),), True, magnitude=magnitude)


def _clip(name: str, frames: int = 16, size: int = 112) -> Model:
    return Model(name, ((1, 3, frames, size, size),))


FAMILIES = {
    "AlexNet": _image("alexnet", 96, 96),
    "CIFAR ResidualAttentionNet": _image("cifar_residualattentionnet56", 32, 32),
    "CIFAR ResNet v1": _image("cifar_resnet20_v1", 32, 32),
    "CIFAR ResNet v2": _image("cifar_resnet20_v2", 32, 32),
    "CIFAR ResNeXt": _image("cifar_resnext29_16x64d", 32, 32),
    "CIFAR WideResNet": _image("cifar_wideresnet16_10", 32, 32),
    "Darknet": _image("darknet53"),
    "DenseNet": _image("densenet121", 224, 224),
    "DLA": _image("dla34"),
    "GoogLeNet": _image("googlenet", 224, 224),
    "HRNet": _image("hrnet_w18_small_v1_c"),
    "Inception v3": _image("inceptionv3", 299, 299),
    "MobileNet": _image("mobilenet0.25"),
    "MobileNet v2": _image("mobilenetv2_0.25"),
    "MobileNet v3": _image("mobilenetv3_small"),
    "NASNet": _image("nasnet_4_1056", 224, 224),
    "ResidualAttentionNet": _image("residualattentionnet56", 224, 224),
    "ResNeSt": _image("resnest14"),
    "ResNet v1": _image("resnet18_v1"),
    "ResNet v2": _image("resnet18_v2"),
    "ResNet v1b": _image("resnet18_v1b"),
    "ResNet v1c": _image("resnet50_v1c"),
    "ResNet v1d, pruned": _image("resnet50_v1d_0.11"),
    "ResNet v1s": _image("resnet50_v1s"),
    "ResNeXt": _image("resnext50_32x4d"),
    "SE-ResNet": _image("se_resnet18_v1"),
    "SE-ResNeXt": _image("se_resnext50_32x4d"),
    "SENet": _image("senet_154"),
    "ShuffleNet v1": _image("shufflenet_v1", 224, 224),
    "ShuffleNet v2": _image("shufflenet_v2", 224, 224),
    "SqueezeNet": _image("squeezenet1.0", 224, 224),
    "VGG": _image("vgg11_bn"),
    "Xception": _image("xception", 299, 299),
    "SSD": _detector("ssd_300_mobilenet0.25_voc", 300, 300, magnitude=1.5),
    "YOLOv3": _detector("yolo3_mobilenet0.25_voc", magnitude=6),
    "CenterNet": _detector("center_net_resnet18_v1b_voc", magnitude=3),
    "CenterNet, deformable": _detector("center_net_resnet18_v1b_dcnv2_voc", magnitude=6),
    "CenterNet, DLA": _detector("center_net_dla34_voc", magnitude=3),
    "Faster R-CNN": _detector("faster_rcnn_resnet50_v1b_voc"),
    "Faster R-CNN FPN": _detector("faster_rcnn_fpn_resnet50_v1b_coco"),
    "Faster R-CNN FPN, SyncBN": _detector("faster_rcnn_fpn_syncbn_resnest50_coco"),
    "Double-Head R-CNN": _detector("doublehead_rcnn_resnet50_v1b_voc"),
    "Mask R-CNN": _detector("mask_rcnn_resnet18_v1b_coco"),
    "Mask R-CNN FPN": _detector("mask_rcnn_fpn_resnet18_v1b_coco"),
    "FCN": _image("fcn_resnet50_voc", crop_size=64),
    "DeepLabV3": _image("deeplab_resnet50_ade", crop_size=64),
    "DeepLabV3+": _image("deeplab_v3b_plus_wideresnet_citys", crop_size=64),
    "PSPNet": _image("psp_resnet50_ade", crop_size=64),
    "ICNet": _image("icnet_resnet50_citys", 128, 128, crop_size=128),
    "DANet": _image("danet_resnet50_citys", crop_size=64),
    "Fast-SCNN": _image("fastscnn_citys", 256, 256, crop_size=256),
    "HRNet, segmentation": _image("hrnet_w18_small_v1_s"),
    "Simple Pose": _image("simple_pose_resnet18_v1b"),
    "AlphaPose": _image("alpha_pose_resnet101_v1b_coco"),
    "Mobile Pose": _image("mobile_pose_mobilenet1.0"),
    "C3D": _clip("c3d_kinetics400"),
    "I3D": _clip("i3d_resnet50_v1_kinetics400"),
    "I3D, Inception": _clip("i3d_inceptionv1_kinetics400", size=224),
    "I3D, non-local": _clip("i3d_nl5_resnet50_v1_kinetics400"),
    "P3D": _clip("p3d_resnet50_kinetics400"),
    "R(2+1)D": _clip("r2plus1d_resnet18_kinetics400"),
    "SlowFast": _clip("slowfast_4x16_resnet50_kinetics400", frames=64),
    "Monodepth2": Model(
        "monodepth2_resnet18_kitti_mono_640x192",
        ((1, 3, 192, 640),),
        output_names=("disparity3", "disparity2", "disparity1", "disparity0"),
    ),
    "SiamRPN": Model("siamrpn_alexnet_v2_otb15", ((1, 3, 127, 127), (1, 3, 287, 287))),
}


class Case:
    """A model, its inputs, and MXNet's outputs."""

    def __init__(self, net: Any, inputs: list):
        self.net = net
        self._arrays = inputs
        self.inputs = [x.asnumpy() for x in inputs]

    @functools.cached_property
    def outputs(self) -> list[np.ndarray]:
        return flat(self.net(*self._arrays))


def case(model: Model, proposals: int | None = None) -> Case:
    """The model with random weights, switched if it has RoI operators."""
    import mxnet as mx

    import gluon_roi

    mx.random.seed(0)
    np.random.seed(0)
    inputs = [mx.nd.random.normal(shape=shape) for shape in model.shapes]
    net = built(model, inputs, proposals)
    if "rcnn" in model.name:
        gluon_roi.optimize(net, *inputs)
    return Case(net, inputs)


def built(model: Model, inputs: list, proposals: int | None = None) -> Any:
    import mxnet as mx
    from gluoncv.model_zoo import get_model

    from ..detectors import FanIn, make_detector

    if "rcnn" in model.name:
        return make_detector(model.name, inputs[0], proposals)
    options: dict[str, Any] = {"pretrained": False, **model.options}
    try:
        net = get_model(model.name, pretrained_base=False, **options)
    except (TypeError, Warning):  # not all of them have a base
        net = get_model(model.name, **options)
    initialize = FanIn(factor_type="in", magnitude=model.magnitude)
    net.initialize(initialize)
    net(*inputs)
    for name, parameter in net.collect_params(".*weight").items():
        initialize(mx.init.InitDesc(name), parameter.data())  # also where a layer has its own
    return net


def export(made: Case, model: Model, path: str) -> None:
    import gluon_roi

    names = model.output_names or None
    gluon_roi.onnx.export(made.net, list(model.shapes), path, output_names=names)


def flat(outputs: Any) -> list[np.ndarray]:
    if isinstance(outputs, (list, tuple)):
        return [array for one in outputs for array in flat(one)]
    return [outputs.asnumpy()]


def differences(found: list, expected: list) -> float:
    """The largest difference of all outputs, relative to the largest number of each."""
    assert len(found) == len(expected)
    return max(
        difference(ours, theirs) / max(np.abs(theirs).max(), 1e-30)
        for ours, theirs in zip(found, expected)
    )


def detections(outputs: list) -> np.ndarray:
    """Rows of class, score and corners; masks, which some models add, are left out."""
    kinds, scores, boxes = outputs[:3]
    return rows([kinds.reshape(-1, 1), scores.reshape(-1, 1), boxes])


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", default=list(FAMILIES))
    arguments = parser.parse_args()
    runtimes = installed()
    print("| family | model |", " | ".join(runtimes), "|")
    print("|---" * (2 + len(runtimes)) + "|")
    for family in arguments.families:
        model = FAMILIES[family]
        with contextlib.redirect_stdout(sys.stderr):  # some of GluonCV's models print
            made = case(model)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.onnx")
            try:
                export(made, model, path)
            except NotImplementedError as error:
                print(f"| {family} | `{model.name}` | {error} |", flush=True)
                continue
            cells = [_cell(WAYS[name](path), model, made) for name in runtimes]
        print(f"| {family} | `{model.name}` |", " | ".join(cells), "|", flush=True)


def _cell(run: Callable[..., list], model: Model, made: Case) -> str:
    found = run(*made.inputs)
    if not model.detects:
        return f"{differences(found, made.outputs):.0e}".replace("e-0", "e-")
    expected = detections(made.outputs)
    count, score, corner = compare(detections(found), expected)
    return f"{count} of {len(expected)}; {score:.0e}, {corner:.0e} px".replace("e-0", "e-")


if __name__ == "__main__":
    main()
