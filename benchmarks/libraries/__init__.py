# SPDX-License-Identifier: Apache-2.0
"""The libraries measured, one module each; base.py defines what a library is."""

from __future__ import annotations

from .base import COMMON, Library, Unsupported, Work
from .every_level import EveryLevel
from .gluon_roi import GluonRoi
from .limit import Limit
from .mxnet import Mxnet
from .onnxruntime import Onnxruntime
from .openvino import Openvino
from .paddle import Paddle
from .rotated import Detectron2, Mmcv
from .torchvision import Torchvision

#: In the order of the table.
LIBRARIES: dict[str, type[Library]] = {
    library.name: library
    for library in (
        GluonRoi,
        Mxnet,
        EveryLevel,
        Torchvision,
        Paddle,
        Openvino,
        Onnxruntime,
        Detectron2,
        Mmcv,
        Limit,
    )
}

__all__ = ["COMMON", "LIBRARIES", "Library", "Mxnet", "Torchvision", "Unsupported", "Work"]
