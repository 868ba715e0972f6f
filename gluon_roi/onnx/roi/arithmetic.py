# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of boxes and samples that every runtime rounds as the kernels do."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Tensor

#: Map coordinates are clamped to [-FARTHEST, FARTHEST], as in the kernels.
FARTHEST = 1e30


def is_finite(value: Tensor) -> Tensor:
    return value.abs() < np.inf


def all_finite(value: Tensor) -> Tensor:
    """Whether all numbers along axis 1 are finite; the axis is kept, with size 1."""
    finite = is_finite(value).cast(np.int32)
    return value.graph("ReduceMin", finite, axes=[1], keepdims=1).cast(np.bool_)


def round_away(value: Tensor) -> Tensor:
    """Round halves away from zero; ONNX's Round rounds them to even."""
    size = value.abs()
    down = size.floor()
    up = (size - down >= 0.5).cast(value.dtype)
    return (down + up) * value.sign()


def rounded(value: Tensor) -> Tensor:
    """The value, rounded to its type before it is used.

    OpenVINO fuses a product with a following sum, and expands products of sums. A Clip in between,
    with limits beyond all values that occur, prevents both.
    """
    return value.clip(-3e38, 3e38)


def product(a: Any, b: Any) -> Tensor:
    return rounded(a * b)


def quotient(value: Tensor, divisor: Any) -> Tensor:
    """value / divisor, correctly rounded, for an integer divisor up to 4096.

    OpenVINO multiplies by the reciprocal, whose result may be off by one ulp. So the remainder is
    computed, divided as well, and added. Splitting the quotient in two halves makes the remainder
    exact (Dekker 1971).
    """
    first = value / divisor
    scaled = product(first, 2 ** (12 if value.dtype == np.float32 else 27) + 1)
    high = scaled - (scaled - first)
    low = first - high
    rest = value - divisor * high - divisor * low
    return first + rest / divisor


def saturate(value: Tensor) -> Tensor:
    return value.clip(-FARTHEST, FARTHEST)


def on_map(value: Tensor, scale: float, aligned: bool) -> Tensor:
    """Convert an image coordinate to a map coordinate."""
    value = product(value, scale)
    return saturate(value - 0.5 if aligned else value)


def bases(start: Tensor, bin_size: Tensor, bins: int) -> Tensor:
    """The start of each bin along an axis, (K, bins)."""
    return start + product(np.arange(bins)[None], bin_size)


def positions(base: Tensor, bin_size: Tensor, samples: int) -> Tensor:
    """The positions of the samples of bins that begin at `base`, (K, bins, samples)."""
    inside = (np.arange(samples) + 0.5)[None]
    offset = quotient(product(inside, bin_size), samples)
    return base.unsqueeze(2) + offset.unsqueeze(1)
