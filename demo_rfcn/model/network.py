# SPDX-License-Identifier: Apache-2.0
"""Backbones: images to the feature maps that the RPN and the R-FCN head read.

A backbone is built as Backbone(norm_kwargs), further arguments of its batch normalisation. It
returns (RPN features, head features) of equal size. Its attributes are `stride`, the step of the
maps in pixels, and `head_units`, the width of the layers that some heads have after the pooling. A
backbone that can load the weights of a GluonCV classification model has
`load_pretrained(filename)`. Those of DEFORMABLE have `last_stage`, whose convolutions `deform`
changes.

A backbone of FPN_BACKBONES returns a list of maps for the head, finest first, described by its
`levels`, and the finest of them for the RPN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import NamedTuple

import mxnet as mx
from gluoncv import model_zoo
from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock

from ..errors import reason
from . import Array


class SmallResNet(HybridBlock):
    """A small residual network with stride 8, for images of about 160 pixels.

    The stem goes to stride 4 in one convolution: on a CPU, normalising and activating maps of half
    the image's size costs as much as all that follows. Stride 8 leaves a 28-pixel object bins of
    more than one cell at k = 3. An output sees 63 pixels, a part of the larger objects: how the
    parts are arranged is the head's business.

    Inputs: (B, 3, H, W). Outputs: RPN features and head features, both (B, 96, H / 8, W / 8).
    """

    stride = 8
    head_units = 256
    last_stage = property(lambda self: self.body[-1])

    def __init__(self, norm_kwargs: dict) -> None:
        super().__init__()
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
        features = self.body(x)
        return features, features


class HoleNet(HybridBlock):
    """A GluonCV classification network as in the R-FCN paper: stride 16, the last stage dilated.

    The last stage keeps its weights but not its stride, and its kernels are dilated ("hole"), so
    that they see the same neighbourhood as in training. The RPN reads the stage before it (conv4),
    the head reads it (conv5) through a 1 x 1 convolution to `head_units` channels.

    Inputs: (B, 3, H, W). Outputs: RPN features (B, D, H / 16, W / 16) and head features
    (B, head_units, H / 16, W / 16).
    """

    stride = 16
    head_units = 1024
    last_stage = property(lambda self: self.last)

    def __init__(self, model: HybridBlock, early: list, last: list) -> None:
        super().__init__()
        self.load_pretrained = partial(load_pretrained, model)
        with self.name_scope():
            self.early = _sequence(early)
            self.last = _sequence(last)
            self.last.apply(_dilate)
            self.reduce = nn.Conv2D(self.head_units, 1, activation="relu")

    def hybrid_forward(self, F: ModuleType, x: Array) -> tuple:
        conv4 = self.early(x)
        return conv4, self.reduce(self.last(conv4))


class Levels(NamedTuple):
    """The maps of a feature pyramid: steps in pixels, finest first, each twice the one before.

    A RoI of the canonical size, a side in pixels, is pooled from the level of stride 16. It is 224
    in arXiv:1612.03144, for images of 800 pixels.
    """

    strides: tuple[int, ...]
    canonical_size: float


class PyramidNet(HybridBlock):
    """A feature pyramid (arXiv:1612.03144) on three stages of strides 8, 16 and 32.

    Each stage reads the output of the previous one. Every map has as many `channels`.

    Inputs: (B, 3, H, W). Outputs: RPN features (B, channels, H / 8, W / 8), and a list of the maps
    for the head, of which they are the first.
    """

    stride = 8
    last_stage = property(lambda self: self.stages[-1])

    def __init__(self, stages: list, channels: int, canonical_size: float, head_units: int) -> None:
        super().__init__()
        self.levels = Levels((8, 16, 32), canonical_size)
        self.head_units = head_units
        with self.name_scope():
            self.stages = _sequence(stages)
            self.lateral, self.smooth = nn.HybridSequential(), nn.HybridSequential()
            for _ in stages:
                self.lateral.add(nn.Conv2D(channels, 1))
                self.smooth.add(nn.Conv2D(channels, 3, padding=1))

    def hybrid_forward(self, F: ModuleType, x: Array) -> tuple:
        sides = []
        for stage, lateral in zip(self.stages, self.lateral):
            x = stage(x)
            sides.append(lateral(x))
        maps = [sides.pop()]
        while sides:
            wide = F.UpSampling(maps[0], scale=2, sample_type="nearest")
            side = sides.pop()
            maps.insert(0, side + F.slice_like(wide, side, axes=(2, 3)))
        maps = [smooth(one) for smooth, one in zip(self.smooth, maps)]
        return maps[0], maps


class DeformableConv2D(nn.Conv2D):
    """A convolution whose samples move by offsets (arXiv:1703.06211), which a second one computes.

    The second one starts at 0, where this is the plain convolution. It learns at a tenth of the
    rate: an offset sums hundreds of inputs, and Adam moves all their weights by the rate, so that
    samples would jump by cells. `gluon_roi.DeformableConvolution` is such a block with MXNet's
    names of parameters; here they are those of the `plain` convolution, so that its weights load.
    """

    def __init__(self, plain: nn.Conv2D) -> None:
        like = plain._kwargs
        where = [like[name] for name in ("kernel", "stride", "pad", "dilate")]
        super().__init__(like["num_filter"], *where, use_bias=not like["no_bias"])
        height, width = like["kernel"]
        with self.name_scope():
            self.offset = nn.Conv2D(2 * height * width, *where, weight_initializer="zeros")
        self.offset.collect_params().setattr("lr_mult", 0.1)

    def hybrid_forward(
        self, F: ModuleType, x: Array, weight: Array, bias: Array | None = None
    ) -> Array:
        """Compute offsets and convolve; samples are float32, also with mixed precision."""
        inputs = (F.cast(one, dtype="float32") for one in (x, self.offset(x)))
        return F.gluon_roi.DeformableConvolution(*inputs, weight, bias, name="fwd", **self._kwargs)


def deform(stage: HybridBlock) -> None:
    """Make the 3 x 3 convolutions of a stage deformable."""
    for name, layer in list(stage._children.items()):
        if isinstance(layer, nn.Conv2D) and layer._kwargs["kernel"] == (3, 3):
            with stage.name_scope():
                setattr(stage, name, DeformableConv2D(layer))
        else:
            deform(layer)


def load_pretrained(model: HybridBlock, filename: str) -> None:
    """Load a parameter file of a classification network, but for its last layer."""
    try:
        stored = mx.nd.load(str(filename))
    except Exception as error:  # MXNet's reader raises this base class too
        raise ValueError(f"it is not a parameter file of MXNet: {reason(error)}") from error
    if not isinstance(stored, dict):
        raise ValueError("it holds arrays without names")
    if not any("." in name for name in stored):  # as MXNet wrote them before 1.3
        model.load_parameters(str(filename), ctx=mx.cpu(), allow_missing=True)
        return
    named = model._collect_params_with_prefix()
    for name, value in stored.items():
        if name.startswith(("fc.", "output.")):
            continue
        if name not in named:
            raise ValueError(f"it has a parameter '{name}', which the network lacks")
        named[name]._load_init(value, mx.cpu())


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


def _small_pyramid(norm_kwargs: dict) -> PyramidNet:
    block = partial(BasicBlockV1b, 96, norm_layer=nn.BatchNorm, norm_kwargs=norm_kwargs)

    def halved() -> HybridBlock:
        return block(strides=2, downsample=nn.Conv2D(96, 1, strides=2))

    stages = [SmallResNet(norm_kwargs).body, halved(), halved()]
    # Images of 160 pixels: a quarter of what the paper's levels are made for.
    return PyramidNet(stages, 96, 56, SmallResNet.head_units)


def _resnet_pyramid(name: str, norm_kwargs: dict) -> PyramidNet:
    model = model_zoo.get_model(name, pretrained=False, norm_kwargs=norm_kwargs)
    first = [model.conv1, model.bn1, model.relu, model.maxpool, model.layer1, model.layer2]
    net = PyramidNet([_sequence(first), model.layer3, model.layer4], 256, 224, 1024)
    net.load_pretrained = partial(load_pretrained, model)
    return net


_RESNETS = ("resnet18_v1b", "resnet50_v1b", "resnet101_v1b")

BACKBONES: dict[str, Callable[[dict], HybridBlock]] = {
    "small": SmallResNet,
    **{name: partial(_resnet, name) for name in _RESNETS},
    "mobilenet1.0": _mobilenet,
}

# With --fpn.
FPN_BACKBONES: dict[str, Callable[[dict], PyramidNet]] = {
    "small": _small_pyramid,
    **{name: partial(_resnet_pyramid, name) for name in _RESNETS},
}

# With --deform. A kernel of MobileNet reads a single channel, which is too little for offsets.
DEFORMABLE = ("small", *_RESNETS)


def backbone_stride(network: str, fpn: bool) -> int:
    """Return the step of a backbone's maps in pixels without building it."""
    if fpn:
        return PyramidNet.stride
    return SmallResNet.stride if network == "small" else HoleNet.stride
