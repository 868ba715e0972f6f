# SPDX-License-Identifier: Apache-2.0
"""What an option exchanges in the R-FCN of `model.py` and `losses.py`; `networks.py` builds it.

These are backbones with a feature pyramid or deformable convolutions, other heads, box voting,
boxes per class, and random RoIs instead of the hardest ones.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock

import gluon_roi

from .losses import RoILoss, TrainGraph, top
from .model import (
    NEAR_ZERO,
    RFCN,
    Array,
    Detector,
    PSROIHead,
    apply_head,
    end_at_last_pixel,
    iou_matrix,
    split_detections,
)


class Levels(NamedTuple):
    """The maps of a feature pyramid: steps in pixels, finest first, each twice the one before.

    A RoI of the canonical size, a side in pixels, is pooled from the level of stride 16. It is 224
    in arXiv:1612.03144, for images of 800 pixels.
    """

    strides: tuple[int, ...]
    canonical_size: float


class PyramidNet(HybridBlock):
    """A feature pyramid (arXiv:1612.03144) on three stages of strides 8, 16 and 32.

    Each stage reads the output of the previous one. Every map has `channels` channels.

    Inputs: (B, 3, H, W). Outputs: RPN features (B, channels, H / 8, W / 8), and a list of the maps
    for the head, of which they are the first.
    """

    def __init__(self, stages: list, channels: int, canonical_size: float) -> None:
        super().__init__()
        self.levels = Levels((8, 16, 32), canonical_size)
        with self.name_scope():
            self.stages = sequence(stages)
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
        maps = [smooth(level) for smooth, level in zip(self.smooth, maps)]
        return maps[0], maps


class DeformableConv2D(nn.Conv2D):
    """A convolution whose samples are shifted by offsets (arXiv:1703.06211).

    A second convolution computes the offsets. It starts at 0, where this is the plain convolution.
    It learns at a tenth of the rate: an offset sums hundreds of inputs, and Adam changes all their
    weights by the rate, so that samples would jump by cells. `gluon_roi.DeformableConvolution` is
    such a block with MXNet's names of parameters; here parameters have the names of the `plain`
    convolution, so that its weights load.
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
        """Compute offsets and convolve, in float32."""
        inputs = (F.cast(array, dtype="float32") for array in (x, self.offset(x)))
        return F.gluon_roi.DeformableConvolution(*inputs, weight, bias, name="fwd", **self._kwargs)


def deform(stage: HybridBlock) -> None:
    """Make the 3 x 3 convolutions of a stage deformable."""
    for name, layer in list(stage._children.items()):
        if isinstance(layer, nn.Conv2D) and layer._kwargs["kernel"] == (3, 3):
            with stage.name_scope():
                setattr(stage, name, DeformableConv2D(layer))
        else:
            deform(layer)


class GlobalHead(PSROIHead):
    """R-FCN without position sensitivity: one map per class, averaged over the RoI (k = 1)."""


class ScrambledHead(PSROIHead):
    """A control for experiments: the k * k maps of a class are permuted at every call.

    It has the parameters and the cost of `PSROIHead`, but no map can specialise in one part.
    """

    def votes(self, F: ModuleType, features: Array, maps: Array, rois: Array) -> Array:
        """Shuffle the bins, the same way for all classes and offsets, then pool."""
        bins = self._k**2
        order = F.argsort(F.random.uniform(shape=(bins,)))
        maps = F.take(maps.reshape((0, -4, -1, bins, 0, 0)), order, axis=2)
        return self.pool(maps.reshape((0, -3, 0, 0)), rois)


