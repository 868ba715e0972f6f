# SPDX-License-Identifier: Apache-2.0
"""Calls of the convolutions for inference, and convolutions by their definition."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from gluon_roi.inference import deformable, gemm
from testing.inference_operators import function_for

#: Geometry of a convolution: kernel, stride, pad, dilate, for both axes.
Geometry = dict[str, Any]


def geometry(kernel: Any = 1, stride: Any = 1, pad: Any = 0, dilate: Any = 1) -> Geometry:
    """Each an int for both axes, or a pair."""
    given = {"kernel": kernel, "stride": stride, "pad": pad, "dilate": dilate}
    return {name: size if isinstance(size, tuple) else (size, size) for name, size in given.items()}


def call(operator: str, *inputs: Any, **attributes: Any) -> Any:
    """Call an operator on arrays or symbols: data, weight, bias and, optionally, residual."""
    if len(inputs) == 4:
        attributes["residual"] = True
    return function_for(operator, inputs[0])(*inputs, **attributes)


def run(
    data: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    num_group: int = 1,
    **attributes: Any,
) -> np.ndarray:
    """Call the operator of a layer: DepthwiseConvolution if each group has one map."""
    attributes.update(num_filter=len(weight), kernel=weight.shape[2:])
    if data.shape[1] == num_group > 1:
        operator, packed = gemm.DEPTHWISE, weight
    else:
        operator, packed = gemm.OPERATOR, gemm.pack_weights(weight, num_group)
        attributes["num_group"] = num_group
    arrays = [data, packed, np.zeros(len(weight)) if bias is None else bias]
    arrays += [] if residual is None else [residual]
    inputs = [mx.nd.array(array, dtype="float32", ctx=mx.cpu()) for array in arrays]
    return call(operator, *inputs, **attributes).asnumpy()


def run_deformable(
    sampled: list[np.ndarray], weight: np.ndarray, bias: np.ndarray | None = None, **attributes: Any
) -> np.ndarray:
    """Call DeformableGemmConvolution on data, offset and, if there are three, mask."""
    bias = np.zeros(len(weight)) if bias is None else bias
    arrays = [*sampled, gemm.pack_weights(weight), bias]
    inputs = [mx.nd.array(array, dtype="float32", ctx=mx.cpu()) for array in arrays]
    if len(sampled) == 3:
        attributes["mask"] = True
    function = function_for(deformable.OPERATOR, inputs[0])
    return function(*inputs, num_filter=len(weight), **attributes).asnumpy()


def direct(
    data: np.ndarray,
    weight: np.ndarray,
    num_group: int = 1,
    stride: tuple[int, int] = (1, 1),
    pad: tuple[int, int] = (0, 0),
    dilate: tuple[int, int] = (1, 1),
) -> np.ndarray:
    """The convolution by its definition, float64."""
    padded = np.pad(data.astype(np.float64), [(0, 0), (0, 0), *((side, side) for side in pad)])
    height, width = (
        (padded.shape[2 + axis] - dilate[axis] * (weight.shape[2 + axis] - 1) - 1) // stride[axis]
        + 1
        for axis in (0, 1)
    )
    grouped = padded.reshape(len(data), num_group, -1, *padded.shape[2:])
    filters = weight.reshape(num_group, -1, *weight.shape[1:]).astype(np.float64)
    out = np.zeros((len(data), num_group, filters.shape[1], height, width))
    for i, j in np.ndindex(*weight.shape[2:]):
        y, x = i * dilate[0], j * dilate[1]
        cells = grouped[..., y :: stride[0], x :: stride[1]][..., :height, :width]
        out += np.einsum("ngchw,goc->ngohw", cells, filters[..., i, j])
    return out.reshape(len(data), len(weight), height, width)


def largest_terms(data: np.ndarray, weight: np.ndarray) -> float:
    """An upper bound of the sum of absolute terms of an output."""
    sums = np.abs(weight.astype(np.float64)).reshape(len(weight), -1).sum(axis=1)
    return float(np.abs(data.astype(np.float64)).max() * sums.max())


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)
