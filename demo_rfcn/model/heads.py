# SPDX-License-Identifier: Apache-2.0
"""Detection heads: feature maps and RoIs to class scores and box offsets.

Every head is built as Head(num_classes, num_boxes, k, stride, units): the classes without
background, the sets of four offsets (1 if all classes share the box, otherwise one per class), the
bins per side, the step of the feature map in pixels, and the width of the layers after the pooling,
if it has some. It is called with features (B, D, H, W) and rois (K, 5), rows
[image, x1, y1, x2, y2] in pixels, with image -1 for padding. It returns class logits
(K, num_classes + 1), background first, and offsets (K, 4 * num_boxes). A head of FPN_HEADS takes a
`network.Levels` instead of the stride, and is called with a list of feature maps.

Maps are pooled in float32, also with mixed precision: the operators support float16 but not
bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from mxnet import init, nd
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock

import gluon_roi

from . import Array
from .network import Levels

MAX_K = 32  # bins per side: every class has k * k maps
NEAR_ZERO = init.Normal(0.01)


class PSROIHead(HybridBlock):
    """The R-FCN head: k * k * (C + 1) class maps, 4 * k * k box maps, a vote per RoI.

    Every class owns k * k score maps, one for each part of an object: "top left of a disk", and so
    on. PSROIPool reads bin (i, j) of a RoI only from map (i, j); the average over the bins is the
    score. No layer after the pooling is learned, so a RoI costs next to nothing.
    """

    def __init__(self, num_classes: int, num_boxes: int, k: int, stride: int, units: int) -> None:
        super().__init__()
        self._k = k
        with self.name_scope():
            self.class_maps = nn.Conv2D(k * k * (num_classes + 1), 1, weight_initializer=NEAR_ZERO)
            self.box_maps = nn.Conv2D(4 * num_boxes * k * k, 1, weight_initializer=NEAR_ZERO)
            self.class_pool = self.pool(k, stride, num_classes + 1)
            self.box_pool = self.pool(k, stride, 4 * num_boxes)

    def pool(self, k: int, stride: int, output_dim: int) -> HybridBlock:
        """Return the pooling layer."""
        return gluon_roi.PSROIPool(k, 1 / stride, output_dim=output_dim)

    def moved(self, F: ModuleType, features: Array, rois: Array) -> tuple:
        """Return the RoIs, and the offsets of their bins if the head has some."""
        return (rois,)

    def hybrid_forward(self, F: ModuleType, features: Array, rois: Array) -> tuple:
        """Average the k * k votes of every class and of every offset."""
        moved = self.moved(F, features, rois)
        return self.vote(F, self.class_maps(features), self.box_maps(features), *moved)

    def class_votes(self, features: Array, rois: Array) -> Array:
        """Return the vote of each bin for each class, (K, C + 1, k, k)."""
        return self.class_pool(self.class_maps(features), *self.moved(nd, features, rois))

    def vote(self, F: ModuleType, class_maps: Array, box_maps: Array, *moved: Array) -> tuple:
        """Pool both sets of maps, and average the bins."""
        cls = self.class_pool(F.cast(class_maps, dtype="float32"), *moved)
        box = self.box_pool(F.cast(box_maps, dtype="float32"), *moved)
        return F.mean(cls, axis=(2, 3)), F.mean(box, axis=(2, 3))


class GlobalHead(PSROIHead):
    """R-FCN without position sensitivity: one map per class, averaged over the RoI (k = 1)."""

    def __init__(self, num_classes: int, num_boxes: int, k: int, stride: int, units: int) -> None:
        super().__init__(num_classes, num_boxes, 1, stride, units)


class ScrambledHead(PSROIHead):
    """A control for experiments: the k * k maps of a class change places at every call.

    It has the parameters and the cost of `PSROIHead`, but no map can specialise in one part.
    """

    def hybrid_forward(self, F: ModuleType, features: Array, rois: Array) -> tuple:
        """Shuffle the bins, the same way for all classes and offsets, then vote."""
        bins = self._k * self._k
        order = F.argsort(F.random.uniform(shape=(bins,)))
        class_maps, box_maps = (
            F.take(maps.reshape((0, -4, -1, bins, 0, 0)), order, axis=2).reshape((0, -3, 0, 0))
            for maps in (self.class_maps(features), self.box_maps(features))
        )
        return self.vote(F, class_maps, box_maps, rois)


class DeformablePSROIHead(PSROIHead):
    """The R-FCN head of Deformable ConvNets (arXiv:1703.06211): the bins of a RoI move.

    A few thin position-sensitive maps are pooled without offsets. From them, one fully connected
    layer computes an offset for each bin, in units of the box, shared by all classes. Then the
    class and box maps are pooled in the moved bins. The layer starts at 0, where the pooling equals
    `psroi`'s.
    """

    THIN = 8
    TRANS_STD = 0.1

    def __init__(self, num_classes: int, num_boxes: int, k: int, stride: int, units: int) -> None:
        super().__init__(num_classes, num_boxes, k, stride, units)
        with self.name_scope():
            self.part_maps = nn.Conv2D(self.THIN * k * k, 1, weight_initializer=NEAR_ZERO)
            self.part_pool = gluon_roi.DeformablePSROIPool(k, 1 / stride, output_dim=self.THIN)
            self.parts = nn.Dense(2 * k * k, weight_initializer="zeros")

    def pool(self, k: int, stride: int, output_dim: int) -> HybridBlock:
        """Return the pooling layer, which takes offsets."""
        return gluon_roi.DeformablePSROIPool(
            k, 1 / stride, output_dim=output_dim, trans_std=self.TRANS_STD
        )

    def moved(self, F: ModuleType, features: Array, rois: Array) -> tuple:
        """Return the RoIs and the offsets of their bins."""
        return rois, self.offsets(F, features, rois)

    def offsets(self, F: ModuleType, features: Array, rois: Array) -> Array:
        """Return (K, 2, k, k): how far each bin moves along x and y, times TRANS_STD box sides."""
        pooled = self.part_pool(F.cast(self.part_maps(features), dtype="float32"), rois)
        moves = F.cast(self.parts(pooled), dtype="float32")
        return moves.reshape((-1, 2, self._k, self._k))


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
            self.pool = self.pooling(k, stride)
            self.fc = nn.HybridSequential()
            for _ in range(self.HIDDEN):
                self.fc.add(nn.Dense(units, activation="relu"))
            self.cls = nn.Dense(num_classes + 1, weight_initializer=NEAR_ZERO)
            self.box = nn.Dense(4 * num_boxes, weight_initializer=NEAR_ZERO)

    def pooling(self, k: int, stride: Any) -> HybridBlock:
        """Return the pooling layer."""
        return gluon_roi.ROIPool(k, 1 / stride)

    def hybrid_forward(self, F: ModuleType, features: Array, rois: Array) -> tuple:
        hidden = self.fc(self.pool(F.cast(features, dtype="float32"), rois))
        return self.cls(hidden), self.box(hidden)


class PyramidFCHead(RoIFCHead):
    """Faster R-CNN with FPN: each RoI from the level of its size, two fully connected layers."""

    def pooling(self, k: int, levels: Levels) -> HybridBlock:
        """Return the pooling layer, which reads all levels."""
        scales = tuple(1 / stride for stride in levels.strides)
        return gluon_roi.PyramidROIAlign(
            k, scales, sampling_ratio=2, canonical_size=levels.canonical_size
        )

    def hybrid_forward(self, F: ModuleType, features: list[Array], rois: Array) -> tuple:
        hidden = self.fc(self.pool([F.cast(one, dtype="float32") for one in features], rois))
        return self.cls(hidden), self.box(hidden)


class PyramidLightHead(PyramidFCHead):
    """Light-Head R-CNN on a pyramid: maps of few channels, and one fully connected layer.

    All levels share the convolution that makes their maps thin. A RoI is aligned from maps that its
    bins share, not from maps of their own.
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
        return super().hybrid_forward(F, [self.thin(one) for one in features], rois)


HEADS: dict[str, Callable[..., HybridBlock]] = {
    "psroi": PSROIHead,
    "deformable_psroi": DeformablePSROIHead,
    "light_head": LightHead,
    "roi_fc": RoIFCHead,
    "global": GlobalHead,
    "scrambled": ScrambledHead,
}
# With --fpn: the heads that do without position-sensitive maps.
FPN_HEADS: dict[str, Callable[..., HybridBlock]] = {
    "light_head": PyramidLightHead,
    "roi_fc": PyramidFCHead,
}