class DeformablePSROIHead(PSROIHead):
    """The R-FCN head of Deformable ConvNets (arXiv:1703.06211): the bins of a RoI are shifted.

    A few thin position-sensitive maps are pooled without offsets. From them, one fully connected
    layer computes an offset for each bin, in units of the box, shared by all classes. Then the
    class and box maps are pooled in the shifted bins. The layer starts at 0, where the
    pooling equals the one in `PSROIHead`.
    """

    THIN = 8
    TRANS_STD = 0.1

    def __init__(self, num_classes: int, num_boxes: int, k: int, stride: int) -> None:
        super().__init__(num_classes, num_boxes, k, stride)
        with self.name_scope():
            self.part_maps = nn.Conv2D(self.THIN * k * k, 1, weight_initializer=NEAR_ZERO)
            self.part_pool = gluon_roi.DeformablePSROIPool(k, 1 / stride, output_dim=self.THIN)
            self.parts = nn.Dense(2 * k * k, weight_initializer="zeros")

    def make_pool(self, k: int, scale: float, output_dim: int) -> HybridBlock:
        """Return the pooling layer, which shifts the bins."""
        return gluon_roi.DeformablePSROIPool(
            k, scale, output_dim=output_dim, trans_std=self.TRANS_STD
        )

    def votes(self, F: ModuleType, features: Array, maps: Array, rois: Array) -> Array:
        """Pool the maps in the shifted bins."""
        return self.pool(maps, rois, self.offsets(F, features, rois))

    def offsets(self, F: ModuleType, features: Array, rois: Array) -> Array:
        """Return (K, 2, k, k): the shift of each bin along x and y, times TRANS_STD box sides."""
        pooled = self.part_pool(F.cast(self.part_maps(features), dtype="float32"), rois)
        shifts = F.cast(self.parts(pooled), dtype="float32")
        return shifts.reshape((-1, 2, self._k, self._k))


