# SPDX-License-Identifier: Apache-2.0
"""Builds the network that a configuration names: R-FCN, or one of its variants."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial

import mxnet as mx
from gluoncv import model_zoo
from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock

from .errors import InputError, reason
from .losses import RoILoss, RPNLoss, TrainGraph
from .model import RESNETS, RFCN, Detector, HoleNet, ModelConfig, PSROIHead, SmallResNet
from .variants import (
    DeformablePSROIHead,
    GlobalHead,
    LightHead,
    PerClassTrainGraph,
    PyramidFCHead,
    PyramidLightHead,
    PyramidNet,
    RandomRoILoss,
    RoIFCHead,
    ScrambledHead,
    VotingDetector,
    deform,
    sequence,
)

NETWORKS = ("small", *RESNETS)
HEADS = ("psroi", "deformable_psroi", "light_head", "roi_fc", "global", "scrambled")
FPN_HEADS = ("light_head", "roi_fc")  # with --fpn: those without position-sensitive maps
RANDOM_BLOCKS = (RandomRoILoss, ScrambledHead, nn.Dropout)  # those that draw random numbers
MAX_K = 32  # bins per side: every class has k * k maps
SMALL_UNITS = 256  # width of the layers after the pooling, with the small backbone


def roi_loss(ohem: bool, num_sample: int) -> RoILoss:
    """Return the loss of the head: of the hardest RoIs, or of random ones."""
    return RoILoss(num_sample) if ohem else RandomRoILoss(num_sample)


def train_graph(
    net: RFCN, rpn_loss: RPNLoss, roi_loss: RoILoss, static_shape: bool = False
) -> TrainGraph:
    """Return the training graph of a network, hybridized.

    With `static_shape`, a step of the small network takes 3 % less time, but MXNet 1.9.1 does not
    know that the graph changes the statistics of batch normalisation: whoever reads them has to
    wait for all work first (`mx.nd.waitall`).
    """
    graph_class = TrainGraph if net.config.class_agnostic else PerClassTrainGraph
    graph = graph_class(net, rpn_loss, roi_loss)
    graph.hybridize(static_alloc=True, static_shape=static_shape)
    return graph


def draws_random_numbers(block: HybridBlock) -> bool:
    """Return whether a block draws random numbers in training: one of `RANDOM_BLOCKS` is in it."""
    children = block._children.values()
    return isinstance(block, RANDOM_BLOCKS) or any(map(draws_random_numbers, children))


def detector(net: RFCN, voting: bool = True) -> Detector:
    """Return the detector of a network, hybridized, with or without box voting."""
    graph = VotingDetector(net) if voting else Detector(net)
    # With static_shape, it would save less than 1 ms an image, and lose as much where sizes differ.
    graph.hybridize(static_alloc=True)
    return graph


def make_backbone(config: ModelConfig, norm_kwargs: dict) -> HybridBlock:
    """Make the backbone of a configuration; `norm_kwargs` are for its batch normalisation.

    Backbones of GluonCV have a function `load_pretrained(filename)`.
    """
    if config.network == "small":
        backbone = small_pyramid(norm_kwargs) if config.fpn else SmallResNet(norm_kwargs)
    else:
        model = model_zoo.get_model(config.network, pretrained=False, norm_kwargs=norm_kwargs)
        if config.fpn:
            first = [model.conv1, model.bn1, model.relu, model.maxpool, model.layer1, model.layer2]
            backbone = PyramidNet([sequence(first), model.layer3, model.layer4], 256, 224)
        else:
            backbone = HoleNet(model, config.dilate_strided)
        backbone.load_pretrained = partial(load_classifier, model)
    if config.deform:
        deform(last_stage(backbone))
    return backbone


def small_pyramid(norm_kwargs: dict) -> PyramidNet:
    """Make a pyramid on the small backbone and two more stages."""
    block = partial(BasicBlockV1b, 96, norm_layer=nn.BatchNorm, norm_kwargs=norm_kwargs)
    stages = [SmallResNet(norm_kwargs).body]
    for _ in range(2):
        stages.append(block(strides=2, downsample=nn.Conv2D(96, 1, strides=2)))
    # Images of 160 pixels: a quarter of what the paper's levels are made for.
    return PyramidNet(stages, 96, 56)


def last_stage(backbone: HybridBlock) -> HybridBlock:
    """Return the stage whose convolutions --deform makes deformable."""
    if isinstance(backbone, PyramidNet):
        return backbone.stages[-1]
    return backbone.last if isinstance(backbone, HoleNet) else backbone.body[-1]


def make_head(config: ModelConfig, backbone: HybridBlock) -> HybridBlock:
    """Make the head of a configuration; see `PSROIHead`. A pyramid's heads read a list of maps."""
    size = len(config.classes), config.num_boxes, config.k
    units = SMALL_UNITS if config.network == "small" else HoleNet.CHANNELS
    if config.fpn:
        pyramid_head = PyramidLightHead if config.head == "light_head" else PyramidFCHead
        return pyramid_head(*size, backbone.levels, units)
    if config.head in ("light_head", "roi_fc"):
        per_roi_head = LightHead if config.head == "light_head" else RoIFCHead
        return per_roi_head(*size, config.stride, units)
    voting_heads = {
        "psroi": PSROIHead,
        "deformable_psroi": DeformablePSROIHead,
        "global": GlobalHead,
        "scrambled": ScrambledHead,
    }
    return voting_heads[config.head](*size, config.stride)


