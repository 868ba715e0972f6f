# SPDX-License-Identifier: Apache-2.0
"""Convolutions by Winograd's F(4 x 4, 3 x 3): weights, errors, and where they are faster.

The operator is WinogradConvolution (src/ops/winograd_convolution.h). A tile of 4 x 4 outputs reads
6 x 6 cells d of a map; with the matrices of this module, its outputs are ``A.T @ ((G @ w @ G.T) *
(B.T @ d @ B)) @ A``, which has 36 products in place of 144.
"""

from __future__ import annotations

import math
from typing import Iterator, Sequence

import numpy as np

from ..weights import new_weights

__all__ = [
    "OPERATOR",
    "count_tiles",
    "error_bound",
    "has_error_bound",
    "pays",
    "transform_weights",
]

#: The operator's name in MXNet and in symbol files.
OPERATOR = "_gluon_roi_WinogradConvolution"
#: Outputs of a block of the weights.
BLOCK = 16
#: Where the polynomials of a tile are evaluated, besides infinity: the points of oneDNN's kernels.
#: The usual ones, 0, +-1 and +-2, take as many operations, with 2.7 times the error.
POINTS = (0.0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)


def _matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A (6, 4), B (6, 6) and G (6, 3), float64, by polynomial interpolation."""
    powers = np.vander(POINTS, 4, increasing=True)
    differences = np.subtract.outer(POINTS, POINTS)
    np.fill_diagonal(differences, 1)
    a = np.vstack([powers, [0, 0, 0, 1]])
    g = np.vstack([powers[:, :3] / differences.prod(axis=1, keepdims=True), [0, 0, 1]])
    b = np.zeros((6, 6))
    for i in range(5):
        b[:5, i] = np.poly(np.delete(POINTS, i))[::-1]
    b[:, 5] = np.poly(POINTS)[::-1]
    return a, b, g


A, B, G = _matrices()
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def transform_weights(weight: np.ndarray) -> np.ndarray:
    """Transform and pack the weights of a 3 x 3 convolution.

    Parameters
    ----------
    weight : array (O, C, 3, 3)
        The weights, as MXNet's Convolution has them.

    Returns
    -------
    array (36, ceil(O / 16), C, 16) of float32
        Element [6 * a + b, o // 16, c, o % 16] is ``(G @ weight[o, c] @ G.T)[a, b]``, computed in
        float64; 0 behind the last output.

    Raises
    ------
    ValueError
        The weights have another shape.

    Examples
    --------
    >>> transform_weights(np.ones((20, 3, 3, 3))).shape
    (36, 2, 3, 16)
    """
    weight = _checked(weight)
    outputs, channels = weight.shape[:2]
    packed = new_weights((36, -(-outputs // BLOCK), channels, BLOCK))
    packed[:, -1:] = 0
    for number, points in enumerate(_transformed_blocks(weight)):
        packed[:, number, :, : points.shape[2]] = points
    return packed


def _checked(weight: np.ndarray) -> np.ndarray:
    weight = np.asarray(weight)
    if weight.ndim != 4 or weight.shape[2:] != (3, 3):
        raise ValueError(
            f"WinogradConvolution: weight has shape {weight.shape}, expected (O, C, 3, 3)"
        )
    return weight


def _transformed_blocks(weight: np.ndarray) -> Iterator[np.ndarray]:
    """G w G' of 16 outputs at a time, (36, C, 16), float64: the whole may take hundreds of MB."""
    for start in range(0, len(weight), BLOCK):
        kernels = weight[start : start + BLOCK].transpose(2, 3, 1, 0)
        # As one product of matrices, which takes a tenth of the time of one for each kernel.
        with np.errstate(invalid="ignore"):
            points = np.kron(G, G) @ kernels.reshape(9, -1).astype(np.float64)
        yield points.reshape(36, *kernels.shape[2:])


def error_bound(weight: np.ndarray) -> float:
    """Bound the error of outputs on maps with numbers between -1 and 1.

    Parameters
    ----------
    weight : array (O, C, 3, 3)

    Returns
    -------
    float
        Times max|data|, the largest possible difference to exact arithmetic, without bias and
        residual: 2^-24 (C + 14) times the largest sum of absolute terms. inf where the transformed
        weights are not finite in float32.

    Notes
    -----
    A term is rounded C times in the sum over channels, and at most 14 times elsewhere: 4 times in
    the transform of the map, once in that of the weights, 6 times in that of the outputs, and where
    bias and residual are added (Higham 2002, Accuracy and Stability of Numerical Algorithms,
    section 3.1; Barabasz et al. 2018, Error Analysis and Improving the Accuracy of Winograd
    Convolution for Deep Neural Networks, arXiv:1803.10986). SSE2, which rounds products as well,
    has up to twice the bound. Errors that occur are far smaller, because roundings cancel.

    Examples
    --------
    >>> error_bound(np.full((1, 1, 3, 3), 1 / 9)) < 1e-4
    True
    """
    largest = float(np.max(_largest_terms(weight), initial=0))
    if not largest < _LARGEST_FLOAT:
        return float("inf")
    return 2.0**-24 * (np.shape(weight)[1] + 14) * largest


def has_error_bound(weight: np.ndarray) -> bool:
    """Whether `error_bound` is finite. This takes little time if no weight is close to overflow."""
    weight = _checked(weight)
    largest = max(float(weight.max(initial=0)), -float(weight.min(initial=0)))
    # The terms of an output if all weights were as large as this one, and no terms cancelled.
    terms = np.abs(A).T @ (np.abs(G).sum(axis=1) * np.abs(B).sum(axis=0))
    if largest * weight.shape[1] * float(terms.max()) ** 2 < _LARGEST_FLOAT:
        return True
    return bool(np.isfinite(error_bound(weight)))


def _largest_terms(weight: np.ndarray) -> np.ndarray:
    """For each output, its largest sum of absolute terms for max|data| = 1."""
    maps = np.abs(B).sum(axis=0)
    terms = [np.zeros(0)]
    for points in _transformed_blocks(_checked(weight)):
        sums = np.abs(points).sum(axis=1).reshape(6, 6, -1) * np.outer(maps, maps)[..., None]
        terms.append(np.einsum("ia,ijo,jb->abo", np.abs(A), sums, np.abs(A)).max(axis=(0, 1)))
    return np.concatenate(terms)


def count_tiles(data_shape: Sequence[int], dilate: int = 1) -> int:
    """The number of tiles of 4 x 4 outputs, of all images.

    Parameters
    ----------
    data_shape : sequence of int
        (N, C, H, W).
    dilate : int
        Each of the dilate x dilate phases of a map has tiles of its own.

    Examples
    --------
    >>> count_tiles((1, 256, 38, 50))
    130
    >>> count_tiles((1, 256, 38, 50), dilate=2)
    140
    """
    images, _, height, width = data_shape
    rows, columns = (math.ceil(math.ceil(size / dilate) / 4) for size in (height, width))
    return images * dilate**2 * rows * columns


def pays(data_shape: Sequence[int], num_filter: int, dilate: int = 1) -> bool:
    """Whether a layer of these sizes takes at most 0.7 of the time of MXNet's convolution.

    Parameters
    ----------
    data_shape : sequence of int
        (N, C, H, W).
    num_filter : int
        Number of output channels.
    dilate : int

    Notes
    -----
    Both times are estimated, in multiplications and additions of the product, from measurements
    with AVX2 on one thread (``python -m benchmarks.winograd``): a number of a tile that is
    transformed takes as long as 2000 of them, reading a transformed weight from memory as 24, and
    one of a direct convolution as 4/3. Small maps read too many weights, few channels transform too
    much, and the tiles of maps of 1 to 3 rows are mostly empty.

    Examples
    --------
    >>> pays((1, 256, 38, 50), 256), pays((1, 3, 600, 800), 64)
    (True, False)
    """
    images, channels, height, width = data_shape
    products = channels * math.ceil(num_filter / BLOCK) * BLOCK
    ours = count_tiles(data_shape, dilate) * (36 * products + 2000 * (channels + num_filter))
    ours += 36 * 24 * products
    direct = 4 / 3 * 9 * images * height * width * channels * num_filter
    return ours <= 0.7 * direct