class LightHead(HybridBlock):
    """Light-Head R-CNN: thin position-sensitive maps, PSROIAlign, one fully connected layer.

    The maps have 10 channels per bin for any number of classes, computed by a large separable
    convolution (15 x 1 and 1 x 15, both orders, summed), as in arXiv:1711.07264.
    """

    THIN = 10
    KERNEL = 15

    def __init__(self, num_classes: int, num_boxes: int, k: int, stride: int, units: int) -> None:
        super().__init__()
        half = self.KERNEL // 2
        tall = {"kernel_size": (self.KERNEL, 1), "padding": (half, 0)}
        wide = {"kernel_size": (1, self.KERNEL), "padding": (0, half)}
        with self.name_scope():
            self.branches = []
            for number, (first, second) in enumerate(((tall, wide), (wide, tall))):
                branch = nn.HybridSequential()
                branch.add(nn.Conv2D(units // 4, **first), nn.Conv2D(self.THIN * k * k, **second))
                self.register_child(branch, f"branch{number}")
                self.branches.append(branch)
            self.pool = gluon_roi.PSROIAlign(k, 1 / stride, output_dim=self.THIN, sampling_ratio=2)
            self.fc = nn.Dense(units, activation="relu")
            self.cls = nn.Dense(num_classes + 1, weight_initializer=NEAR_ZERO)
            self.box = nn.Dense(4 * num_boxes, weight_initializer=NEAR_ZERO)

    def hybrid_forward(self, F: ModuleType, features: Array, rois: Array) -> tuple:
        maps = F.relu(self.branches[0](features) + self.branches[1](features))
        hidden = self.fc(self.pool(F.cast(maps, dtype="float32"), rois))
        return self.cls(hidden), self.box(hidden)


class RoIFCHead(HybridBlock):
    """The Fast R-CNN baseline: ROIPool and two fully connected layers for every RoI."""

    HIDDEN = 2

    def __init__(self, num_classes: int, num_boxes: int, k: int, stride: Any, units: int) -> None:
        super().__init__()
        with self.name_scope():
            self.pool = self.make_pool(k, stride)
            self.fc = nn.HybridSequential()
            for _ in range(self.HIDDEN):
                self.fc.add(nn.Dense(units, activation="relu"))
            self.cls = nn.Dense(num_classes + 1, weight_initializer=NEAR_ZERO)
            self.box = nn.Dense(4 * num_boxes, weight_initializer=NEAR_ZERO)

    def make_pool(self, k: int, stride: Any) -> HybridBlock:
        """Return the pooling layer."""
        return gluon_roi.ROIPool(k, 1 / stride)

    def hybrid_forward(self, F: ModuleType, features: Array, rois: Array) -> tuple:
        features = F.cast(features, dtype="float32")
        return self.outputs(self.pool(features, end_at_last_pixel(F, rois)))

    def outputs(self, pooled: Array) -> tuple:
        """Return logits and offsets of pooled features."""
        hidden = self.fc(pooled)
        return self.cls(hidden), self.box(hidden)


class PyramidFCHead(RoIFCHead):
    """Faster R-CNN with FPN: each RoI from the level of its size, two fully connected layers."""

    def make_pool(self, k: int, levels: Levels) -> HybridBlock:
        """Return the pooling layer, which reads all levels."""
        scales = tuple(1 / stride for stride in levels.strides)
        return gluon_roi.PyramidROIAlign(
            k, scales, sampling_ratio=2, canonical_size=levels.canonical_size
        )

    def hybrid_forward(self, F: ModuleType, features: list[Array], rois: Array) -> tuple:
        return self.outputs(self.pool([F.cast(level, dtype="float32") for level in features], rois))


class PyramidLightHead(PyramidFCHead):
    """Light-Head R-CNN on a pyramid: maps of few channels, and one fully connected layer.

    All levels share the convolution that makes their maps thin. The bins of a RoI read the same
    maps, which are not position-sensitive.
    """

    THIN = 40
    HIDDEN = 1

    def __init__(
        self, num_classes: int, num_boxes: int, k: int, levels: Levels, units: int
    ) -> None:
        super().__init__(num_classes, num_boxes, k, levels, units)
        with self.name_scope():
            self.thin = nn.Conv2D(self.THIN, 1, activation="relu")

    def hybrid_forward(self, F: ModuleType, features: list[Array], rois: Array) -> tuple:
        return super().hybrid_forward(F, [self.thin(level) for level in features], rois)


class VotingDetector(Detector):
    """A detector whose boxes are refined by `BoxVoting`."""

    VOTE_THRESH = 0.5

    def __init__(self, net: RFCN) -> None:
        super().__init__(net)
        with self.name_scope():
            self.voting = BoxVoting(self.VOTE_THRESH)

    def _alias(self) -> str:
        """Return the beginning of the names in exported files, which stay the same."""
        return "detector"

    def hybrid_forward(self, F: ModuleType, data: Array) -> tuple:
        candidates = self.candidates(F, data)
        return split_detections(F, self.voting(self.best(F, candidates), candidates))


class BoxVoting(HybridBlock):
    """Box voting (arXiv:1505.01749): a detection gets the mean of the boxes that agree with it.

    Boxes that suppression removes were pooled from other cells, and have other errors. A box votes
    if its IoU with the detection's is at least `iou_thresh`, with the weight of its score.

    Inputs: detections (B, N, 6) and candidates (B, M, 6), rows [class, score, x1, y1, x2, y2] with
    class -1 if there are fewer. Output: the detections with their new boxes.
    """

    def __init__(self, iou_thresh: float) -> None:
        super().__init__()
        self._iou_thresh = iou_thresh

    def hybrid_forward(self, F: ModuleType, detections: Array, candidates: Array) -> Array:
        ids, scores, boxes = split_detections(F, detections)
        voter_ids, voter_scores, voters = split_detections(F, candidates)
        weights = F.broadcast_equal(ids, voter_ids.transpose((0, 2, 1)))
        weights = weights * (iou_matrix(F, boxes, voters) >= self._iou_thresh)
        weights = F.broadcast_mul(weights, voter_scores.transpose((0, 2, 1)))
        total = F.maximum(F.sum(weights, axis=-1, keepdims=True), 1e-6)
        voted = F.broadcast_div(F.batch_dot(weights, voters), total)
        absent = F.broadcast_like(ids, boxes) < 0
        return F.concat(ids, scores, F.where(absent, boxes, voted), dim=-1)


class RandomRoILoss(RoILoss):
    """The loss of a random sample of RoIs, a quarter of them positives at most (--no-ohem)."""

    POS_RATIO = 0.25

    def choose(self, F: ModuleType, loss: Array, positive: Array, counts: Array) -> Array:
        """Mark a random sample: positives up to their quota, filled with background."""
        noise = F.random.uniform_like(positive)
        quota = max(int(self._num_sample * self.POS_RATIO), 1)
        objects = top(F, noise * positive * counts, quota) * positive
        background = (1 - positive) * counts
        order = 2 * objects + (1 + noise) * background
        return top(F, order, self._num_sample) * (objects + background)


class PerClassTrainGraph(TrainGraph):
    """A training graph whose head has box offsets for each class (--no-class-agnostic)."""

    def head_outputs(
        self, F: ModuleType, features: Array, boxes: Array, exists: Array, cls_target: Array
    ) -> tuple:
        """Return the offsets of the target class only."""
        cls, box = apply_head(F, self.net.head, features, boxes, exists)
        index = F.maximum(cls_target - 1, 0).expand_dims(-1)
        classes = F.arange(self.net.config.num_boxes).reshape((1, 1, -1))
        is_target = F.broadcast_equal(index, classes).expand_dims(-1)
        return cls, F.sum(F.broadcast_mul(box.reshape((0, 0, -4, -1, 4)), is_target), axis=2)


def sequence(layers: list) -> nn.HybridSequential:
    """Return layers in a row."""
    made = nn.HybridSequential()
    made.add(*layers)
    return made
