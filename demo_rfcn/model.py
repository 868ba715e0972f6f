# SPDX-License-Identifier: Apache-2.0
"""R-FCN (arXiv:1605.06409): backbone, region proposals, position-sensitive head, detection.

The method is in three files, to be read in this order: this one, `losses.py` (targets, hard example
mining, the training graph) and `train.py` (the loop). In `hybrid_forward`, F is the module
`mxnet.ndarray` or `mxnet.symbol`, and Array is the module's NDArray or Symbol.

Boxes are x1, y1, x2, y2: edges in pixels. A box has the width x2 - x1, and an image of width w has
boxes from 0 to w.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Union

import mxnet as mx
import numpy as np
from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from mxnet import init
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock

import gluon_roi

Array = Union[mx.nd.NDArray, mx.sym.Symbol]

RESNETS = ("resnet18_v1b", "resnet50_v1b", "resnet101_v1b")  # GluonCV's names
RPN_STDS, ROI_STDS = (1.0, 1.0), (0.1, 0.2)  # divisors of the shift and the growth of a box
MAX_GROWTH = 1000 / 16  # of a side, when a box is decoded
ANCHOR_BASE = 16  # pixels; the unit of anchor scales
RPN_PRE_NMS, RPN_NMS_THRESH, RPN_MIN_SIZE = 600, 0.7, 8  # in training and detection
RPN_CHANNELS = 128  # of the RPN's 3 x 3 convolution
NEAR_ZERO = init.Normal(0.01)


@dataclass(frozen=True)
class ModelConfig:
    """Settings that define the parameters and their meaning; stored in every checkpoint."""

    classes: tuple[str, ...]  # without background
    network: str  # "small" or one of RESNETS
    head: str  # "psroi", or a head of `variants.py`
    k: int  # bins per side of the pooling
    class_agnostic: bool  # whether all classes share the box offsets
    anchor_scales: tuple[float, ...]  # sides in units of ANCHOR_BASE
    anchor_ratios: tuple[float, ...]  # height / width
    fpn: bool = False  # whether the head reads a feature pyramid
    deform: bool = False  # whether the last stage of the backbone is deformable
    dilate_strided: bool = False  # only in old checkpoints, see `HoleNet`

    @property
    def stride(self) -> int:
        """Stride of the feature maps in pixels."""
        return 8 if self.network == "small" or self.fpn else 16

    @property
    def num_boxes(self) -> int:
        """Number of sets of four box offsets that the head returns per RoI."""
        return 1 if self.class_agnostic else len(self.classes)

    @property
    def anchors(self) -> np.ndarray:
        """Anchors of the first cell, (A, 4) float32 corners in pixels."""
        return base_anchors(self.stride, self.anchor_scales, self.anchor_ratios)


class SmallResNet(HybridBlock):
    """A small residual network with stride 8, for images of about 160 pixels.

    The stem goes to stride 4 in one convolution: on a CPU, normalising and activating maps of half
    the image's size costs as much as all later layers. At stride 8 and k = 3, the bins of a
    28-pixel object have more than one cell. The receptive field covers only a part of a larger
    object, so the head has to learn how the parts are arranged.

    Inputs: (B, 3, H, W). Outputs: RPN features and head features, both (B, 96, H / 8, W / 8).
    """

    RECEPTIVE_FIELD = 63  # pixels

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
    """A GluonCV ResNet as in the R-FCN paper: stride 16, the last stage dilated.

    The last stage keeps its weights but not its stride. The kernels behind the layer that had the
    stride are dilated ("hole"), so that they read the same cells as in the classification network:
    every second cell of the stage equals a cell of the classifier's. The kernel that had the stride
    reads cells of stride 16 as before, so it is not dilated; in GluonCV's networks it is the first
    3 x 3 kernel of the stage, in Caffe's a 1 x 1 kernel. With `dilate_strided`, it is dilated all
    the same: detectors that were trained so keep the form of their weights.

    The RPN reads the stage before the last (conv4), the head reads the last one (conv5) through a
    1 x 1 convolution to CHANNELS channels.

    Inputs: (B, 3, H, W). Outputs: RPN features (B, D, H / 16, W / 16) and head features
    (B, CHANNELS, H / 16, W / 16).
    """

    CHANNELS = 1024

    def __init__(self, model: HybridBlock, dilate_strided: bool = False) -> None:
        super().__init__()
        with self.name_scope():
            self.early = nn.HybridSequential()
            self.early.add(model.conv1, model.bn1, model.relu, model.maxpool)
            self.early.add(model.layer1, model.layer2, model.layer3)
            self.last = nn.HybridSequential()
            self.last.add(model.layer4)
            self.last.apply(partial(dilate, dilate_strided=dilate_strided))
            self.reduce = nn.Conv2D(self.CHANNELS, 1, activation="relu")

    def hybrid_forward(self, F: ModuleType, x: Array) -> tuple:
        conv4 = self.early(x)
        return conv4, self.reduce(self.last(conv4))


def dilate(layer: HybridBlock, dilate_strided: bool) -> None:
    """Remove the stride of a convolution, or dilate the 3 x 3 kernel of one without; skip others.

    With `dilate_strided`, do both for a 3 x 3 kernel with a stride.
    """
    if isinstance(layer, nn.Conv2D):
        settings = layer._kwargs
        if settings["kernel"] == (3, 3) and (settings["stride"] == (1, 1) or dilate_strided):
            settings["dilate"] = settings["pad"] = (2, 2)
        settings["stride"] = (1, 1)


def base_anchors(stride: int, scales: Sequence[float], ratios: Sequence[float]) -> np.ndarray:
    """Return the first cell's anchors, (A, 4) float32 corners in pixels; ratio = height / width."""
    centre = stride / 2
    anchors = []
    for ratio in ratios:
        for scale in scales:
            half_width = scale * ANCHOR_BASE / np.sqrt(ratio) / 2
            half = np.array([half_width, half_width * ratio])
            anchors.append(np.concatenate([centre - half, centre + half]))
    return np.array(anchors, np.float32)


