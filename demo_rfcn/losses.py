# SPDX-License-Identifier: Apache-2.0
"""Training of R-FCN: targets of anchors and RoIs, losses with hard example mining, the graph."""

from __future__ import annotations

from functools import lru_cache
from types import ModuleType

import numpy as np
from mxnet.gluon.block import HybridBlock

from .data.dataset import BOX, CLASS, DIFFICULT
from .model import (
    RFCN,
    ROI_STDS,
    RPN_STDS,
    Array,
    Proposals,
    apply_head,
    encode,
    iou,
    iou_matrix,
)


class RPNTargets:
    """Labels a sample of the anchors of one image, in NumPy, while the batch is prepared.

    Anchors follow from the size of the image, so a thread labels them while the previous step
    computes, with random numbers that follow from the step; RoIs come out of the network, so
    `RoITargets` labels them in the graph.

    The rules follow Faster R-CNN: an anchor is an object if its IoU with a box is at least
    POS_IOU or if it is the best anchor of a box, and background if its IoU with every box is below
    NEG_IOU and it is no object. An anchor whose best box is difficult is never an object, but may
    be background. All others, and anchors across the border of the image, are ignored. At most
    `num_sample` anchors enter the loss, at most half of them objects. `base` are the anchors of the
    first cell, (A, 4).
    """

    POS_IOU, NEG_IOU = 0.7, 0.3

    def __init__(self, base: np.ndarray, stride: int, num_sample: int) -> None:
        self._stride, self._num_sample = stride, num_sample
        self._grid = lru_cache(maxsize=64)(
            lambda height, width: anchor_grid(base, stride, height, width)
        )

    def __call__(
        self, labels: np.ndarray, size: tuple, padded: tuple, rng: np.random.Generator
    ) -> tuple:
        """Compute the targets of an image; `rng` chooses the sample.

        `labels` are (M, 6), columns BOX, CLASS, DIFFICULT; M may be 0. `size` and `padded` are
        height and width of the image, and of the batch it is padded to, multiples of the stride.
        Returns, for all N anchors of the map, cls (N,) float32: 1 object, 0 background, -1 ignored;
        and offsets (N, 4) float32, zero if cls is not 1.
        """
        anchors = self._grid(*(side // self._stride for side in padded))
        inside = (anchors[:, :2] >= 0).all(1)
        inside &= (anchors[:, 2] < size[1]) & (anchors[:, 3] < size[0])
        cls = np.full(len(anchors), -1, np.float32)
        box = np.zeros((len(anchors), 4), np.float32)
        rows = np.flatnonzero(inside)
        if len(labels) == 0 or len(rows) == 0:
            cls[sample(rng, rows, self._num_sample)] = 0
            return cls, box
        overlaps = iou(np, anchors[rows, None], labels[:, BOX])[..., 0]
        match, best = overlaps.argmax(axis=1), overlaps.max(axis=1)
        is_best = ((overlaps == overlaps.max(axis=0)) & (overlaps > 0)).any(axis=1)
        usable = labels[match, DIFFICULT] == 0
        positive = ((best >= self.POS_IOU) | is_best) & usable
        objects = sample(rng, np.flatnonzero(positive), round(self._num_sample / 2))
        negative = np.flatnonzero((best < self.NEG_IOU) & ~positive)
        cls[rows[sample(rng, negative, self._num_sample - len(objects))]] = 0
        cls[rows[objects]] = 1
        targets = encode(np, anchors[rows[objects]], labels[match[objects], BOX], RPN_STDS)
        box[rows[objects]] = np.concatenate(targets, axis=-1)
        return cls, box


def anchor_grid(base: np.ndarray, stride: int, height: int, width: int) -> np.ndarray:
    """Return the anchors of a map, (height * width * A, 4), in the order of `model.AnchorGrid`."""
    y, x = np.mgrid[:height, :width].astype(np.float32) * stride
    shifts = np.stack([x, y, x, y], axis=-1)
    return (shifts[:, :, None] + base).reshape(-1, 4)


def sample(rng: np.random.Generator, candidates: np.ndarray, count: int) -> np.ndarray:
    """Draw at most `count` of the candidates, without replacement."""
    if len(candidates) <= count:
        return candidates
    return rng.choice(candidates, count, replace=False)


class RoITargets(HybridBlock):
    """Computes the class and box targets of RoIs; no gradient passes.

    A RoI has the class of its best box if their IoU is at least POS_IOU; any other is background.

    Inputs: rois (B, N, 4), exists (B, N), 0 for padding and 1 otherwise, labels (B, M, 6).
    Outputs, all (B, N) but the box offsets:
      cls: 0 background, 1 + class index otherwise;
      box: (B, N, 4) offsets, 0 where there is no object;
      positive: 1 where cls > 0;
      counts: 0 for padding rows and for RoIs whose best box is difficult.
    """

    POS_IOU = 0.5

    def hybrid_forward(self, F: ModuleType, rois: Array, exists: Array, labels: Array) -> tuple:
        rois, labels = F.BlockGrad(rois), F.BlockGrad(labels)
        overlaps = iou_matrix(F, rois, F.slice_axis(labels, axis=-1, begin=0, end=4))
        is_matched = (F.max(overlaps, axis=-1) >= self.POS_IOU) * exists
        # Gather the label of the best box by a product with one-hot rows.
        match = F.argmax(overlaps, axis=-1).expand_dims(-1)
        index = F.contrib.arange_like(labels, axis=1).reshape((1, 1, -1))
        label = F.batch_dot(F.broadcast_equal(match, index), labels)
        objects = F.slice_axis(label, axis=-1, begin=BOX.start, end=BOX.stop)
        cls, difficult = (
            F.slice_axis(label, axis=-1, begin=column, end=column + 1).reshape((0, -1))
            for column in (CLASS, DIFFICULT)
        )
        positive = is_matched * (1 - difficult)
        counts = exists * (1 - is_matched * difficult)
        offsets = F.concat(*encode(F, rois, objects, ROI_STDS), dim=-1)
        has_offsets = F.broadcast_like(
            positive.expand_dims(-1), offsets, lhs_axes=(2,), rhs_axes=(2,)
        )
        offsets = F.where(has_offsets, offsets, F.zeros_like(offsets))
        return (cls + 1) * positive, offsets, positive, counts


def smooth_l1(F: ModuleType, prediction: Array, target: Array) -> Array:
    """Return the smooth-L1 loss summed over the last axis: (..., 4) -> (...)."""
    return F.sum(F.smooth_l1(prediction - target, scalar=1.0), axis=-1)


class RPNLoss(HybridBlock):
    """Objectness and box loss of the sampled anchors.

    Sums are divided by `num_sample`, even if an image has fewer sampled anchors.

    Inputs, of all N anchors of the map: logits (B, N), offsets (B, N, 4), targets rpn_cls (B, N)
    and rpn_box (B, N, 4). Outputs: two (B,) losses.
    """

    def __init__(self, num_sample: int) -> None:
        super().__init__()
        self._num_sample = num_sample

    def hybrid_forward(
        self, F: ModuleType, score: Array, loc: Array, rpn_cls: Array, rpn_box: Array
    ) -> tuple:
        """Compute the cross-entropy of a sigmoid, written so that it cannot overflow."""
        entropy = F.relu(score) - score * rpn_cls + F.Activation(-F.abs(score), "softrelu")
        cls = F.sum(entropy * (rpn_cls >= 0), axis=-1) / self._num_sample
        box = F.sum(smooth_l1(F, loc, rpn_box) * (rpn_cls == 1), axis=-1) / self._num_sample
        return cls, box


class RoILoss(HybridBlock):
    """Cross-entropy plus smooth-L1 of the hardest RoIs of every image.

    Online hard example mining (OHEM) needs no second pass: the loss of all N RoIs is computed once,
    the `num_sample` highest are marked by a mask that carries no gradient, and the mask multiplies
    the losses, so that the other RoIs receive none. The sum is divided by `num_sample`.

    Inputs: cls_pred (B, N, C + 1) logits, box_pred (B, N, 4), and the outputs of `RoITargets`.
    Outputs: two (B,) losses.
    """

    def __init__(self, num_sample: int) -> None:
        super().__init__()
        self._num_sample = num_sample

    def hybrid_forward(
        self, F: ModuleType, cls_pred: Array, box_pred: Array, *targets: Array
    ) -> tuple:
        cls, box, positive, counts = targets
        log_probability = F.log_softmax(cls_pred, axis=-1)
        cls_loss = -F.pick(log_probability, cls, axis=-1)
        box_loss = smooth_l1(F, box_pred, box) * positive
        chosen = self.choose(F, F.BlockGrad(cls_loss + box_loss), positive, counts)
        share = chosen * counts / self._num_sample
        return F.sum(cls_loss * share, axis=-1), F.sum(box_loss * share, axis=-1)

    def choose(self, F: ModuleType, loss: Array, positive: Array, counts: Array) -> Array:
        """Mark the RoIs that count and have the highest losses with 1, the others with 0."""
        return top(F, loss * counts - (1 - counts), self._num_sample)


def top(F: ModuleType, values: Array, count: int) -> Array:
    """Mark the `count` highest values of every row with 1, the others with 0."""
    return F.topk(values, axis=-1, k=count, ret_typ="mask")


class TrainGraph(HybridBlock):
    """One training pass, images and boxes to losses, in one graph.

    `rpn_loss` and `roi_loss` compute the losses of the RPN and of the head. The RoIs are
    NUM_PROPOSALS proposals per image, and the true boxes.

    Inputs, the parts of `data.loader.Batch`: data (B, 3, H, W), labels (B, M, 6), and, of all N
    anchors of the map, rpn_cls (B, N) and rpn_box (B, N, 4). Outputs: four (B,) losses, in the
    order of `LOSSES`.
    """

    LOSSES = ("rpn_cls", "rpn_box", "rcnn_cls", "rcnn_box")
    NUM_PROPOSALS = 128

    def __init__(self, net: RFCN, rpn_loss: RPNLoss, roi_loss: RoILoss) -> None:
        super().__init__()
        with self.name_scope():
            self.net = net
            self.proposals = Proposals(self.NUM_PROPOSALS)
            self.targets = RoITargets()
            self.rpn_loss = rpn_loss
            self.roi_loss = roi_loss

    def hybrid_forward(
        self, F: ModuleType, data: Array, labels: Array, rpn_cls: Array, rpn_box: Array
    ) -> tuple:
        score, loc, anchors, features = self.net(data)
        boxes, box_scores = self.proposals(score, loc, anchors, data)
        true_boxes = F.slice_axis(labels, axis=-1, begin=BOX.start, end=BOX.stop)
        true_cls = F.slice_axis(labels, axis=-1, begin=CLASS, end=CLASS + 1).reshape((0, -1))
        boxes = F.concat(boxes, true_boxes, dim=1)
        # Padding has the score -1 among proposals, and the class -1 among labels.
        exists = F.concat(box_scores, true_cls, dim=1) >= 0
        targets = self.targets(boxes, exists, labels)
        cls, box = self.head_outputs(F, features, boxes, exists, targets[0])
        return (*self.rpn_loss(score, loc, rpn_cls, rpn_box), *self.roi_loss(cls, box, *targets))

    def head_outputs(
        self, F: ModuleType, features: Array, boxes: Array, exists: Array, cls_target: Array
    ) -> tuple:
        """Return the head's logits (B, N, C + 1) and offsets (B, N, 4) of boxes (B, N, 4).

        Here all classes share the offsets; `variants.PerClassTrainGraph` selects the offsets of the
        classes cls_target (B, N), the output `cls` of `RoITargets`.
        """
        return apply_head(F, self.net.head, features, boxes, exists)
