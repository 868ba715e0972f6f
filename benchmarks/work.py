# SPDX-License-Identifier: Apache-2.0
"""The rows of the table; here those of operators that pool boxes.

Needs only NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .convolutions import CONVOLUTIONS
from .rows import Inputs, Row
from .suppression import SUPPRESSIONS


@dataclass(frozen=True)
class Operator:
    """Properties of an operator that its measurements need."""

    samples: bool = False  # takes sampling_ratio
    score_maps: bool = False  # each bin has a score map of its own
    offsets: bool = False  # each bin has an offset
    rotated: bool = False  # boxes have an angle
    several_maps: bool = False  # those of a pyramid
    maxima: bool = False  # the maximum of each bin: no other cell has a gradient
    maps_in_backward: bool = False  # its backward pass reads the maps again
    #: Besides pooled_size, spatial_scale and sampling_ratio.
    arguments: dict[str, Any] = field(default_factory=dict)


OPERATORS = {
    "ROIPool": Operator(maxima=True, maps_in_backward=True),  # it searches them
    "ROIAlign": Operator(samples=True, arguments={"aligned": False}),
    "PSROIPool": Operator(score_maps=True),
    # torchvision has no other.
    "PSROIAlign": Operator(samples=True, score_maps=True, arguments={"aligned": True}),
    "RotatedROIAlign": Operator(samples=True, rotated=True, arguments={"aligned": False}),
    "PrROIPool": Operator(),
    "DeformablePSROIPool": Operator(
        score_maps=True, offsets=True, maps_in_backward=True, arguments={"trans_std": 0.1}
    ),
    "PyramidROIAlign": Operator(samples=True, several_maps=True, arguments={"aligned": False}),
    "DeformableROIAlign": Operator(
        samples=True, offsets=True, maps_in_backward=True, arguments={"gamma": 0.1, "aligned": True}
    ),
}


@dataclass(frozen=True)
class Item(Row):
    """An operator, a map and boxes on it."""

    name: str
    operator: str  # ROIPool, ROIAlign, ...
    channels: int  # of the output
    rois: int  # K
    pooled: int = 7  # P = Q
    sampling_ratio: int = -1  # of the align operators; -1 is adaptive
    mode: str = "avg"  # of ROIAlign
    image: tuple[int, int] = (600, 1000)  # height, width in pixels
    stride: int = 16  # image pixels per map cell
    levels: int = 1  # maps, each with twice the stride of the one before
    sides: tuple[float, float] = (32, 600)  # of the boxes, in pixels, log-uniform
    dtype: str = "float32"  # of the data; boxes are float32
    reuse: bool = False  # measured with the output reused as well

    @property
    def of(self) -> Operator:
        return OPERATORS[self.operator]

    @property
    def aligned(self) -> bool:
        return self.of.arguments.get("aligned", False)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of gluon_roi's operator besides pooled_size and spatial_scale."""
        samples = {"sampling_ratio": self.sampling_ratio} if self.of.samples else {}
        mode = {"mode": self.mode} if self.mode != "avg" else {}
        return {**samples, **self.of.arguments, **mode}

    @property
    def scale(self) -> float | tuple[float, ...]:
        """Map cells per image pixel; for a pyramid one number for each map."""
        if self.of.several_maps:
            return tuple(1 / stride for stride in self.strides)
        return 1 / self.stride

    @property
    def strides(self) -> list[int]:
        return [self.stride << level for level in range(self.levels)]

    @property
    def map_shapes(self) -> list[tuple[int, int, int, int]]:
        channels = self.channels * (self.pooled**2 if self.of.score_maps else 1)
        # Rounded up, as a network's padding does: 600 x 1000 at stride 16 is 38 x 63.
        return [
            (1, channels, -(-self.image[0] // stride), -(-self.image[1] // stride))
            for stride in self.strides
        ]

    @property
    def trans_shape(self) -> tuple[int, int, int, int] | None:
        """Shape of the offsets of one class; None if the operator has none."""
        if not self.of.offsets:
            return None
        return self.rois, 2, self.pooled, self.pooled

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        return self.rois, self.channels, self.pooled, self.pooled

    @property
    def bytes(self) -> int:
        """Bytes of the input maps and the output together."""
        cells = sum(np.prod(shape, dtype=np.int64) for shape in (*self.map_shapes, self.out_shape))
        return int(cells) * np.dtype(self.dtype).itemsize

    def coarser_maps(self) -> list[np.ndarray]:
        """The maps of a pyramid after the first."""
        generator = np.random.Generator(np.random.PCG64(2))
        return [
            generator.standard_normal(shape, np.float32).astype(self.dtype)
            for shape in self.map_shapes[1:]
        ]

    def trans(self) -> np.ndarray | None:
        if self.trans_shape is None:
            return None
        generator = np.random.Generator(np.random.PCG64(3))
        return generator.standard_normal(self.trans_shape, np.float32).astype(self.dtype)

    def boxes(self) -> np.ndarray:
        """rois (K, 5) or (K, 6), float32; always the same."""
        rng = np.random.RandomState(0)
        height, width = self.image
        least, most = np.log(self.sides)
        sides = np.exp(rng.uniform(least, most, (self.rois, 2)))
        sides = np.minimum(sides, (width, height))
        corner = rng.uniform(0, 1, (self.rois, 2)) * (np.array([width, height]) - sides)
        boxes = [corner, corner + sides]
        if self.of.rotated:
            boxes = [corner + sides / 2, sides, rng.uniform(-90, 90, (self.rois, 1))]
        return np.hstack([np.zeros((self.rois, 1)), *boxes]).astype(np.float32)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """data (of a pyramid the first map), rois, d_out; always the same."""
        generator = np.random.Generator(np.random.PCG64(1))
        data = generator.standard_normal(self.map_shapes[0], np.float32)
        d_out = generator.standard_normal(self.out_shape, np.float32)
        return data.astype(self.dtype), self.boxes(), d_out.astype(self.dtype)

    def inputs(self) -> Inputs:
        data, rois, d_out = self.arrays()
        trans = self.trans()
        more = [*self.coarser_maps(), *([] if trans is None else [trans])]
        return Inputs([rois], [data, *more], d_out)

    def shrunk(self) -> Item:
        few = min(self.channels, 4), min(self.rois, 8)
        return replace(self, channels=few[0], rois=few[1], image=(160, 240))


#: Boxes of the finest level of a pyramid, on its map.
_FINEST: dict[str, Any] = {"image": (800, 1216), "stride": 4, "sides": (16, 112)}
_WITH_2: dict[str, Any] = {"sampling_ratio": 2}
#: Objects of an aerial image, on a map of the image's size.
_AERIAL: dict[str, Any] = {"stride": 1, "sides": (12, 60)}

#: "small" ones show what a call costs from Python.
POOLING = (
    Item("ROIPool C=512 7x7 K=128", "ROIPool", 512, 128),
    Item("ROIPool C=512 7x7 K=2000", "ROIPool", 512, 2000, reuse=True),
    Item("small ROIPool C=16 7x7 K=8", "ROIPool", 16, 8),
    Item("ROIAlign C=512 sampling 2 K=128", "ROIAlign", 512, 128, **_WITH_2),
    Item("ROIAlign C=512 adaptive K=128", "ROIAlign", 512, 128),
    Item("ROIAlign C=512 sampling 2 K=2000", "ROIAlign", 512, 2000, reuse=True, **_WITH_2),
    Item("ROIAlign FPN C=256 7x7 K=1000", "ROIAlign", 256, 1000, **_WITH_2, **_FINEST),
    Item("ROIAlign FPN C=256 14x14 K=1000", "ROIAlign", 256, 1000, 14, **_WITH_2, **_FINEST),
    Item("small ROIAlign C=16 7x7 K=8", "ROIAlign", 16, 8, **_WITH_2),
    Item("ROIAlign max C=256 sampling 2 K=512", "ROIAlign", 256, 512, mode="max", **_WITH_2),
    Item("ROIAlign max C=256 adaptive K=512", "ROIAlign", 256, 512, mode="max"),
    Item("PSROIPool 21x7x7 K=300", "PSROIPool", 21, 300),
    Item("PSROIPool 21x7x7 K=2000", "PSROIPool", 21, 2000, reuse=True),
    Item("PSROIPool 81x7x7 K=300", "PSROIPool", 81, 300),
    Item("PSROIPool 81x7x7 K=2000", "PSROIPool", 81, 2000, reuse=True),
    Item("small PSROIPool C=16 4x4 K=8", "PSROIPool", 1, 8, pooled=4),
    Item("PSROIAlign 21x7x7 sampling 2 K=300", "PSROIAlign", 21, 300, **_WITH_2),
    Item("PSROIAlign 21x7x7 sampling 2 K=2000", "PSROIAlign", 21, 2000, reuse=True, **_WITH_2),
    Item("PSROIAlign 81x7x7 sampling 2 K=2000", "PSROIAlign", 81, 2000, reuse=True, **_WITH_2),
    Item("small PSROIAlign C=16 4x4 K=8", "PSROIAlign", 1, 8, pooled=4, **_WITH_2),
    Item("RotatedROIAlign C=512 sampling 2 K=128", "RotatedROIAlign", 512, 128, **_WITH_2),
    Item("RotatedROIAlign C=512 adaptive K=128", "RotatedROIAlign", 512, 128),
    *(
        Item(
            f"RotatedROIAlign {side}x{side} C=1 {samples} K={rois}",
            "RotatedROIAlign",
            1,
            rois,
            image=(side, side),
            **_AERIAL,
            **given,
        )
        for side in (1024, 2048)
        for samples, given in {"adaptive": {}, "sampling 2": _WITH_2}.items()
        for rois in (5, 512)
    ),
    Item("PrROIPool C=512 K=128", "PrROIPool", 512, 128),
    Item("DeformableROIAlign C=256 sampling 2 K=512", "DeformableROIAlign", 256, 512, **_WITH_2),
    Item("DeformableROIAlign C=256 adaptive K=512", "DeformableROIAlign", 256, 512),
    Item("DeformablePSROIPool 21x7x7 K=300", "DeformablePSROIPool", 21, 300),
    Item("DeformablePSROIPool 21x7x7 K=2000", "DeformablePSROIPool", 21, 2000),
    Item("DeformablePSROIPool 81x7x7 K=300", "DeformablePSROIPool", 81, 300),
    Item("DeformablePSROIPool 81x7x7 K=2000", "DeformablePSROIPool", 81, 2000),
    Item(
        "PyramidROIAlign 4 maps C=256 7x7 K=1000",
        "PyramidROIAlign",
        256,
        1000,
        levels=4,
        image=(800, 1216),
        stride=4,
        sides=(16, 800),
        **_WITH_2,
    ),
)
#: Every row of the table.
ITEMS: tuple[Row, ...] = (*POOLING, *CONVOLUTIONS, *SUPPRESSIONS)
#: A large output in fresh memory, after pauses: the 4 kB and the 2 MB pages of gluon_roi alone.
IDLE = Item("idle ROIPool C=512 7x7 K=2000", "ROIPool", 512, 2000)
