# SPDX-License-Identifier: Apache-2.0
"""Losses per image, and the choice of RoIs to train on (OHEM)."""

from __future__ import annotations

from types import ModuleType

from mxnet.gluon.block import HybridBlock

from . import Array


def smooth_l1(F: ModuleType, prediction: Array, target: Array) -> Array:
    """Return the smooth-L1 loss summed over the last axis: (..., 4) -> (...)."""
    return F.sum(F.smooth_l1(prediction - target, scalar=1.0), axis=-1)


class RPNLoss(HybridBlock):
    """Objectness and box loss of the sampled anchors, divided by the size of the sample.

    Inputs: logits (B, A), offsets (B, A, 4), targets rpn_cls (B, A) and rpn_box (B, A, 4).
    Outputs: two (B,) losses.
    """

    def __init__(self, num_sample: int) -> None:
        super().__init__()
        self._num_sample = num_sample

    def hybrid_forward(
        self, F: ModuleType, score: Array, loc: Array, rpn_cls: Array, rpn_box: Array
    ) -> tuple:
        """Cross-entropy of a sigmoid, written so that it cannot overflow."""
        entropy = F.relu(score) - score * rpn_cls + F.Activation(-F.abs(score), "softrelu")
        cls = F.sum(entropy * (rpn_cls >= 0), axis=-1) / self._num_sample
        box = F.sum(smooth_l1(F, loc, rpn_box) * (rpn_cls == 1), axis=-1) / self._num_sample
        return cls, box


class RoILoss(HybridBlock):
    """Cross-entropy plus smooth-L1 of the hardest RoIs of every image.

    Online hard example mining needs no second pass here: the loss of all N RoIs is computed once,
    the `num_sample` highest are marked by a mask that carries no gradient, and the mask multiplies
    the losses, so that the others receive none. Without `ohem`, a random sample learns, with at
    most a quarter of positives. The sum is divided by `num_sample`.

    Inputs: cls_pred (B, N, C + 1) logits, box_pred (B, N, 4), and the outputs of `RoITargets`.
    Outputs: two (B,) losses.
    """

    POS_RATIO = 0.25

    def __init__(self, num_sample: int, ohem: bool) -> None:
        super().__init__()
        self._num_sample, self._ohem = num_sample, ohem

    def hybrid_forward(
        self, F: ModuleType, cls_pred: Array, box_pred: Array, *targets: Array
    ) -> tuple:
        cls, box, positive, counted = targets
        log_probability = F.log_softmax(cls_pred, axis=-1)
        cls_loss = -F.pick(log_probability, cls, axis=-1)
        box_loss = smooth_l1(F, box_pred, box) * positive
        if self._ohem:
            hardness = F.BlockGrad(cls_loss + box_loss)
            chosen = self._top(F, hardness * counted - (1 - counted), self._num_sample)
        else:
            chosen = self._random(F, positive, counted)
        chosen = F.BlockGrad(chosen * counted) / self._num_sample
        return F.sum(cls_loss * chosen, axis=-1), F.sum(box_loss * chosen, axis=-1)

    def _random(self, F: ModuleType, positive: Array, counted: Array) -> Array:
        """Mark a random sample: positives up to their quota, filled with background."""
        luck = F.random.uniform_like(positive)
        quota = max(int(self._num_sample * self.POS_RATIO), 1)
        taken = self._top(F, luck * positive * counted, quota) * positive
        background = (1 - positive) * counted
        order = 2 * taken + (1 + luck) * background
        return self._top(F, order, self._num_sample) * (taken + background)

    @staticmethod
    def _top(F: ModuleType, values: Array, count: int) -> Array:
        """Mark the count highest values of every row with 1, the others with 0."""
        return F.topk(values, axis=-1, k=count, ret_typ="mask")
