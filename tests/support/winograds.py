# SPDX-License-Identifier: Apache-2.0
"""Convolutions by Winograd's algorithm and by their definition, and how much they differ."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np
from support import layers

from gluon_roi.inference import winograd
from testing.inference_operators import winograd_convolution

#: Of float32: half the distance of 1 to the next number.
UNIT = 2.0**-24


def direct(
    data: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    residual: np.ndarray | None = None,
    dilate: int = 1,
) -> np.ndarray:
    """The convolution by its definition, float64, without an activation."""
    around = (dilate, dilate)
    out = layers.direct(data, weight, pad=around, dilate=around) + bias[:, None, None]
    return out if residual is None else out + residual


def run(
    data: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    tile: int = 4,
    **parameters: Any,
) -> np.ndarray:
    arrays = [data, winograd.transform_weights(weight, tile)]
    arrays.append(np.zeros(len(weight)) if bias is None else bias)
    arrays += [] if residual is None else [residual]
    inputs = [mx.nd.array(array, dtype="float32", ctx=mx.cpu()) for array in arrays]
    return winograd_convolution(*inputs, num_filter=len(weight), **parameters).asnumpy()


def units(got: np.ndarray, wanted: np.ndarray, data: np.ndarray, weight: np.ndarray) -> float:
    """The largest error, in units of 2^-24 max|data| sum|weight|."""
    size = np.abs(data).max() * np.abs(weight.astype(np.float64)).sum((1, 2, 3)).max()
    return np.abs(got - wanted).max() / (UNIT * size)


def amplification(weight: np.ndarray, tile: int = 4) -> float:
    """The largest sum of absolute terms of any output, over max|data| sum|weight|.

    1 for a direct convolution. Tiles of 4 x 4: 25 to 40 for trained weights, at most 175.5 for any.
    """
    steps = weight.shape[1] + winograd.ALGORITHMS[tile].roundings  # of at most 64 channels
    sums = np.abs(weight.astype(np.float64)).sum(axis=(1, 2, 3))
    bounds = (winograd.error_bound(one[None], tile) for one in weight)
    return max(bound / (UNIT * steps * one) if one else 0 for bound, one in zip(bounds, sums))


def error(tile: int) -> float:
    """The error of a layer, as `units` has it."""
    data, weight = layers.numbers(0, 3, 20, 30, 23), layers.numbers(1, 37, 20, 3, 3)
    wanted = direct(data, weight, np.zeros(37), None, 2)
    return float(units(run(data, weight, tile=tile, dilate=2), wanted, data, weight))
