# SPDX-License-Identifier: Apache-2.0
"""Convolutions that keep MXNet's layout: weights and errors.

The operators are GemmConvolution, a product of matrices, and DepthwiseConvolution
(src/ops/gemm_convolution.h, src/ops/depthwise_convolution.h).
"""

from __future__ import annotations

import numpy as np

from ..weights import new_weights

__all__ = ["DEPTHWISE", "OPERATOR", "error_bound", "pack_weights"]

#: The operators' names in MXNet and in symbol files.
OPERATOR = "_gluon_roi_GemmConvolution"
DEPTHWISE = "_gluon_roi_DepthwiseConvolution"
#: Outputs of a panel of the weights.
PANEL = 12


def pack_weights(weight: np.ndarray, num_group: int = 1) -> np.ndarray:
    """Pack the weights of a convolution as the kernel of GemmConvolution reads them.

    Parameters
    ----------
    weight : array (O, C / num_group, kernel height, kernel width) of float32
        The weights, as MXNet's Convolution has them.
    num_group : int

    Returns
    -------
    array (num_group * ceil(F / 12), K, 12) of float32
        F = O / num_group outputs of a group, K = C / num_group * kernel height * kernel width.
        Element [g * ceil(F / 12) + f // 12, k, f % 12] is weight k, in the order of memory, of
        output f of group g; 0 behind the last output of a group.

    Examples
    --------
    >>> pack_weights(np.ones((20, 3, 1, 1), np.float32)).shape
    (2, 3, 12)
    """
    filters, depth = len(weight) // num_group, int(np.prod(weight.shape[1:]))
    panels = -(-filters // PANEL)
    packed = new_weights((num_group * panels, depth, PANEL))
    panel = packed.reshape(num_group, panels, depth, PANEL)
    outputs = weight.reshape(num_group, filters, depth)
    for number in range(panels):
        part = outputs[:, number * PANEL : (number + 1) * PANEL]
        panel[:, number, :, : part.shape[1]] = part.transpose(0, 2, 1)
        panel[:, number, :, part.shape[1] :] = 0
    return packed


def error_bound(weight: np.ndarray) -> float:
    """Bound the error of outputs on maps with numbers between -1 and 1.

    Parameters
    ----------
    weight : array (O, C, kernel height, kernel width)
        As MXNet's Convolution has them; C is the number of channels of a group.

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
    the bound of one term more. It is the bound of any order of the same sum, MXNet's among them.
    Errors that occur are far smaller, because roundings cancel.

    Examples
    --------
    >>> error_bound(np.full((1, 256, 1, 1), 1 / 256)) < 2e-5
    True
    """
    terms = int(np.prod(np.shape(weight)[1:])) * 2.0**-24
    with np.errstate(invalid="ignore"):
        sums = np.abs(np.asarray(weight, np.float64)).sum(axis=(1, 2, 3))
    return float(terms / (1 - terms) * np.max(sums, initial=0))
