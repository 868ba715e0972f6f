"""Calls of DeformableSampling that tests of MXNet, C and CUDA share. Needs nothing but NumPy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Sampled(NamedTuple):
    """Parameters, and the shapes that go with them."""

    channels: int
    size: tuple[int, int]  # of the map
    parameters: dict[str, Any]
    mask: bool

    @property
    def outputs(self) -> tuple[int, int]:
        kernel, stride, dilate, pad = (self._pair(name) for name in _SIZES)
        height, width = (
            (self.size[n] + 2 * pad[n] - dilate[n] * (kernel[n] - 1) - 1) // stride[n] + 1
            for n in (0, 1)
        )
        return height, width

    def _pair(self, name: str) -> tuple[int, int]:
        value = self.parameters.get(name, _SIZES[name])
        return value if isinstance(value, tuple) else (value, value)

    def arrays(self, dtype: str, scale: float = 2.0, batch: int = 2) -> list[np.ndarray]:
        """data, offset, mask if there is one; some samples lie on cells, some far off the map."""
        rng = np.random.RandomState(0)
        kernel = self._pair("kernel")
        moved = self.parameters.get("num_deformable_group", 1) * kernel[0] * kernel[1]
        data = rng.randn(batch, self.channels, *self.size)
        offset = scale * rng.randn(batch, 2 * moved, *self.outputs)
        offset.flat[::7] = np.round(offset.flat[::7])
        offset.flat[::41] *= 20
        arrays = [data, offset, rng.rand(batch, moved, *self.outputs)]
        return [a.astype(dtype) for a in arrays[: 2 + self.mask]]

    def d_out(self, dtype: str, batch: int = 2) -> np.ndarray:
        kernel, size = self._pair("kernel"), self.outputs
        shape = batch, self.channels, size[0] * kernel[0], size[1] * kernel[1]
        return np.random.RandomState(1).randn(*shape).astype(dtype)


_SIZES: dict[str, Any] = {"kernel": (1, 1), "stride": 1, "dilate": 1, "pad": 0}

#: By name: of every parameter, around blocks of 16 channels, with and without a mask.
CALLS = {
    "plain": Sampled(17, (9, 11), {"kernel": 3, "pad": 1}, False),
    "mask": Sampled(16, (9, 11), {"kernel": 3, "pad": 1}, True),
    "fades": Sampled(5, (8, 7), {"kernel": 3, "pad": 1, "convention": "torchvision"}, True),
    "groups": Sampled(
        12,
        (12, 9),
        {
            "kernel": (3, 2),
            "stride": (2, 1),
            "dilate": (1, 2),
            "pad": (2, 0),
            "num_deformable_group": 4,
        },
        True,
    ),
    "one": Sampled(1, (1, 30), {"kernel": 1, "stride": (1, 2)}, False),
    "edges": Sampled(33, (2, 2), {"kernel": 2, "pad": 3, "convention": "torchvision"}, False),
}
