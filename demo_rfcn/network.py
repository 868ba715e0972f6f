"""Backbones: images to the feature maps that the RPN and the R-FCN head read."""

from __future__ import annotations

from gluoncv.model_zoo.resnetv1b import BasicBlockV1b
from mxnet.gluon import nn
from mxnet.gluon.block import HybridBlock


class SmallResNet(HybridBlock):
    """A small residual network with stride 8, for images of about 160 pixels.

    Stride 8 leaves a 28-pixel object bins of more than one cell at k = 3; the last block is
    dilated, so that its outputs see the largest objects whole.

    Inputs: (B, 3, H, W). Outputs: RPN features and head features, both (B, 128, H / 8, W / 8).
    """

    stride = 8

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = nn.HybridSequential()
            self.body.add(
                nn.Conv2D(24, 3, strides=2, padding=1, use_bias=False),
                nn.BatchNorm(),
                nn.Activation("relu"),
                _residual(48, strides=2),
                _residual(96, strides=2),
                _residual(128),
                _residual(128, dilation=2),
            )

    def hybrid_forward(self, F, x):
        """Return the same maps for the RPN and for the head."""
        features = self.body(x)
        return features, features


def _residual(channels: int, strides: int = 1, dilation: int = 1) -> HybridBlock:
    shortcut = None
    if dilation == 1:
        shortcut = nn.HybridSequential()
        shortcut.add(nn.Conv2D(channels, 1, strides=strides, use_bias=False), nn.BatchNorm())
    return BasicBlockV1b(
        channels,
        strides=strides,
        dilation=dilation,
        previous_dilation=dilation,
        downsample=shortcut,
        norm_layer=nn.BatchNorm,
    )


BACKBONES = {"small": SmallResNet}