def row_names(config: ModelConfig) -> dict[str, list[tuple]]:
    """Return, by layer, what the rows of parameters stand for that depend on the options.

    Rows of equal names have the same meaning in every configuration, at any place.
    """
    anchors = [(ratio, scale) for ratio in config.anchor_ratios for scale in config.anchor_scales]
    scores: list[tuple] = [("background",), *(("class", name) for name in config.classes)]
    boxes = scores[1:] if not config.class_agnostic else [("all classes",)]
    offsets, anchor_offsets = (
        [(*row, side) for row in rows for side in "xywh"] for rows in (boxes, anchors)
    )
    score_maps, offset_maps = (
        [(*row, config.k, bin) for row in rows for bin in range(config.k**2)]
        for rows in (scores, offsets)
    )
    return {
        "rpn.score": anchors,
        "rpn.loc": anchor_offsets,
        "head.cls": scores,
        "head.box": offsets,
        "head.maps": score_maps + offset_maps,
    }


def build(
    config: ModelConfig,
    ctx: Sequence[mx.Context],
    seed: int,
    freeze_bn: bool = False,
    pretrained_base: str | None = None,
) -> RFCN:
    """Build a detector with random weights that depend only on the seed.

    With `freeze_bn`, batch normalisation keeps its statistics, scales and offsets.
    `pretrained_base` is the parameter file of the GluonCV classification network from which the
    backbone is cut; raises InputError if it belongs to another network, or the backbone accepts
    none. A first pass over a small image fixes every shape, in the order of the layers; without it
    the random numbers would be drawn in the order of first use.
    """
    mx.random.seed(seed)
    norm_kwargs = {"use_global_stats": True} if freeze_bn else {}
    net = RFCN(config, partial(make_backbone, config, norm_kwargs), partial(make_head, config))
    if pretrained_base:
        load_pretrained_base(net, pretrained_base)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is already initialized")
        net.initialize(mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2))
    side = 8 * config.stride
    *_, features = net(mx.nd.zeros((1, 3, side, side)))
    net.head(features, mx.nd.array([[0, 0, 0, side, side]]))
    if freeze_bn:
        net.collect_params(".*(gamma|beta)").setattr("grad_req", "null")
    net.collect_params().reset_ctx(list(ctx))
    return net


def load_pretrained_base(net: RFCN, path: str) -> None:
    """Load the weights of a GluonCV classification network into the backbone."""
    flag, network = "train: --pretrained-base", f"'{net.config.network}'"
    if not hasattr(net.backbone, "load_pretrained"):
        raise InputError(f"{flag} fits the networks of GluonCV, not {network}")
    try:
        net.backbone.load_pretrained(path)
    except (AssertionError, ValueError, mx.MXNetError) as error:
        raise InputError(f"{flag} {path} holds no {network} of GluonCV: {reason(error)}") from error


def load_classifier(model: HybridBlock, filename: str) -> None:
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