class AnchorGrid(HybridBlock):
    """Computes the anchors of a feature map of any size, inside the graph.

    Inputs: (B, C, H, W). Outputs: (1, H * W * A, 4) corners in pixels.
    """

    def __init__(self, base: np.ndarray, stride: int) -> None:
        super().__init__()
        self._stride = stride
        with self.name_scope():
            self.base = self.params.get_constant("base", base[None, None])

    def hybrid_forward(self, F: ModuleType, features: Array, base: Array) -> Array:
        # Coordinates need float32: a cast network's float16 has no odd integers beyond 2048.
        features = F.cast(F.slice_axis(features, axis=1, begin=0, end=1), dtype="float32")
        columns = F.contrib.arange_like(features, axis=3).reshape((1, -1, 1, 1)) * self._stride
        rows = F.contrib.arange_like(features, axis=2).reshape((-1, 1, 1, 1)) * self._stride
        x = F.broadcast_add(columns, F.zeros_like(rows))
        y = F.broadcast_add(F.zeros_like(columns), rows)
        shifts = F.concat(x, y, x, y, dim=-1)
        return F.broadcast_add(shifts, base).reshape((1, -1, 4))


class RPNHead(HybridBlock):
    """A 3 x 3 convolution and two 1 x 1 siblings: one objectness logit and four offsets per anchor.

    Inputs: (B, C, H, W). Outputs, float32: logits (B, H * W * A) and offsets (B, H * W * A, 4).
    """

    def __init__(self, channels: int, num_anchors: int) -> None:
        super().__init__()
        with self.name_scope():
            self.conv = nn.Conv2D(channels, 3, padding=1, activation="relu")
            self.score = nn.Conv2D(num_anchors, 1, weight_initializer=NEAR_ZERO)
            self.loc = nn.Conv2D(4 * num_anchors, 1, weight_initializer=NEAR_ZERO)

    def hybrid_forward(self, F: ModuleType, x: Array) -> tuple:
        """Order the outputs as `AnchorGrid` orders the anchors."""
        x = self.conv(x)
        score, loc = (F.cast(maps, dtype="float32") for maps in (self.score(x), self.loc(x)))
        score = score.transpose((0, 2, 3, 1)).reshape((0, -1))
        loc = loc.transpose((0, 2, 3, 1)).reshape((0, -1, 4))
        return score, loc


def encode(F: ModuleType, boxes: Array, objects: Array, stds: tuple[float, float]) -> tuple:
    """Return the offsets from boxes to objects, both (..., 4), in two halves of (..., 2).

    They are the shift of the centre, in widths and heights of the box, and the logarithm of the
    growth of width and height, divided by `stds`. From the box (0, 0, 10, 20) to the object
    (5, 0, 25, 20), they are 1, 0 and log 2, 0. F may be NumPy.
    """
    (low, high), (object_low, object_high) = (
        F.split(each, 2, axis=-1) for each in (boxes, objects)
    )
    shift = (object_low + object_high - low - high) / 2 / (high - low)
    growth = (object_high - object_low) / (high - low)
    return shift / stds[0], F.log(growth) / stds[1]


