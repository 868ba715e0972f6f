# SPDX-License-Identifier: Apache-2.0
"""Convolutions by Winograd's F(4 x 4, 3 x 3) and F(6 x 6, 3 x 3): weights, errors, and speed.

The operator is WinogradConvolution (src/ops/winograd_convolution.h). A tile of 4 x 4 outputs reads
6 x 6 cells d of a map; with matrices A, B and G, its outputs are ``A.T @ ((G @ w @ G.T) * (B.T @ d
@ B)) @ A``, which has 36 products in place of 144. A tile of 6 x 6 outputs has 64 in place of 324,
but larger errors.
"""

from __future__ import annotations

import math
from typing import Iterator, NamedTuple, Sequence

import numpy as np

from ..weights import new_weights

__all__ = [
    "OPERATOR",
    "count_tiles",
    "error_bound",
    "has_error_bound",
    "pays",
    "tile_size",
    "transform_weights",
]

#: The operator's name in MXNet and in symbol files.
OPERATOR = "_gluon_roi_WinogradConvolution"
#: Outputs of a block of the weights.
BLOCK = 16
#: The products of a chain, kMaxChain of src/ops/winograd_convolution.cc: a sum over more channels
#: adds several chains.
CHAIN = 64


class Algorithm(NamedTuple):
    """Matrices (float64) for a tile of T x T outputs, and how often a term is rounded.

    `roundings` does not count the sum over channels.
    """

    a: np.ndarray  # (T + 2, T)
    b: np.ndarray  # (T + 2, T + 2)
    g: np.ndarray  # (T + 2, 3)
    roundings: int


def _algorithm(points: Sequence[float], roundings: int) -> Algorithm:
    """The matrices of Cook and Toom's interpolation at `points` and infinity."""
    count = len(points)
    powers = np.vander(points, count - 1, increasing=True)
    differences = np.subtract.outer(points, points)
    np.fill_diagonal(differences, 1)
    a = np.vstack([powers, np.eye(count - 1)[-1]])
    g = np.vstack([powers[:, :3] / differences.prod(axis=1, keepdims=True), [0, 0, 1]])
    b = np.zeros((count + 1, count + 1))
    for i in range(count):
        b[:count, i] = np.poly(np.delete(points, i))[::-1]
    b[:, count] = np.poly(points)[::-1]
    return Algorithm(a, b, g, roundings)


