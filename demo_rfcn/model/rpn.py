# SPDX-License-Identifier: Apache-2.0
"""Region proposals: anchors, the RPN's convolutions, and the choice of proposals."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from gluoncv.nn.bbox import BBoxClipToImage
from gluoncv.nn.coder import NormalizedBoxCenterDecoder
from mxnet import init
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock

import gluon_roi

from . import Array

ANCHOR_BASE = 16  # pixels; scales count in this unit
STDS = (1.0, 1.0, 1.0, 1.0)
PRE_NMS, NMS_THRESH, MIN_SIZE = 600, 0.7, 8  # of the proposals, in training and use
MAX_LOG_GROWTH = float(np.log(1000.0 / 16))


def base_anchors(stride: int, scales: Sequence[float], ratios: Sequence[float]) -> np.ndarray:
    """Return the first cell's anchors, (A, 4) float32 corners in pixels; ratio = height / width."""
    centre = (stride - 1) / 2
    anchors = []
    for ratio in ratios:
        for scale in scales:
            half_width = scale * ANCHOR_BASE / np.sqrt(ratio) / 2
            half = np.array([half_width, half_width * ratio])
            anchors.append(np.concatenate([centre - half, centre + half]))
    return np.array(anchors, np.float32)


def anchor_grid(base: np.ndarray, stride: int, height: int, width: int) -> np.ndarray:
    """Return the anchors of a whole map, (height * width * A, 4), in `AnchorGrid`'s order."""
    y, x = np.mgrid[:height, :width].astype(np.float32) * stride
    shifts = np.stack([x, y, x, y], axis=-1)
    return (shifts[:, :, None] + base).reshape(-1, 4)


class AnchorGrid(HybridBlock):
    """Anchors of a map of any size, inside the graph.

    Inputs: (B, C, H, W). Outputs: (1, H * W * A, 4) corners in pixels.
    """

    def __init__(self, base: np.ndarray, stride: int) -> None:
        super().__init__()
        self._stride = stride
        with self.name_scope():
            self.base = self.params.get_constant("base", base[None, None])

    def hybrid_forward(self, F: ModuleType, features: Array, base: Array) -> Array:
        # Under mixed precision they are float16, whose numbers beyond 1024 are 2 apart or more.
        features = F.cast(F.slice_axis(features, axis=1, begin=0, end=1), dtype="float32")
        columns = F.contrib.arange_like(features, axis=3).reshape((1, -1, 1, 1)) * self._stride
        rows = F.contrib.arange_like(features, axis=2).reshape((-1, 1, 1, 1)) * self._stride
        x = F.broadcast_add(columns, F.zeros_like(rows))
        y = F.broadcast_add(F.zeros_like(columns), rows)
        shifts = F.concat(x, y, x, y, dim=-1)
        return F.broadcast_add(shifts, base).reshape((1, -1, 4))


class RPNHead(HybridBlock):
    """A 3x3 convolution and two siblings: one objectness logit and four offsets per anchor.

    Inputs: (B, C, H, W). Outputs, always float32, so that proposals and losses are computed in it
    under mixed precision too: logits (B, H * W * A) and offsets (B, H * W * A, 4).
    """

    def __init__(self, channels: int, num_anchors: int) -> None:
        super().__init__()
        weights = init.Normal(0.01)
        with self.name_scope():
            self.conv = nn.Conv2D(channels, 3, padding=1, activation="relu")
            self.score = nn.Conv2D(num_anchors, 1, weight_initializer=weights)
            self.loc = nn.Conv2D(4 * num_anchors, 1, weight_initializer=weights)

    def hybrid_forward(self, F: ModuleType, x: Array) -> tuple:
        """Order the outputs as `AnchorGrid` orders the anchors."""
        x = self.conv(x)
        score, loc = (F.cast(maps, dtype="float32") for maps in (self.score(x), self.loc(x)))
        score = score.transpose((0, 2, 3, 1)).reshape((0, -1))
        loc = loc.transpose((0, 2, 3, 1)).reshape((0, -1, 4))
        return score, loc


class Proposals(HybridBlock):
    """The best boxes of the RPN after non-maximum suppression; no gradient passes.

    Of an image, the `pre_nms` best boxes are decoded and clipped, and suppressed from an IoU of
    `nms_thresh` on. At most `post_nms` <= pre_nms are kept; no side is shorter than `min_size`
    pixels. `gluon_roi.Proposal` does all this in one call, but as py-faster-rcnn does: it rounds
    anchors to whole pixels, counts the last pixel of a box in its width, and repeats rows if there
    are fewer. Here neither anchors nor training targets are rounded, and missing rows are padding.

    Inputs: logits (B, A), offsets (B, A, 4), anchors (1, A, 4), images (B, 3, H, W).
    Outputs: boxes (B, post_nms, 4) in pixels and scores (B, post_nms); rows of -1 if there are
    fewer.
    """

    def __init__(
        self,
        post_nms: int,
        pre_nms: int = PRE_NMS,
        nms_thresh: float = NMS_THRESH,
        min_size: float = MIN_SIZE,
    ) -> None:
        super().__init__()
        self._pre_nms, self._post_nms, self._min_size = pre_nms, post_nms, min_size
        with self.name_scope():
            # contrib.box_decode, which the full operator set would use, takes one set of anchors
            # for the whole batch; here every image has chosen its own.
            self.decode = NormalizedBoxCenterDecoder(
                STDS, convert_anchor=True, clip=MAX_LOG_GROWTH, minimal_opset=True
            )
            self.clip = BBoxClipToImage()
            self.suppress = gluon_roi.BoxNMS(
                nms_thresh, valid_thresh=0, coord_start=1, score_index=0
            )

    def hybrid_forward(
        self, F: ModuleType, score: Array, loc: Array, anchors: Array, images: Array
    ) -> tuple:
        score = F.sigmoid(F.BlockGrad(score))
        padding = F.full((1, self._pre_nms), -1.0)
        padding = F.broadcast_like(padding, score, lhs_axes=(0,), rhs_axes=(0,))
        score = F.concat(score, padding, dim=1)
        score, index = F.topk(score, k=self._pre_nms, axis=-1, ret_typ="both")
        index = F.where(score < 0, F.zeros_like(index), index)
        image = F.broadcast_like(F.contrib.arange_like(index, axis=0).expand_dims(-1), index)
        chosen = F.gather_nd(F.BlockGrad(loc), F.stack(image, index, axis=0))
        boxes = self.decode(chosen, F.take(anchors.reshape((-1, 4)), index))
        boxes = self.clip(boxes, images)
        x1, y1, x2, y2 = F.split(boxes, num_outputs=4, axis=-1, squeeze_axis=True)
        small = F.minimum(x2 - x1, y2 - y1) < self._min_size
        score = F.where(small, -F.ones_like(score), score)
        kept = self.suppress(F.concat(score.expand_dims(-1), boxes, dim=-1))
        kept = F.slice_axis(kept, axis=1, begin=0, end=self._post_nms)
        scores = F.slice_axis(kept, axis=-1, begin=0, end=1).reshape((0, -1))
        return F.slice_axis(kept, axis=-1, begin=1, end=5), scores
