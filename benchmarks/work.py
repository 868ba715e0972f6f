"""What is measured: sizes of maps, distributions of boxes, arguments. Needs nothing but NumPy."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np


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
    sides: tuple[float, float] = (32, 600)  # of the boxes, in pixels, log-uniform
    dtype: str = "float32"  # of the data; boxes are float32
    reuse: bool = False  # measured with the output reused as well

    @property
    def position_sensitive(self) -> bool:
        return self.operator.startswith("PS")

    @property
    def aligned(self) -> bool:
        """The default of each operator; torchvision's ps_roi_align has no other."""
        return self.operator == "PSROIAlign"

    @property
    def data_shape(self) -> tuple[int, int, int, int]:
        groups = self.pooled**2 if self.position_sensitive else 1
        # Rounded up, as a network's padding does: 600 x 1000 at stride 16 is 38 x 63.
        height, width = (-(-side // self.stride) for side in self.image)
        return 1, self.channels * groups, height, width

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        return self.rois, self.channels, self.pooled, self.pooled

    @property
    def bytes(self) -> int:
        """Of the input map and the output together."""
        cells = np.prod(self.data_shape, dtype=np.int64) + np.prod(self.out_shape, dtype=np.int64)
        return int(cells) * np.dtype(self.dtype).itemsize

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """data, rois of shape (K, 5) or (K, 6), d_out; the same in every process."""
        rng = np.random.RandomState(0)
        height, width = self.image
        least, most = np.log(self.sides)
        sides = np.exp(rng.uniform(least, most, (self.rois, 2)))
        sides = np.minimum(sides, (width, height))
        corner = rng.uniform(0, 1, (self.rois, 2)) * (np.array([width, height]) - sides)
        boxes = [corner, corner + sides]
        if self.operator == "RotatedROIAlign":
            boxes = [corner + sides / 2, sides, rng.uniform(-90, 90, (self.rois, 1))]
        rois = np.hstack([np.zeros((self.rois, 1)), *boxes])
        generator = np.random.Generator(np.random.PCG64(1))
        data = generator.standard_normal(self.data_shape, np.float32)
        d_out = generator.standard_normal(self.out_shape, np.float32)
        return data.astype(self.dtype), rois.astype(np.float32), d_out.astype(self.dtype)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> Item:
        values: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()
        }
        return Item(**values)


_FPN: dict[str, Any] = {"image": (800, 1216), "stride": 4, "sides": (16, 112)}

ITEMS = (
    Item("ROIPool C=512 7x7 K=128", "ROIPool", 512, 128),
    Item("ROIPool C=512 7x7 K=2000", "ROIPool", 512, 2000, reuse=True),
    Item("ROIAlign C=512 sampling 2 K=128", "ROIAlign", 512, 128, sampling_ratio=2),
    Item("ROIAlign C=512 adaptive K=128", "ROIAlign", 512, 128),
    Item("ROIAlign C=512 sampling 2 K=2000", "ROIAlign", 512, 2000, sampling_ratio=2, reuse=True),
    Item("ROIAlign FPN C=256 7x7 K=1000", "ROIAlign", 256, 1000, sampling_ratio=2, **_FPN),
    Item(
        "ROIAlign FPN C=256 14x14 K=1000",
        "ROIAlign",
        256,
        1000,
        pooled=14,
        sampling_ratio=2,
        **_FPN,
    ),
    Item("PrROIPool C=512 K=128", "PrROIPool", 512, 128),
    Item("RotatedROIAlign C=512 sampling 2 K=128", "RotatedROIAlign", 512, 128, sampling_ratio=2),
    Item("RotatedROIAlign C=512 adaptive K=128", "RotatedROIAlign", 512, 128),
    Item("PSROIPool 21x7x7 K=300", "PSROIPool", 21, 300),
    Item("PSROIPool 21x7x7 K=2000", "PSROIPool", 21, 2000, reuse=True),
    Item("PSROIPool 81x7x7 K=300", "PSROIPool", 81, 300),
    Item("PSROIPool 81x7x7 K=2000", "PSROIPool", 81, 2000, reuse=True),
    Item("PSROIAlign 21x7x7 sampling 2 K=300", "PSROIAlign", 21, 300, sampling_ratio=2),
    Item(
        "PSROIAlign 21x7x7 sampling 2 K=2000",
        "PSROIAlign",
        21,
        2000,
        sampling_ratio=2,
        reuse=True,
    ),
    Item(
        "PSROIAlign 81x7x7 sampling 2 K=2000",
        "PSROIAlign",
        81,
        2000,
        sampling_ratio=2,
        reuse=True,
    ),
    # Small calls: what a call costs from Python, end to end. 16 channels of data.
    Item("small ROIPool C=16 7x7 K=8", "ROIPool", 16, 8),
    Item("small ROIAlign C=16 7x7 K=8", "ROIAlign", 16, 8, sampling_ratio=2),
    Item("small PSROIPool C=16 4x4 K=8", "PSROIPool", 1, 8, pooled=4),
    Item("small PSROIAlign C=16 4x4 K=8", "PSROIAlign", 1, 8, pooled=4, sampling_ratio=2),
)


def shrink(item: Item) -> Item:
    """The same row at a size that takes no time: it tests the script, not the operators."""
    return replace(item, channels=min(item.channels, 4), rois=min(item.rois, 8), image=(160, 240))
