# SPDX-License-Identifier: Apache-2.0
"""Training targets: RPN targets in NumPy beside the data, RoI targets inside the graph."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

import numpy as np
from gluoncv.nn.bbox import BBoxBatchIOU
from gluoncv.nn.coder import NormalizedBoxCenterEncoder, NumPyNormalizedBoxCenterEncoder
from gluoncv.utils.bbox import bbox_iou
from mxnet.gluon.block import HybridBlock

from . import Array, rpn

ROI_STDS = (0.1, 0.1, 0.2, 0.2)


class RPNTargets:
    """Labels a sample of the anchors of one image; `base` are those of the first cell, (A, 4).

    GluonCV's generator fails on an image without boxes and ignores `allowed_border`, so the rules
    of Faster R-CNN are spelled out here: an anchor is an object from IoU POS_IOU on or as the best
    anchor of a box, background below NEG_IOU; anchors across the border and those that match a
    difficult box are ignored. At most `num_sample` anchors count in the loss, half of them objects.
    """

    POS_IOU, NEG_IOU = 0.7, 0.3

    def __init__(self, base: np.ndarray, stride: int, num_sample: int) -> None:
        self._stride, self._num_sample = stride, num_sample
        self._encode = NumPyNormalizedBoxCenterEncoder(stds=rpn.STDS)
        self._grid = lru_cache(maxsize=64)(
            lambda height, width: rpn.anchor_grid(base, stride, height, width)
        )

    def __call__(
        self, labels: np.ndarray, size: tuple, padded: tuple, rng: np.random.Generator
    ) -> tuple:
        """Compute the targets of an image; `rng` chooses the sample.

        `labels` are (M, 6): x1, y1, x2, y2, class, difficult; M may be 0. `size` and `padded` are
        height and width of the image, and of the batch it is padded to. Returns cls (A,) float32: 1
        object, 0 background, -1 ignored; and offsets (A, 4) float32, zero if cls is not 1.
        """
        anchors = self._grid(*(-(-side // self._stride) for side in padded))
        inside = (anchors[:, :2] >= 0).all(1)
        inside &= (anchors[:, 2] < size[1]) & (anchors[:, 3] < size[0])
        cls = np.full(len(anchors), -1, np.float32)
        box = np.zeros((len(anchors), 4), np.float32)
        rows = np.flatnonzero(inside)
        if len(labels) == 0 or len(rows) == 0:
            cls[_sample(rng, rows, self._num_sample)] = 0
            return cls, box
        iou = bbox_iou(anchors[rows], labels[:, :4])
        match, best = iou.argmax(axis=1), iou.max(axis=1)
        is_best = ((iou == iou.max(axis=0)) & (iou > 0)).any(axis=1)
        usable = labels[match, 5] == 0
        positive = ((best >= self.POS_IOU) | is_best) & usable
        objects = _sample(rng, np.flatnonzero(positive), round(self._num_sample / 2))
        negative = np.flatnonzero((best < self.NEG_IOU) & ~positive)
        cls[rows[_sample(rng, negative, self._num_sample - len(objects))]] = 0
        cls[rows[objects]] = 1
        chosen = rows[objects]
        pairs = np.ones((1, len(objects))), match[objects][None]
        targets, _ = self._encode(*pairs, anchors[chosen][None], labels[None, :, :4])
        box[chosen] = targets[0]
        return cls, box


def _sample(rng: np.random.Generator, candidates: np.ndarray, count: int) -> np.ndarray:
    """Return at most count of the candidates, drawn without replacement."""
    if len(candidates) <= count:
        return candidates
    return rng.choice(candidates, count, replace=False)


class RoITargets(HybridBlock):
    """Class and box targets of RoIs; no gradient passes.

    A RoI has the class of its best box if their IoU is at least POS_IOU; any other is background.

    Inputs: rois (B, N, 4), valid (B, N) 1 or 0, labels (B, M, 6).
    Outputs, all (B, N) but the box ones:
      cls: 0 background, 1 + class index otherwise; box: (B, N, 4) offsets;
      positive: 1 where cls > 0;
      counted: 0 for padding rows and for RoIs whose best box is difficult.
    """

    POS_IOU = 0.5

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.iou = BBoxBatchIOU()
            self.encode = NormalizedBoxCenterEncoder(stds=ROI_STDS)

    def hybrid_forward(self, F: ModuleType, rois: Array, valid: Array, labels: Array) -> tuple:
        rois, labels = F.BlockGrad(rois), F.BlockGrad(labels)
        boxes = F.slice_axis(labels, axis=-1, begin=0, end=4)
        iou = self.iou(rois, boxes)
        match = F.argmax(iou, axis=-1)
        over = (F.max(iou, axis=-1) >= self.POS_IOU) * valid
        index = F.contrib.arange_like(labels, axis=1).reshape((1, 1, -1))
        chosen = F.broadcast_equal(match.expand_dims(-1), index)
        attributes = F.batch_dot(chosen, F.slice_axis(labels, axis=-1, begin=4, end=6))
        cls, difficult = F.split(attributes, num_outputs=2, axis=-1, squeeze_axis=True)
        positive = over * (1 - difficult)
        counted = valid * (1 - over * difficult)
        offsets, mask = self.encode(positive, match, rois, boxes)
        offsets = F.where(mask, offsets, F.zeros_like(mask))
        targets = (cls + 1) * positive, offsets, positive, counted
        return tuple(F.BlockGrad(part) for part in targets)