#: The algorithm for each tile size. Tiles of 4 x 4 use the points of oneDNN's kernels: the usual
#: points, 0, +-1 and +-2, take as many operations, with 2.7 times the error. Tiles of 6 x 6 use the
#: usual points: no symmetric points that are multiples of 1/8 have a smaller error bound for random
#: weights.
ALGORITHMS = {
    4: _algorithm((0, 5 / 8, -5 / 8, 3 / 2, -3 / 2), 14),
    6: _algorithm((0, 1, -1, 2, -2, 1 / 2, -1 / 2), 16),
}
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def transform_weights(weight: np.ndarray, tile: int = 4) -> np.ndarray:
    """Transform and pack the weights of a 3 x 3 convolution.

    Parameters
    ----------
    weight : array (O, C, 3, 3)
        The weights, as MXNet's Convolution has them.
    tile : 4 or 6
        The outputs of a tile along an axis.

    Returns
    -------
    array (36 or 64, ceil(O / 16), C, 16) of float32
        Element [(tile + 2) * a + b, o // 16, c, o % 16] is ``(G @ weight[o, c] @ G.T)[a, b]``,
        computed in float64; 0 behind the last output.

    Raises
    ------
    ValueError
        The weights have another shape.

    Examples
    --------
    >>> transform_weights(np.ones((20, 3, 3, 3))).shape
    (36, 2, 3, 16)
    >>> transform_weights(np.ones((20, 3, 3, 3)), tile=6).shape
    (64, 2, 3, 16)
    """
    weight = _checked(weight)
    outputs, channels = weight.shape[:2]
    packed = new_weights(((tile + 2) ** 2, -(-outputs // BLOCK), channels, BLOCK))
    packed[:, -1:] = 0
    for number, points in enumerate(_transformed_blocks(weight, ALGORITHMS[tile].g)):
        packed[:, number, :, : points.shape[2]] = points
    return packed


def _checked(weight: np.ndarray) -> np.ndarray:
    weight = np.asarray(weight)
    if weight.ndim != 4 or weight.shape[2:] != (3, 3):
        raise ValueError(
            f"WinogradConvolution: weight has shape {weight.shape}, expected (O, C, 3, 3)"
        )
    return weight


def _transformed_blocks(weight: np.ndarray, g: np.ndarray) -> Iterator[np.ndarray]:
    """G w G' of 16 outputs at a time, float64: the whole may take hundreds of MB.

    Points are the first axis, then channels and outputs.
    """
    for start in range(0, len(weight), BLOCK):
        kernels = weight[start : start + BLOCK].transpose(2, 3, 1, 0)
        # As one product of matrices, which takes a tenth of the time of one for each kernel.
        with np.errstate(invalid="ignore"):
            points = np.kron(g, g) @ kernels.reshape(9, -1).astype(np.float64)
        yield points.reshape(len(g) ** 2, *kernels.shape[2:])


def error_bound(weight: np.ndarray, tile: int = 4) -> float:
    """Bound the error of outputs on maps with numbers between -1 and 1.

    Parameters
    ----------
    weight : array (O, C, 3, 3)
    tile : 4 or 6

    Returns
    -------
    float
        Times max|data|, the largest possible difference to exact arithmetic, without bias and
        residual: 2^-24 (S + R) times the largest sum of absolute terms, where R is 14 for tiles of
        4 x 4 and 16 for 6 x 6. inf where the transformed weights are not finite in float32.

    Notes
    -----
    A term is rounded S = min(C, 64) + ceil(C / 64) - 1 times in the sum over channels, whose
    chains have 64 products, and at most R times elsewhere: 4 times when the map is transformed (6
    times in tiles of 6 x 6), once when the weights are, 6 times when the outputs are, and when bias
    and residual are added and LeakyReLU multiplies (Higham 2002, Accuracy and Stability of
    Numerical Algorithms, section 3.1; Barabasz et al. 2018, Error Analysis and Improving the
    Accuracy of Winograd Convolution for Deep Neural Networks, arXiv:1803.10986). SSE2, which rounds
    products as well, has up to twice the bound. Errors that occur are far smaller, because
    roundings cancel.

    Examples
    --------
    >>> error_bound(np.full((1, 1, 3, 3), 1 / 9)) < 1e-4
    True
    """
    largest = float(np.max(_largest_terms(weight, ALGORITHMS[tile]), initial=0))
    if not largest < _LARGEST_FLOAT:
        return float("inf")
    channels = np.shape(weight)[1]
    steps = min(channels, CHAIN) + max(math.ceil(channels / CHAIN) - 1, 0)
    return 2.0**-24 * (steps + ALGORITHMS[tile].roundings) * largest


def has_error_bound(weight: np.ndarray, tile: int = 4) -> bool:
    """Whether `error_bound` is finite. This takes little time if no weight is close to overflow."""
    weight = _checked(weight)
    largest = max(float(weight.max(initial=0)), -float(weight.min(initial=0)))
    # The terms of an output if all weights were as large as this one, and no terms cancelled.
    a, b, g = (np.abs(matrix) for matrix in ALGORITHMS[tile][:3])
    terms = a.T @ (g.sum(axis=1) * b.sum(axis=0))
    if largest * weight.shape[1] * float(terms.max()) ** 2 < _LARGEST_FLOAT:
        return True
    return bool(np.isfinite(error_bound(weight, tile)))


def _largest_terms(weight: np.ndarray, algorithm: Algorithm) -> np.ndarray:
    """For each output, its largest sum of absolute terms for max|data| = 1."""
    a, maps = np.abs(algorithm.a), np.abs(algorithm.b).sum(axis=0)
    terms = [np.zeros(0)]
    for points in _transformed_blocks(_checked(weight), algorithm.g):
        sums = np.abs(points).sum(axis=1).reshape(len(a), len(a), -1)
        sums *= np.outer(maps, maps)[..., None]
        terms.append(np.einsum("ia,ijo,jb->abo", a, sums, a).max(axis=(0, 1)))
    return np.concatenate(terms)


def count_tiles(data_shape: Sequence[int], dilate: int = 1, tile: int = 4) -> int:
    """The number of tiles, of all images.

    Parameters
    ----------
    data_shape : sequence of int
        (N, C, H, W).
    dilate : int
        Each of the dilate x dilate phases of a map has tiles of its own.
    tile : 4 or 6
        The outputs of a tile along an axis.

    Examples
    --------
    >>> count_tiles((1, 256, 38, 50))
    130
    >>> count_tiles((1, 256, 38, 50), dilate=2)
    140
    """
    images, _, height, width = data_shape
    rows, columns = (math.ceil(math.ceil(size / dilate) / tile) for size in (height, width))
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
    winograd = _products(data_shape, num_filter, dilate, tile=4, transform=2000, read=24)
    direct = 4 / 3 * 9 * images * height * width * channels * num_filter
    return winograd <= 0.7 * direct


def tile_size(data_shape: Sequence[int], num_filter: int, dilate: int = 1) -> int:
    """The outputs of a tile along an axis, 4 or 6, for a layer of these sizes.

    Parameters
    ----------
    data_shape : sequence of int
        (N, C, H, W).
    num_filter : int
        Number of output channels.
    dilate : int

    Notes
    -----
    It is 6 where an estimate saves 7 % of the time. Its constants were fitted to 12 layers on AVX2,
    each measured with both tiles: transforming a number of a tile takes as long as 1100
    multiplications and additions in tiles of 4 x 4, as 2500 in tiles of 6 x 6, and reading a
    transformed weight as 12. (`pays` assumes more, because it compares with another operator.)
    Tiles of 6 x 6 fill small maps badly, and have 64 numbers for a weight in place of 36.

    Examples
    --------
    >>> tile_size((1, 256, 150, 200), 256), tile_size((1, 256, 38, 50), 256)
    (6, 4)
    """
    four = _products(data_shape, num_filter, dilate, tile=4, transform=1100, read=12)
    six = _products(data_shape, num_filter, dilate, tile=6, transform=2500, read=12)
    return 6 if six < 0.93 * four else 4


def _products(
    data_shape: Sequence[int], num_filter: int, dilate: int, tile: int, transform: int, read: int
) -> int:
    """The time of a layer, in multiplications and additions of its product.

    `transform` is the time for a number of a tile, `read` the time for a transformed weight.
    """
    channels, tiles = data_shape[1], count_tiles(data_shape, dilate, tile)
    products = (tile + 2) ** 2 * channels * math.ceil(num_filter / BLOCK) * BLOCK
    return tiles * (products + transform * (channels + num_filter)) + read * products
