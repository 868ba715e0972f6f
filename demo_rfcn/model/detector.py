# SPDX-License-Identifier: Apache-2.0
"""The detector: its parameters, and its two graphs, for training and use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from types import ModuleType

import mxnet as mx
from gluoncv.nn.bbox import BBoxBatchIOU, BBoxClipToImage
from gluoncv.nn.coder import NormalizedBoxCenterDecoder
from mxnet.gluon.block import HybridBlock

import gluon_roi

from ..errors import InputError, reason
from . import Array, rpn
from .config import ModelConfig
from .heads import FPN_HEADS, HEADS
from .losses import RoILoss, RPNLoss
from .network import BACKBONES, FPN_BACKBONES, deform
from .targets import ROI_STDS, RoITargets


class RFCN(HybridBlock):
    """The parameters of a detector: backbone, RPN and head. `TrainGraph` and `Detector` use them.

    Training and detection differ in structure (targets and losses here, decoding and suppression
    there), and a hybridized block keeps one structure, so each has a graph of its own over these
    blocks.
    """

    def __init__(self, config: ModelConfig, norm_kwargs: dict) -> None:
        super().__init__()
        self.config = config
        with self.name_scope():
            backbones, heads = (FPN_BACKBONES, FPN_HEADS) if config.fpn else (BACKBONES, HEADS)
            self.backbone = backbones[config.network](norm_kwargs)
            if config.deform:
                deform(self.backbone.last_stage)
            self.anchor_grid = rpn.AnchorGrid(config.anchors, config.stride)
            self.rpn = rpn.RPNHead(128, len(config.anchors))
            self.head = heads[config.head](
                len(config.classes),
                config.num_boxes,
                config.k,
                self.backbone.levels if config.fpn else config.stride,
                self.backbone.head_units,
            )

    def hybrid_forward(self, F: ModuleType, data: Array) -> tuple:
        """Return RPN logits, RPN offsets, anchors and the head's features of an image batch."""
        rpn_features, features = self.backbone(data)
        score, loc = self.rpn(rpn_features)
        return score, loc, self.anchor_grid(rpn_features), features


def classified(
    F: ModuleType, head: HybridBlock, features: Array, boxes: Array, valid: Array
) -> Iterator[Array]:
    """Call a head on boxes (B, N, 4): logits (B, N, C + 1) and offsets (B, N, 4 * num_boxes).

    Both are float32, for any type that the head computes in. Boxes with 0 in valid (B, N) are
    padding.
    """
    image = F.contrib.arange_like(valid, axis=0).expand_dims(-1)
    image = F.broadcast_like(image, valid, lhs_axes=(1,), rhs_axes=(1,))
    image = F.where(valid, image, -F.ones_like(valid))
    rois = F.concat(image.expand_dims(-1), boxes, dim=-1).reshape((-1, 5))
    outputs = head(features, F.BlockGrad(rois))
    outputs = (F.cast(part, dtype="float32") for part in outputs)
    return (
        F.reshape_like(part, valid, lhs_begin=0, lhs_end=1, rhs_begin=0, rhs_end=2)
        for part in outputs
    )


class TrainGraph(HybridBlock):
    """One whole training pass, images and boxes to losses, in one graph.

    `rpn_num_sample` anchors of an image count in its RPN loss, and NUM_SAMPLE of its RoIs in the
    loss of the head: the hardest ones with `ohem`, otherwise random ones.

    Inputs: the parts of `data.loader.Batch`. Outputs: four (B,) losses, in the order of `LOSSES`.
    """

    LOSSES = ("rpn_cls", "rpn_box", "rcnn_cls", "rcnn_box")
    POST_NMS, NUM_SAMPLE = 128, 64

    def __init__(self, net: RFCN, rpn_num_sample: int, ohem: bool) -> None:
        super().__init__()
        with self.name_scope():
            self.net = net
            self.proposals = rpn.Proposals(self.POST_NMS)
            self.targets = RoITargets()
            self.rpn_loss = RPNLoss(rpn_num_sample)
            self.roi_loss = RoILoss(self.NUM_SAMPLE, ohem)

    def hybrid_forward(
        self, F: ModuleType, data: Array, labels: Array, rpn_cls: Array, rpn_box: Array
    ) -> tuple:
        score, loc, anchors, features = self.net(data)
        boxes, box_scores = self.proposals(score, loc, anchors, data)
        true_boxes = F.slice_axis(labels, axis=-1, begin=0, end=4)
        true_cls = F.slice_axis(labels, axis=-1, begin=4, end=5).reshape((0, -1))
        boxes = F.concat(boxes, true_boxes, dim=1)
        valid = F.concat(box_scores, true_cls, dim=1) >= 0
        targets = self.targets(boxes, valid, labels)
        cls, box = classified(F, self.net.head, features, boxes, valid)
        if not self.net.config.class_agnostic:
            own = F.maximum(targets[0] - 1, 0).expand_dims(-1)
            index = F.arange(self.net.config.num_boxes).reshape((1, 1, -1))
            own = F.broadcast_equal(own, index).expand_dims(-1)
            box = F.sum(F.broadcast_mul(box.reshape((0, 0, -4, -1, 4)), own), axis=2)
        return (*self.rpn_loss(score, loc, rpn_cls, rpn_box), *self.roi_loss(cls, box, *targets))


