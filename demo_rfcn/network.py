"""Backbones: images to the feature maps that the RPN and the R-FCN head read."""

from __future__ import annotations

from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock


class SmallResNet(HybridBlock):
    """A small residual network with stride 8, for images of about 160 pixels.

    The stem goes to stride 4 in one convolution: on a CPU, normalising and activating maps of half
    the image's size costs as much as all that follows. Stride 8 leaves a 28-pixel object bins of
    more than one cell at k = 3; the last block is dilated, so that its outputs see the largest
    objects whole.

    Inputs: (B, 3, H, W). Outputs: RPN features and head features, both (B, 96, H / 8, W / 8).
    """

    stride = 8
    head_units = 256

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        shortcut = nn.Conv2D(96, 1, strides=2)
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(48, 7, strides=4, padding=3, use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                BasicBlockV1b(96, strides=2, downsample=shortcut, norm_layer=nn.BatchNorm),
                BasicBlockV1b(96, norm_layer=nn.BatchNorm),
                BasicBlockV1b(96, dilation=2, previous_dilation=2, norm_layer=nn.BatchNorm),
            )

    def hybrid_forward(self, F, x):
        """Return the same maps for the RPN and for the head."""
        features = self.body(x)
        return features, features


BACKBONES = {"small": SmallResNet}
