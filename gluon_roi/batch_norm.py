# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a layer and the batch normalisation after it as one layer.

The ONNX export and the conversion for inference use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def fold(
    weight: np.ndarray,
    bias: Any,
    gamma: np.ndarray,
    beta: np.ndarray,
    mean: np.ndarray,
    variance: np.ndarray,
    epsilon: float,
) -> tuple[np.ndarray, np.ndarray] | None:
    """Weight and bias of a layer that is followed by batch normalisation.

    Parameters
    ----------
    weight : array (G, I, O, P)
        Weights of G groups with I inputs and O outputs each, and P cells of a kernel.
    bias : array (G * O,) or 0
    gamma, beta, mean, variance : array (G * O,)
        In inference, batch normalisation of an output y is (y - mean) / sqrt(variance + epsilon) *
        gamma + beta.
    epsilon : float

    Returns
    -------
    weight, bias : array (G, I, O, P) and array (G * O,) of the dtype of `weight`
        Computed in float64. None instead of both if they would be less accurate than the two
        layers: not finite, or below the smallest normal number, where floats have fewer digits.

    Examples
    --------
    >>> one, zero = np.ones(1), np.zeros(1)
    >>> fold(np.full((1, 1, 1, 1), 2.0), 3.0, 5 * one, 7 * one, zero, one, 0.0)
    (array([[[[10.]]]]), array([22.]))
    """
    groups, _, outputs, _ = weight.shape
    gamma, beta, mean, variance = (
        np.asarray(value, np.float64) for value in (gamma, beta, mean, variance)
    )
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
        shift = (beta + (bias - mean) * scale).astype(weight.dtype)
        scaled = np.empty_like(weight)
        np.multiply(weight, scale.reshape(groups, 1, outputs, 1), scaled, casting="same_kind")
    largest = np.maximum(scaled.max(axis=(1, 3), initial=0), -scaled.min(axis=(1, 3), initial=0))
    accurate = (largest == 0) | (largest >= np.finfo(weight.dtype).tiny)
    if accurate.all() and np.isfinite(largest).all() and np.isfinite(shift).all():
        return scaled, shift
    return None
