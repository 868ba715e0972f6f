# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of boxes and samples, rounded as in the kernels in every runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..graph import Graph

#: Map coordinates are limited to it, as in the kernels.
FARTHEST = 1e30


def is_finite(g: Graph, value: str, dtype: Any) -> str:
    return g("Less", g("Abs", value), np.array(np.inf, dtype))


def round_away(g: Graph, value: str, dtype: Any = np.float32) -> str:
    """Round halves away from zero; ONNX's Round rounds them to even."""
    size = g("Abs", value)
    down = g("Floor", size)
    up = g("GreaterOrEqual", g("Sub", size, down), np.array(0.5, dtype))
    return g("Mul", g("Add", down, g.cast(up, dtype)), g("Sign", value))


def rounded(g: Graph, value: str, dtype: Any = np.float32) -> str:
    """The value, rounded to its type before it is used.

    OpenVINO fuses a product with a following sum, and expands products of sums. A Clip in between,
    with limits beyond all values that occur, prevents both.
    """
    return g("Clip", value, np.array(-3e38, dtype), np.array(3e38, dtype))


def product(g: Graph, a: Any, b: Any, dtype: Any = np.float32) -> str:
    return rounded(g, g("Mul", a, b), dtype)


def quotient(g: Graph, value: str, divisor: Any, dtype: Any = np.float32) -> str:
    """value / divisor, correctly rounded, for a divisor that is a whole number up to 4096.

    OpenVINO multiplies by the reciprocal, which may return a neighbouring number. So the remainder
    is computed and divided in turn. Splitting the quotient in two halves makes the remainder exact
    (Dekker 1971).
    """
    first = g("Div", value, divisor)
    scaled = product(g, first, np.array(2 ** (12 if dtype == np.float32 else 27) + 1, dtype), dtype)
    high = g("Sub", scaled, g("Sub", scaled, first))
    low = g("Sub", first, high)
    rest = g("Sub", g("Sub", value, g("Mul", divisor, high)), g("Mul", divisor, low))
    return g("Add", first, g("Div", rest, divisor))


def saturate(g: Graph, value: str, dtype: Any = np.float32) -> str:
    return g("Clip", value, np.array(-FARTHEST, dtype), np.array(FARTHEST, dtype))


def on_map(g: Graph, value: str, scale: float, aligned: bool, dtype: Any) -> str:
    """The map coordinate of an image coordinate."""
    value = product(g, value, np.array(scale, dtype), dtype)
    return saturate(g, g("Sub", value, np.array(0.5, dtype)) if aligned else value, dtype)


def bases(g: Graph, start: str, bin_size: str, bins: int, dtype: Any) -> str:
    """Where the bins along an axis begin, (K, bins)."""
    offset = product(g, np.arange(bins, dtype=dtype)[None], bin_size, dtype)
    return g("Add", start, offset)


def positions(g: Graph, base: str, bin_size: str, samples: int, dtype: Any) -> str:
    """Where the samples of bins that begin at `base` lie, (K, bins, samples)."""
    inside = (np.arange(samples, dtype=dtype) + dtype(0.5))[None]
    offset = product(g, inside, bin_size, dtype)
    offset = quotient(g, offset, np.array(samples, dtype), dtype)
    return g("Add", g.unsqueeze(base, 2), g.unsqueeze(offset, 1))
