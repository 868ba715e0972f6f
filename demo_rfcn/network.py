"""Backbones: images to the feature maps that the RPN and the R-FCN head read.

A backbone is built as Backbone(norm_kwargs) and gives (RPN features, head features) of equal size.
Its class attributes: `stride`, the step of the maps in pixels, and `head_units`, the width of the
layers that some heads put behind the pooling. A backbone whose weights can come from a GluonCV
classification model has `load_pretrained(filename)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import mxnet as mx
from gluoncv import model_zoo
from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock

from .arrays import Array
from .files import save_and_reload, temporary_folder


class SmallResNet(HybridBlock):
    """A small residual network with stride 8, for images of about 160 pixels.

    The stem goes to stride 4 in one convolution: on a CPU, normalising and activating maps of half
    the image's size costs as much as all that follows. Stride 8 leaves a 28-pixel object bins of
    more than one cell at k = 3. An output sees 63 pixels, a part of the larger objects: how the
    parts are arranged is the head's business.

    Parameters
    ----------
    norm_kwargs : dict
        Further arguments of the batch normalisation.

    Inputs: (B, 3, H, W). Outputs: RPN features and head features, both (B, 96, H / 8, W / 8).
    """

    stride = 8
    head_units = 256

    def __init__(self, norm_kwargs: dict, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        block = partial(BasicBlockV1b, 96, norm_layer=nn.BatchNorm, norm_kwargs=norm_kwargs)
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(48, 7, strides=4, padding=3, use_bias=False),
                nn.BatchNorm(**norm_kwargs),
                nn.Activation("relu"),
                block(strides=2, downsample=nn.Conv2D(96, 1, strides=2)),
                block(),
            )

    def hybrid_forward(self, F: ModuleType, x: Array) -> tuple:
        """Return the same maps for the RPN and for the head."""
        features = self.body(x)
        return features, features


class HoleNet(HybridBlock):
    """A GluonCV classification network as in the R-FCN paper: stride 16, the last stage dilated.

    The last stage keeps its weights but not its stride, and its kernels are dilated ("hole"), so
    that they see what they were trained to see. The RPN reads the stage before it (conv4), the head
    reads it (conv5) through a 1 x 1 convolution to `head_units` channels.

    Inputs: (B, 3, H, W). Outputs: RPN features (B, D, H / 16, W / 16) and head features
    (B, head_units, H / 16, W / 16).
    """

    stride = 16
    head_units = 1024

    def __init__(self, model: HybridBlock, early: list, last: list, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._load = model.load_parameters
        with self.name_scope():
            self.early = _sequence(early)
            self.last = _sequence(last)
            self.last.apply(_dilate)
            self.reduce = nn.Conv2D(self.head_units, 1, activation="relu")

    def load_pretrained(self, filename: str) -> None:
        """Load a parameter file of the whole network, whatever number of classes it has."""
        stored = mx.nd.load(filename)
        kept = {k: v for k, v in stored.items() if not k.startswith(("fc.", "output."))}
        with temporary_folder() as work:
            path = work / "params"
            save_and_reload(lambda: mx.nd.save(str(path), kept), path)
            self._load(str(path), ctx=mx.cpu(), allow_missing=True)

    def hybrid_forward(self, F: ModuleType, x: Array) -> tuple:
        """Return conv4 and the reduced conv5."""
        conv4 = self.early(x)
        return conv4, self.reduce(self.last(conv4))


def _sequence(layers: list) -> nn.HybridSequential:
    sequence = nn.HybridSequential()
    sequence.add(*layers)
    return sequence


def _dilate(layer: HybridBlock) -> None:
    """Take the stride from a convolution and dilate its kernel by two; others stay."""
    if isinstance(layer, nn.Conv2D):
        settings = layer._kwargs
        settings["stride"] = (1, 1)
        if settings["kernel"] == (3, 3):
            settings["dilate"] = settings["pad"] = (2, 2)


def _resnet(name: str, norm_kwargs: dict) -> HoleNet:
    model = model_zoo.get_model(name, pretrained=False, norm_kwargs=norm_kwargs)
    early = [model.conv1, model.bn1, model.relu, model.maxpool]
    early += [model.layer1, model.layer2, model.layer3]
    return HoleNet(model, early, [model.layer4])


def _mobilenet(norm_kwargs: dict) -> HoleNet:
    model = model_zoo.get_model("mobilenet1.0", pretrained=False, norm_kwargs=norm_kwargs)
    layers = list(model.features)[:-2]  # without the global pooling and the flattening
    convolutions = [n for n, layer in enumerate(layers) if isinstance(layer, nn.Conv2D)]
    strided = [n for n in convolutions if layers[n]._kwargs["stride"] == (2, 2)]
    return HoleNet(model, layers[: strided[-1]], layers[strided[-1] :])


BACKBONES: dict[str, Callable[[dict], HybridBlock]] = {
    "small": SmallResNet,
    "resnet18_v1b": partial(_resnet, "resnet18_v1b"),
    "resnet50_v1b": partial(_resnet, "resnet50_v1b"),
    "resnet101_v1b": partial(_resnet, "resnet101_v1b"),
    "mobilenet1.0": _mobilenet,
}


def backbone_stride(network: str) -> int:
    """Return the step of a backbone's maps in pixels without building it."""
    return SmallResNet.stride if network == "small" else HoleNet.stride
