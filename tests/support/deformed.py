# SPDX-License-Identifier: Apache-2.0
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
        kernel, stride, dilate, pad = (self.pair(name) for name in _SIZES)
        height, width = (
            (self.size[n] + 2 * pad[n] - dilate[n] * (kernel[n] - 1) - 1) // stride[n] + 1
            for n in (0, 1)
        )
        return height, width

    def weighted(self) -> tuple[list[np.ndarray], np.ndarray]:
        """One image's arrays() and the weights of a convolution; the gradient of its output.

        No sample lies on a cell: at -1 torchvision has a derivative, although the sample is 0.
        """
        rng = np.random.RandomState(2)
        data, offset, *mask = self.arrays("float64", batch=1)
        offset = np.floor(offset) + rng.uniform(0.1, 0.9, offset.shape)
        weight = rng.randn(4, self.channels, *self.pair("kernel"))
        d_out = rng.randn(1, 4, *self.outputs).astype("float32")
        return [a.astype("float32") for a in (data, offset, *mask, weight)], d_out

    def pair(self, name: str) -> tuple[int, int]:
        value = self.parameters.get(name, _SIZES[name])
        return value if isinstance(value, tuple) else (value, value)

    def arrays(self, dtype: str, scale: float = 2.0, batch: int = 2) -> list[np.ndarray]:
        """data, offset, mask if there is one; some samples lie on cells, some far off the map."""
        rng = np.random.RandomState(0)
        kernel = self.pair("kernel")
        moved = self.parameters.get("num_deformable_group", 1) * kernel[0] * kernel[1]
        data = rng.randn(batch, self.channels, *self.size)
        offset = scale * rng.randn(batch, 2 * moved, *self.outputs)
        offset.flat[::7] = np.round(offset.flat[::7])
        offset.flat[::41] *= 20
        arrays = [data, offset, rng.rand(batch, moved, *self.outputs)]
        return [a.astype(dtype) for a in arrays[: 2 + self.mask]]

    def d_out(self, dtype: str, batch: int = 2) -> np.ndarray:
        kernel, size = self.pair("kernel"), self.outputs
        if self.parameters.get("layout") == "columns":
            shape = batch, self.channels * kernel[0] * kernel[1], *size
        else:
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
    "columns": Sampled(
        34,
        (9, 11),
        {
            "kernel": (2, 3),
            "stride": (1, 2),
            "pad": 1,
            "num_deformable_group": 2,
            "layout": "columns",
        },
        True,
    ),
    "edges": Sampled(33, (2, 2), {"kernel": 2, "pad": 3, "convention": "torchvision"}, False),
}

#: Whose convolutions tests/golden/record.py records.
RECORDED = {
    name: CALLS[name]._replace(
        parameters={**CALLS[name].parameters, "convention": "torchvision"}, mask=mask
    )
    for name, mask in (("fades", True), ("groups", True), ("edges", False))
}


def every_half() -> list[np.ndarray]:
    """data with every float16, an offset of 0, and a mask for products of every kind.

    They overflow, are subnormal, or lie halfway between two numbers. The 17 channels are a block
    and a rest.
    """
    rng = np.random.RandomState(0)
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    data = np.resize(numbers, (1, 17, 64, 64))
    mask = rng.choice(numbers[np.isfinite(numbers)], (1, 1, 64, 64))
    mask.flat[::2] = np.ldexp(1.0, rng.randint(-24, 16, mask.size // 2))
    return [data, np.zeros((1, 2, 64, 64), np.float16), mask]