def decode(F: ModuleType, boxes: Array, offsets: Array, stds: tuple[float, float]) -> Array:
    """Return boxes (..., 4) moved by offsets (..., 4): the inverse of `encode`."""
    (low, high), (shift, growth) = (F.split(each, 2, axis=-1) for each in (boxes, offsets))
    centre = (low + high) / 2 + shift * stds[0] * (high - low)
    growth = F.exp(F.minimum(growth * stds[1], float(np.log(MAX_GROWTH))))
    half = growth * (high - low) / 2
    return F.concat(centre - half, centre + half, dim=-1)


def clip(F: ModuleType, boxes: Array, images: Array) -> Array:
    """Return the parts of boxes (B, N, 4) inside of images (B, 3, H, W)."""
    height_width = F.slice_axis(F.shape_array(images), axis=0, begin=2, end=4)
    limits = F.tile(F.reverse(height_width, axis=0), reps=(2,)).reshape((1, 1, 4))
    return F.broadcast_minimum(F.maximum(boxes, 0), F.cast(limits, dtype="float32"))


def iou(F: ModuleType, boxes: Array, others: Array) -> Array:
    """Return the intersection over union of boxes (..., 4), pair by pair, as (..., 1).

    Boxes without area, such as padding, have 0. F may be NumPy.
    """
    (x1, y1, x2, y2), (u1, v1, u2, v2) = (F.split(each, 4, axis=-1) for each in (boxes, others))
    width = F.maximum(F.minimum(x2, u2) - F.maximum(x1, u1), 0)
    height = F.maximum(F.minimum(y2, v2) - F.maximum(y1, v1), 0)
    intersection = width * height
    union = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - intersection
    return intersection / F.maximum(union, 1e-9)


def iou_matrix(F: ModuleType, boxes: Array, others: Array) -> Array:
    """Return the `iou` of all pairs of boxes (B, N, 4) and others (B, M, 4) as (B, N, M)."""
    boxes, others = boxes.expand_dims(2), others.expand_dims(1)
    columns = F.broadcast_like(boxes, others, lhs_axes=(2,), rhs_axes=(2,))
    rows = F.broadcast_like(others, boxes, lhs_axes=(1,), rhs_axes=(1,))
    return iou(F, columns, rows).reshape((0, 0, -1))


class Proposals(HybridBlock):
    """The best boxes of the RPN after non-maximum suppression; no gradient passes.

    The `pre_nms` best boxes of an image are decoded and clipped to H x W, the size of the padded
    batch, which may be larger than the image. A box is suppressed if its IoU with a better one is
    above `nms_thresh`. At most `post_nms` <= pre_nms are kept; no side is shorter than `min_size`
    pixels. `gluon_roi.Proposal` does all this in one call, but as py-faster-rcnn does: it rounds
    anchors to whole pixels, includes the last pixel of a box in its width, and repeats boxes if
    there are fewer. Here neither anchors nor training targets are rounded, and missing boxes are
    rows of padding.

    Inputs: logits (B, N), offsets (B, N, 4) and anchors (1, N, 4) of all N anchors of the map,
    images (B, 3, H, W). Outputs: boxes (B, post_nms, 4) in pixels and scores (B, post_nms); rows of
    -1 if there are fewer.
    """

    def __init__(
        self,
        post_nms: int,
        pre_nms: int = RPN_PRE_NMS,
        nms_thresh: float = RPN_NMS_THRESH,
        min_size: float = RPN_MIN_SIZE,
    ) -> None:
        super().__init__()
        self._pre_nms, self._post_nms, self._min_size = pre_nms, post_nms, min_size
        with self.name_scope():
            self.suppress = gluon_roi.BoxNMS(
                nms_thresh, valid_thresh=0, coord_start=1, score_index=0
            )

    def hybrid_forward(
        self, F: ModuleType, score: Array, loc: Array, anchors: Array, images: Array
    ) -> tuple:
        score = F.sigmoid(F.BlockGrad(score))
        # A small map has fewer anchors than topk has to return.
        padding = F.full((1, self._pre_nms), -1.0)
        padding = F.broadcast_like(padding, score, lhs_axes=(0,), rhs_axes=(0,))
        score = F.concat(score, padding, dim=1)
        score, index = F.topk(score, k=self._pre_nms, axis=-1, ret_typ="both")
        index = F.where(score < 0, F.zeros_like(index), index)
        image = F.broadcast_like(F.contrib.arange_like(index, axis=0).expand_dims(-1), index)
        offsets = F.gather_nd(F.BlockGrad(loc), F.stack(image, index, axis=0))
        boxes = decode(F, F.take(anchors.reshape((-1, 4)), index), offsets, RPN_STDS)
        boxes = clip(F, boxes, images)
        x1, y1, x2, y2 = F.split(boxes, num_outputs=4, axis=-1, squeeze_axis=True)
        small = F.minimum(x2 - x1, y2 - y1) < self._min_size
        score = F.where(small, -F.ones_like(score), score)
        # BoxNMS returns as many rows as it gets: those that are kept first, then rows of -1.
        kept = self.suppress(F.concat(score.expand_dims(-1), boxes, dim=-1))
        kept = F.slice_axis(kept, axis=1, begin=0, end=self._post_nms)
        scores = F.slice_axis(kept, axis=-1, begin=0, end=1).reshape((0, -1))
        return F.slice_axis(kept, axis=-1, begin=1, end=5), scores


