# SPDX-License-Identifier: Apache-2.0
"""The rows of deformable convolution. Needs only NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .rows import Inputs, Row


@dataclass(frozen=True)
class Convolution(Row):
    """A convolution of one image, whose output has the size of the map; or its samples alone."""

    name: str
    operator: str
    channels: int  # of the map, and of the convolution's output
    kernel: int = 3
    size: tuple[int, int] = (38, 63)  # of the map
    dtype: str = "float32"
    reuse: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        sizes = {"kernel": (self.kernel,) * 2, "pad": (self.kernel // 2,) * 2}
        if self.operator == "DeformableSampling":
            return sizes
        return {**sizes, "num_filter": self.channels, "no_bias": True}

    def inputs(self) -> Inputs:
        generator = np.random.Generator(np.random.PCG64(1))
        cells, maps = self.kernel**2, (1, self.channels, *self.size)
        shapes = [maps, (1, 2 * cells, *self.size)]
        out = (1, self.channels, self.size[0] * self.kernel, self.size[1] * self.kernel)
        if self.operator != "DeformableSampling":
            shapes.append((self.channels, self.channels, self.kernel, self.kernel))
            out = maps
        *arrays, d_out = (
            generator.standard_normal(shape, np.float32).astype(self.dtype)
            for shape in (*shapes, out)
        )
        return Inputs([], arrays, d_out)

    def shrunk(self) -> Convolution:
        return replace(self, channels=4, size=(7, 9))


CONVOLUTIONS = (
    Convolution("DeformableConvolution 512 -> 512 3x3", "DeformableConvolution", 512),
    Convolution("DeformableSampling C=512 3x3", "DeformableSampling", 512, reuse=True),
)
