# SPDX-License-Identifier: Apache-2.0
"""Convolutions as a product of matrices that keeps MXNet's layout: weights and errors.

The operator is GemmConvolution (src/ops/gemm_convolution.h).
"""

from __future__ import annotations

import numpy as np

__all__ = ["OPERATOR", "error_bound", "pack_weights"]

#: The operator's name in MXNet and in symbol files.
OPERATOR = "_gluon_roi_GemmConvolution"
#: Outputs of a panel of the weights.
PANEL = 12


def pack_weights(weight: np.ndarray) -> np.ndarray:
    """Pack the weights of a convolution as its kernel reads them.

    Parameters
    ----------
    weight : array (O, C, kernel height, kernel width) of float32
        The weights, as MXNet's Convolution has them.

    Returns
    -------
    array (ceil(O / 12), C * kernel height * kernel width, 12) of float32
        Element [o // 12, k, o % 12] is weight k of output o, in the order of memory; 0 behind the
        last output.

    Examples
    --------
    >>> pack_weights(np.ones((20, 3, 1, 1), np.float32)).shape
    (2, 3, 12)
    """
    rows = weight.reshape(len(weight), -1)
    panels = -(-len(rows) // PANEL)
    padded = np.zeros((panels * PANEL, rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    return np.ascontiguousarray(padded.reshape(panels, PANEL, -1).transpose(0, 2, 1))


def error_bound(weight: np.ndarray) -> float:
    """Bound the error of outputs on maps with numbers between -1 and 1.

    Parameters
    ----------
    weight : array (O, C, kernel height, kernel width)

    Returns
    -------
    float
        Times max|data|, the largest possible difference to exact arithmetic, without bias and
        residual: with n = C * kernel height * kernel width, n u / (1 - n u) times the largest sum
        of absolute weights of an output, where u = 2^-24. Not finite if a weight is not.

    Notes
    -----
    A term is rounded at most n times, once where each later term is added (Higham 2002, Accuracy
    and Stability of Numerical Algorithms, section 3.1). SSE2, which rounds products as well, has
    the bound of one term more. It is the bound of any order of the same sum, MXNet's among them,
    and 1 / `winograd.amplification` of that of Winograd's algorithm. Errors that occur are far
    smaller, because roundings cancel.

    Examples
    --------
    >>> error_bound(np.full((1, 256, 1, 1), 1 / 256)) < 2e-5
    True
    """
    terms = int(np.prod(np.shape(weight)[1:])) * 2.0**-24
    with np.errstate(invalid="ignore"):
        sums = np.abs(np.asarray(weight, np.float64)).sum(axis=(1, 2, 3))
    return float(terms / (1 - terms) * np.max(sums, initial=0))