class PSROIHead(HybridBlock):
    """The R-FCN head: k * k * (C + 1) class maps, 4 * k * k box maps, a vote per RoI.

    Every class has k * k score maps, one for each part of an object: "top left of a disk", and so
    on. PSROIPool reads bin (i, j) of a RoI only from map (i, j); the average over the bins is the
    score. No layer after the pooling is learned, so a RoI costs next to nothing. The channels of
    the box offsets come after the class maps: one convolution and one pooling compute both.

    `num_classes` excludes background; `num_boxes` is the number of sets of offsets, 1 if all
    classes share the box; `stride` is the map's stride in pixels. Inputs: features (B, D, H, W)
    and rois (K, 5), rows [image, x1, y1, x2, y2] in pixels, with image -1 for padding. Outputs:
    class logits (K, num_classes + 1), background first, and offsets (K, 4 * num_boxes).
    """

    def __init__(self, num_classes: int, num_boxes: int, k: int, stride: int) -> None:
        super().__init__()
        self._k, self._num_logits = k, num_classes + 1
        num_outputs = self._num_logits + 4 * num_boxes
        with self.name_scope():
            self.maps = nn.Conv2D(num_outputs * k * k, 1, weight_initializer=NEAR_ZERO)
            self.pool = self.make_pool(k, 1 / stride, output_dim=num_outputs)

    def make_pool(self, k: int, scale: float, output_dim: int) -> HybridBlock:
        """Return the pooling layer."""
        return gluon_roi.PSROIPool(k, scale, output_dim=output_dim)

    def hybrid_forward(self, F: ModuleType, features: Array, rois: Array) -> tuple:
        """Average the k * k votes for every class and offset."""
        maps = F.cast(self.maps(features), dtype="float32")
        votes = self.votes(F, features, maps, end_at_last_pixel(F, rois))
        # A product with 1 / k^2 is faster than F.mean over two axes.
        share = F.full((self._k**2, 1), 1 / self._k**2)
        mean = F.dot(votes.reshape((0, 0, -1)), share).reshape((0, 0))
        logits = F.slice_axis(mean, axis=1, begin=0, end=self._num_logits)
        return logits, F.slice_axis(mean, axis=1, begin=self._num_logits, end=None)

    def votes(self, F: ModuleType, features: Array, maps: Array, rois: Array) -> Array:
        """Pool the maps; each output has k x k bins: (K, num_outputs, k, k)."""
        return self.pool(maps, rois)


def end_at_last_pixel(F: ModuleType, rois: Array) -> Array:
    """Return rows (K, 5) whose x2, y2 are the last pixel, as PSROIPool expects, not the edge."""
    start, end = (
        F.slice_axis(rois, axis=1, begin=begin, end=begin + n) for begin, n in ((0, 3), (3, 2))
    )
    return F.concat(start, end - 1, dim=1)


class RFCN(HybridBlock):
    """The parameters of a detector: backbone, RPN and head.

    The RoIs of the head are chosen outside of this block:

        images -- backbone -+- RPN features -- rpn -- logits, offsets -+
                            |               -- anchor_grid -- anchors -+-- Proposals -- boxes
                            |                                                             |
                            +- features ------------------------------------------------ head

    `hybrid_forward` goes as far as the arguments of `Proposals`, and returns the features for the
    head, which `apply_head` calls with boxes: proposals, and in training the true boxes as well.

    `losses.TrainGraph` and `Detector` use them: training and detection differ in structure (targets
    and losses in one, decoding and suppression in the other), and a hybridized block keeps one
    structure, so each is a graph over the same blocks.

    `make_backbone()` and `make_head(backbone)` are called within this block's name scope.
    """

    def __init__(
        self,
        config: ModelConfig,
        make_backbone: Callable[[], HybridBlock],
        make_head: Callable[[HybridBlock], HybridBlock],
    ) -> None:
        super().__init__()
        self.config = config
        with self.name_scope():
            self.backbone = make_backbone()
            self.anchor_grid = AnchorGrid(config.anchors, config.stride)
            self.rpn = RPNHead(RPN_CHANNELS, len(config.anchors))
            self.head = make_head(self.backbone)

    def hybrid_forward(self, F: ModuleType, data: Array) -> tuple:
        """Return RPN logits, RPN offsets, anchors and the head's features of an image batch."""
        rpn_features, features = self.backbone(data)
        score, loc = self.rpn(rpn_features)
        return score, loc, self.anchor_grid(rpn_features), features


