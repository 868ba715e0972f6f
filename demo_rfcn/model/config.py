# SPDX-License-Identifier: Apache-2.0
"""The configuration of a detector, which a checkpoint and its loader must share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from . import rpn
from .heads import FPN_HEADS, HEADS, MAX_K
from .network import BACKBONES, DEFORMABLE, FPN_BACKBONES, backbone_stride


@dataclass(frozen=True)
class ModelConfig:
    """Settings that define the parameters and their meaning; stored in every checkpoint."""

    classes: tuple[str, ...]  # background not counted
    network: str  # a key of `network.BACKBONES`, with fpn of FPN_BACKBONES
    head: str  # a key of `heads.HEADS`, with fpn of FPN_HEADS
    k: int  # bins per side of the pooling
    class_agnostic: bool  # whether all classes share the box offsets
    anchor_scales: tuple[float, ...]  # sides in units of 16 pixels
    anchor_ratios: tuple[float, ...]  # height / width
    fpn: bool = False  # whether the head reads a feature pyramid
    deform: bool = False  # whether the last stage of the backbone is deformable

    @property
    def stride(self) -> int:
        """Step of the feature maps, pixels."""
        return backbone_stride(self.network, self.fpn)

    @property
    def num_boxes(self) -> int:
        """Sets of four offsets that the head returns per RoI."""
        return 1 if self.class_agnostic else len(self.classes)

    @property
    def anchors(self) -> np.ndarray:
        """Anchors of the first cell, (A, 4) float32 corners in pixels."""
        return rpn.base_anchors(self.stride, self.anchor_scales, self.anchor_ratios)

    @classmethod
    def from_dict(cls, values: dict) -> ModelConfig:
        """Build from JSON values; raise TypeError or ValueError for those of no configuration."""
        known: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        config = cls(**known)
        kinds = [tuple, str, str, int, bool, tuple, tuple, bool, bool]
        for (name, value), kind in zip(vars(config).items(), kinds):
            if type(value) is not kind:
                raise TypeError(f"it has no valid '{name}'")
        names, scales, ratios = config.classes, config.anchor_scales, config.anchor_ratios
        named = all(isinstance(name, str) and name for name in names)
        for name, fits in {
            "classes": named and len(set(names)) == len(names) > 0,
            "network": config.network in (FPN_BACKBONES if config.fpn else BACKBONES),
            "head": config.head in (FPN_HEADS if config.fpn else HEADS),
            "k": 1 <= config.k <= MAX_K,
            "deform": not config.deform or config.network in DEFORMABLE,
            "anchor_scales": 1 <= len(scales) <= 100 and all(0.01 <= s <= 1000 for s in scales),
            "anchor_ratios": 1 <= len(ratios) <= 100 and all(0.01 <= r <= 1000 for r in ratios),
        }.items():
            if not fits:
                raise ValueError(f"it has no valid '{name}'")
        return config

    def to_dict(self) -> dict:
        """Return JSON-ready values."""
        return asdict(self)

    def differences(self, other: ModelConfig) -> list[str]:
        """Return "name: mine, not theirs" for every field in which other differs."""
        return [
            f"{f.name}: {getattr(self, f.name)}, not {getattr(other, f.name)}"
            for f in fields(self)
            if getattr(self, f.name) != getattr(other, f.name)
        ]