class Detector(HybridBlock):
    """Images to detections, in one graph that can be exported.

    Of two detections of a class, the lower-scored one is dropped from an IoU of NMS_THRESH on.
    Without a `vote_thresh` for `BoxVoting`, no boxes vote.

    Inputs: (B, 3, H, W) normalised images. Outputs, as in GluonCV's detectors: ids (B, POST_NMS,
    1), scores (B, POST_NMS, 1) and boxes (B, POST_NMS, 4) in pixels, best first, and -1 if there
    are fewer.
    """

    PROPOSALS, NMS_THRESH, SCORE_THRESH, POST_NMS = 100, 0.3, 0.01, 100

    def __init__(self, net: RFCN, vote_thresh: float | None = 0.5) -> None:
        super().__init__()
        with self.name_scope():
            self.net = net
            self.proposals = rpn.Proposals(self.PROPOSALS)
            self.decode = NormalizedBoxCenterDecoder(
                ROI_STDS, convert_anchor=True, clip=rpn.MAX_LOG_GROWTH, minimal_opset=True
            )
            self.clip = BBoxClipToImage()
            self.suppress = gluon_roi.BoxNMS(
                self.NMS_THRESH, valid_thresh=self.SCORE_THRESH, id_index=0
            )
            self.voting = None if vote_thresh is None else BoxVoting(vote_thresh)

    def hybrid_forward(self, F: ModuleType, data: Array) -> tuple:
        score, loc, anchors, features = self.net(data)
        boxes, box_scores = self.proposals(score, loc, anchors, data)
        valid = box_scores >= 0
        cls, box = classified(F, self.net.head, features, boxes, valid)
        config = self.net.config
        offsets = [
            F.slice_axis(box, axis=-1, begin=begin, end=begin + 4)
            for begin in range(0, 4 * config.num_boxes, 4)
        ]
        boxes = [self.clip(self.decode(each, boxes), data) for each in offsets]
        probability = F.broadcast_mul(F.softmax(cls, axis=-1), valid.expand_dims(-1))
        rows = []
        for index in range(len(config.classes)):
            score = F.slice_axis(probability, axis=-1, begin=index + 1, end=index + 2)
            own = F.ones_like(score) * index, score, boxes[index % len(boxes)]
            rows.append(F.concat(*own, dim=-1))
        candidates = F.concat(*rows, dim=1)
        found = F.slice_axis(self.suppress(candidates), axis=1, begin=0, end=self.POST_NMS)
        if self.voting:
            found = self.voting(found, candidates)
        return _columns(F, found)


class BoxVoting(HybridBlock):
    """Box voting (arXiv:1505.01749): detections take the mean of the boxes that agree with them.

    Boxes that suppression removes were pooled from other cells, and err in other ways. A box votes
    if its IoU with the detection's is at least `iou_thresh`, with the weight of its score.

    Inputs: detections (B, N, 6) and candidates (B, M, 6), rows [class, score, x1, y1, x2, y2] with
    class -1 if there are fewer. Output: the detections with their new boxes.
    """

    def __init__(self, iou_thresh: float) -> None:
        super().__init__()
        self._iou_thresh = iou_thresh
        with self.name_scope():
            self.iou = BBoxBatchIOU()

    def hybrid_forward(self, F: ModuleType, detections: Array, candidates: Array) -> Array:
        ids, scores, boxes = _columns(F, detections)
        voter_ids, voter_scores, voters = _columns(F, candidates)
        weights = F.broadcast_equal(ids, voter_ids.transpose((0, 2, 1)))
        weights = weights * (self.iou(boxes, voters) >= self._iou_thresh)
        weights = F.broadcast_mul(weights, voter_scores.transpose((0, 2, 1)))
        total = F.maximum(F.sum(weights, axis=-1, keepdims=True), 1e-6)
        voted = F.broadcast_div(F.batch_dot(weights, voters), total)
        absent = F.broadcast_like(ids, boxes) < 0
        return F.concat(ids, scores, F.where(absent, boxes, voted), dim=-1)


def _columns(F: ModuleType, rows: Array) -> tuple:
    """Return class (B, N, 1), score (B, N, 1) and box (B, N, 4) of rows (B, N, 6)."""
    bounds = ((0, 1), (1, 2), (2, 6))
    return tuple(F.slice_axis(rows, axis=-1, begin=begin, end=end) for begin, end in bounds)


def build(
    config: ModelConfig,
    ctx: Sequence[mx.Context],
    seed: int,
    freeze_bn: bool = False,
    pretrained_base: str | None = None,
) -> RFCN:
    """Build a detector with random weights that depend only on the seed.

    With `freeze_bn`, batch normalisation keeps its statistics, scales and offsets.
    `pretrained_base` is the parameter file of the GluonCV classification network that the backbone
    is cut from; raises InputError if it belongs to another network, or the backbone takes none. A
    first pass over a small image fixes every shape, in the order of the layers; without it the
    draws would follow the order of first use.
    """
    mx.random.seed(seed)
    net = RFCN(config, {"use_global_stats": True} if freeze_bn else {})
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