def apply_head(
    F: ModuleType, head: HybridBlock, features: Array, boxes: Array, exists: Array
) -> tuple[Array, Array]:
    """Call a head on boxes (B, N, 4): logits (B, N, C + 1) and offsets (B, N, 4 * num_boxes).

    Both are float32. Boxes with 0 in exists (B, N) are padding.
    """
    image = F.contrib.arange_like(exists, axis=0).expand_dims(-1)
    image = F.broadcast_like(image, exists, lhs_axes=(1,), rhs_axes=(1,))
    image = F.where(exists, image, -F.ones_like(exists))
    rois = F.concat(image.expand_dims(-1), boxes, dim=-1).reshape((-1, 5))
    cls, box = head(features, F.BlockGrad(rois))
    # Divide the RoIs among the images again: (B * N, X) -> (B, N, X).
    rows_of_images = {"lhs_begin": 0, "lhs_end": 1, "rhs_begin": 0, "rhs_end": 2}
    cls = F.reshape_like(F.cast(cls, dtype="float32"), exists, **rows_of_images)
    box = F.reshape_like(F.cast(box, dtype="float32"), exists, **rows_of_images)
    return cls, box


class Detector(HybridBlock):
    """Images to detections, in one graph that can be exported.

    Of two detections of a class, the lower-scored one is dropped if their IoU is above
    Detector.NMS_THRESH.

    Inputs: (B, 3, H, W) normalised images. Outputs, as in GluonCV's detectors: ids (B, N, 1),
    scores (B, N, 1) and boxes (B, N, 4) in pixels, N = MAX_DETECTIONS, best first, and -1 if there
    are fewer.
    """

    NUM_PROPOSALS, NMS_THRESH, SCORE_THRESH, MAX_DETECTIONS = 100, 0.3, 0.01, 100

    def __init__(self, net: RFCN) -> None:
        super().__init__()
        with self.name_scope():
            self.net = net
            self.proposals = Proposals(self.NUM_PROPOSALS)
            self.suppress = gluon_roi.BoxNMS(
                self.NMS_THRESH, valid_thresh=self.SCORE_THRESH, id_index=0
            )

    def hybrid_forward(self, F: ModuleType, data: Array) -> tuple:
        return split_detections(F, self.best(F, self.candidates(F, data)))

    def candidates(self, F: ModuleType, data: Array) -> Array:
        """Score and decode every proposal for every class: rows as in `split_detections`."""
        score, loc, anchors, features = self.net(data)
        boxes, box_scores = self.proposals(score, loc, anchors, data)
        exists = box_scores >= 0
        cls, box = apply_head(F, self.net.head, features, boxes, exists)
        config = self.net.config
        offsets = [
            F.slice_axis(box, axis=-1, begin=begin, end=begin + 4)
            for begin in range(0, 4 * config.num_boxes, 4)
        ]
        decoded = [clip(F, decode(F, boxes, each, ROI_STDS), data) for each in offsets]
        probability = F.broadcast_mul(F.softmax(cls, axis=-1), exists.expand_dims(-1))
        rows = []
        for index in range(len(config.classes)):
            class_score = F.slice_axis(probability, axis=-1, begin=index + 1, end=index + 2)
            class_box = decoded[0] if config.class_agnostic else decoded[index]
            class_index = F.ones_like(class_score) * index
            rows.append(F.concat(class_index, class_score, class_box, dim=-1))
        return F.concat(*rows, dim=1)

    def best(self, F: ModuleType, candidates: Array) -> Array:
        """Suppress candidates class by class, and return the best rows."""
        return F.slice_axis(self.suppress(candidates), axis=1, begin=0, end=self.MAX_DETECTIONS)


def split_detections(F: ModuleType, rows: Array) -> tuple:
    """Return class (B, N, 1), score (B, N, 1) and box (B, N, 4) of rows (B, N, 6)."""
    bounds = ((0, 1), (1, 2), (2, 6))
    return tuple(F.slice_axis(rows, axis=-1, begin=begin, end=end) for begin, end in bounds)
