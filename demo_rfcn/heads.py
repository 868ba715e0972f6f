"""Detection heads: feature maps and RoIs to class scores and box offsets."""

from __future__ import annotations

from mxnet import init
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock

import gluon_roi


class PSROIHead(HybridBlock):
    """The R-FCN head: k * k * (C + 1) class maps, 4 * k * k box maps, a vote per RoI.

    Every class owns k * k score maps, one for each part of an object: "top left of a disk", and so
    on. PSROIPool reads bin (i, j) of a RoI from map (i, j) alone; the average over the bins is the
    score. Nothing that learns comes after the pooling, so a RoI costs next to nothing.

    Parameters
    ----------
    num_classes : int
        C, background not counted.
    k : int
        Bins per side.
    stride : int
        Step of the feature map, pixels.

    Inputs: features (B, D, H, W), rois (K, 5) rows [image, x1, y1, x2, y2] in pixels, image -1 for
    padding. Outputs: class logits (K, C + 1), background first, and box offsets (K, 4).
    """

    def __init__(self, num_classes: int, k: int, stride: int, **kwargs) -> None:
        super().__init__(**kwargs)
        weights = init.Normal(0.01)
        with self.name_scope():
            self.class_maps = nn.Conv2D(k * k * (num_classes + 1), 1, weight_initializer=weights)
            self.box_maps = nn.Conv2D(4 * k * k, 1, weight_initializer=weights)
            self.class_pool = gluon_roi.PSROIPool(k, 1 / stride, output_dim=num_classes + 1)
            self.box_pool = gluon_roi.PSROIPool(k, 1 / stride, output_dim=4)

    def hybrid_forward(self, F, features, rois):
        """Average the k * k votes of every class and of every offset."""
        cls = F.mean(self.class_pool(self.class_maps(features), rois), axis=(2, 3))
        box = F.mean(self.box_pool(self.box_maps(features), rois), axis=(2, 3))
        return cls, box


HEADS = {"psroi": PSROIHead}
