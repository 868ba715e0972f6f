"""What a row of the table is: size of the map, distribution of boxes, arguments.

The rows of each operator stand in tests/operators/. Needs nothing but NumPy.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

#: Those whose bins have score maps of their own, and those that take sampling_ratio and aligned.
POSITION_SENSITIVE = ("PSROIPool", "PSROIAlign", "DeformablePSROIPool")
ALIGN = ("ROIAlign", "PSROIAlign", "PyramidROIAlign", "RotatedROIAlign")


@dataclass(frozen=True)
class Item:
    """One row of the table: an operator, a map and boxes on it."""

    name: str
    operator: str  # ROIPool, ROIAlign, ...
    channels: int  # of the output
    rois: int  # K
    pooled: int = 7  # P = Q
    sampling_ratio: int = -1  # of the align operators; -1 is adaptive
    image: tuple[int, int] = (600, 1000)  # height, width in pixels
    stride: int = 16  # image pixels per map cell
    levels: int = 1  # maps, each with twice the stride of the one before
    sides: tuple[float, float] = (32, 600)  # of the boxes, in pixels, log-uniform
    dtype: str = "float32"  # of the data; boxes are float32
    reuse: bool = False  # measured with the output reused as well

    @property
    def position_sensitive(self) -> bool:
        return self.operator in POSITION_SENSITIVE

    @property
    def aligned(self) -> bool:
        """The default of each operator; torchvision's ps_roi_align has no other."""
        return self.operator == "PSROIAlign"

    @property
    def arguments(self) -> dict[str, Any]:
        """What gluon_roi's operator takes besides pooled_size and spatial_scale."""
        if self.operator == "DeformablePSROIPool":
            return {"trans_std": 0.1}
        align = {"sampling_ratio": self.sampling_ratio, "aligned": self.aligned}
        return align if self.operator in ALIGN else {}

    @property
    def scale(self) -> float | tuple[float, ...]:
        """Of a pyramid one for each map."""
        return tuple(1 / stride for stride in self.strides) if self.levels > 1 else 1 / self.stride

    @property
    def strides(self) -> list[int]:
        return [self.stride << level for level in range(self.levels)]

    @property
    def map_shapes(self) -> list[tuple[int, int, int, int]]:
        channels = self.channels * (self.pooled**2 if self.position_sensitive else 1)
        # Rounded up, as a network's padding does: 600 x 1000 at stride 16 is 38 x 63.
        return [
            (1, channels, -(-self.image[0] // stride), -(-self.image[1] // stride))
            for stride in self.strides
        ]

    @property
    def trans_shape(self) -> tuple[int, int, int, int] | None:
        """Of the offsets, for one class."""
        if self.operator != "DeformablePSROIPool":
            return None
        return self.rois, 2, self.pooled, self.pooled

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        return self.rois, self.channels, self.pooled, self.pooled

    @property
    def bytes(self) -> int:
        """Of the input maps and the output together."""
        cells = sum(np.prod(shape, dtype=np.int64) for shape in (*self.map_shapes, self.out_shape))
        return int(cells) * np.dtype(self.dtype).itemsize

    def coarser_maps(self) -> list[np.ndarray]:
        """The maps of a pyramid behind the first."""
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
        if self.operator == "RotatedROIAlign":
            boxes = [corner + sides / 2, sides, rng.uniform(-90, 90, (self.rois, 1))]
        return np.hstack([np.zeros((self.rois, 1)), *boxes]).astype(np.float32)

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """data (of a pyramid the first map), rois, d_out; always the same."""
        generator = np.random.Generator(np.random.PCG64(1))
        data = generator.standard_normal(self.map_shapes[0], np.float32)
        d_out = generator.standard_normal(self.out_shape, np.float32)
        return data.astype(self.dtype), self.boxes(), d_out.astype(self.dtype)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Item:
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()
        }
        return Item(**values)


#: A large output in fresh memory, after pauses: the 4 kB and the 2 MB pages of gluon_roi alone.
IDLE = Item("idle ROIPool C=512 7x7 K=2000", "ROIPool", 512, 2000)


def shrink(item: Item) -> Item:
    """The same row at a size that takes no time: it tests the script, not the operators."""
    return replace(item, channels=min(item.channels, 4), rois=min(item.rois, 8), image=(160, 240))
