# SPDX-License-Identifier: Apache-2.0
"""Pooling, with the same windows at the border as MXNet."""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import numpy as np

from ..graph import Node, OnnxGraph, Tensor, concat_sizes
from ..registry import rule


class _Axis(NamedTuple):
    """Windows along one spatial axis: window i reads [i * stride - pad, ... + kernel)."""

    kernel: int
    stride: int
    pad: int
    size: Tensor  # of the map, a vector of one element
    static_size: int | None  # the size as a number; None if it is dynamic


@rule("Pooling")
def _pooling(g: OnnxGraph, node: Node) -> Tensor:
    """MaxPool or AveragePool over the same windows as in MXNet.

    ::

        data -> padded for all windows --------+-> MaxPool                             (max)
                                               +-> AveragePool * area: sums -----------(sum)
        Range -> cells of each window ------------------------------> sums / cells     (avg)
    """
    node.expect_floats()
    node.expect("layout", None, "None", {3: "NCW", 4: "NCHW", 5: "NCDHW"}[node.rank])
    node.expect("pool_type", "max", "avg", "sum")
    node.expect("pooling_convention", "valid", "full", "same")
    node.ignore("p_value")  # of pool_type lp
    pool_type, convention = node.get("pool_type", "max"), node.get("pooling_convention", "valid")
    include = node.get("count_include_pad", True) is not False
    if node.get("global_pool", False):
        node.ignore("kernel", "stride", "pad")
        if pool_type == "sum":
            raise node.refusal("pool_type=sum with global_pool=True has no translation")
        return g("GlobalMaxPool" if pool_type == "max" else "GlobalAveragePool", node.inputs[0])
    kernel = node.sizes("kernel")
    ones, zeros = (1,) * len(kernel), (0,) * len(kernel)
    strides, padding = node.sizes("stride") or ones, (node.sizes("pad") or zeros)[: len(kernel)]
    if convention == "valid" and pool_type != "sum":
        attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
        if pool_type == "avg":
            attributes["count_include_pad"] = int(include)
        pool = "MaxPool" if pool_type == "max" else "AveragePool"
        return g(pool, node.inputs[0], pads=padding + padding, **attributes)
    axes = [
        _Axis(*window, node.inputs[0].size(2 + n), node.static_shapes[0][2 + n])
        for n, window in enumerate(zip(kernel, strides, padding))
    ]
    if pool_type == "max":
        return _max_pool(g, node, axes, convention)
    return _sums(g, node, axes, convention, include)


def _windows(axis: _Axis, convention: str) -> Any:
    """The number of windows: a number, or a vector of one element."""
    k, s, p = axis[:3]
    beyond = {"valid": 2 * p - k, "full": 2 * p - k + s - 1, "same": s - 1}[convention]
    first = 0 if convention == "same" else 1
    if axis.static_size is not None:
        return (axis.static_size + beyond) // s + first
    count = (axis.size + [beyond]) / [s]
    return count + [1] if first else count


def _end_padding(axis: _Axis, count: Any) -> Any:
    """Cells after the map that the last window covers: a number, or a vector of one element."""
    reach = axis.kernel - axis.stride - axis.pad
    if axis.static_size is not None:
        return max(count * axis.stride + reach - axis.static_size, 0)
    return (count * [axis.stride] + [reach] - axis.size).max([0])


def _pool(
    g: OnnxGraph, node: Node, pool: str, axes: list[_Axis], counts: list, fill: float, **more: int
) -> Tensor:
    """A pooling operator over this many windows, whose padding reads as `fill`.

    Runtimes only support padding by less than a kernel. If sizes are static, a last window beyond
    the map, of which there is at most one per axis, is appended to the output. Padding the map
    instead fails: onnxruntime fuses constant padding with the pooling, and raises an error if other
    nodes read the map.
    """
    attributes: dict[str, Any] = {
        "kernel_shape": [axis.kernel for axis in axes],
        "strides": [axis.stride for axis in axes],
        **more,
    }
    begin, value = [axis.pad for axis in axes], np.array(fill, node.dtype)
    if any(axis.static_size is None for axis in axes):
        ends = [_end_padding(axis, count) for axis, count in zip(axes, counts)]
        padded = g("Pad", node.inputs[0], concat_sizes(0, 0, *begin, 0, 0, *ends), value)
        return g(pool, padded, **attributes)
    missing = [
        int((count - 1) * axis.stride - axis.pad >= axis.static_size)
        for axis, count in zip(axes, counts)
    ]
    ends = [_end_padding(axis, count - less) for axis, count, less in zip(axes, counts, missing)]
    out = g(pool, node.inputs[0], pads=begin + ends, **attributes)
    if not any(missing):
        return out
    return g("Pad", out, np.array([0] * (4 + len(axes)) + missing), value)


def _max_pool(g: OnnxGraph, node: Node, axes: list[_Axis], convention: str) -> Tensor:
    """MaxPool; the result of a window without cells is the lowest number of the dtype.

    ONNX omits a last window that begins after the map; MXNet does not. There is no such window if
    the kernel covers padding and stride.
    """
    if convention == "full" and all(axis.kernel >= axis.pad + axis.stride for axis in axes):
        return g(
            "MaxPool",
            node.inputs[0],
            kernel_shape=[axis.kernel for axis in axes],
            strides=[axis.stride for axis in axes],
            pads=[axis.pad for axis in axes] * 2,
            ceil_mode=1,
        )
    counts = [_windows(axis, convention) for axis in axes]
    return _pool(g, node, "MaxPool", axes, counts, float(np.finfo(node.dtype).min))


def _sums(g: OnnxGraph, node: Node, axes: list[_Axis], convention: str, include: bool) -> Tensor:
    """Sums of all windows, divided by their number of cells unless pool_type is sum.

    ::

        data -> AveragePool, padding included, * cells of the kernel -> sums -> Div -> out
                                    Range -> begin, end of windows -> cells ----^

    MXNet counts the padding before the map and the same amount after it, or no padding if
    count_include_pad=False. Cells of the last window beyond that are not counted.
    """
    counts = [_windows(axis, convention) for axis in axes]
    area = int(np.prod([axis.kernel for axis in axes]))
    sums = _pool(g, node, "AveragePool", axes, counts, 0, count_include_pad=1) * area
    if node.get("pool_type") == "sum":
        return sums
    along = [
        _cells(axis, count, include).reshape(-1, *[1] * (len(axes) - 1 - n))
        for n, (axis, count) in enumerate(zip(axes, counts))
    ]
    return sums / functools.reduce(operator.mul, along).cast(node.dtype)


def _cells(axis: _Axis, count: Any, include: bool) -> Tensor:
    """The number of cells that each window along an axis counts, at least 1."""
    number = np.array(count) if isinstance(count, int) else count.scalar()
    window = axis.size.graph("Range", np.array(0), number, np.array(1))
    begin = window * axis.stride - axis.pad
    end = begin + axis.kernel
    limit = axis.size + [axis.pad] if include else axis.size
    begin = begin if include else begin.max(0)
    return (end.min(limit) - begin).max(1)


@rule("_contrib_AdaptiveAvgPooling2D")
def _adaptive_average(g: OnnxGraph, node: Node) -> Tensor:
    """GlobalAveragePool, or two matrix products with the weight of each cell in each bin of an
    axis."""
    bins = (node.sizes("output_size") or (1,)) * 2
    if set(bins) == {1}:
        return g("GlobalAveragePool", node.inputs[0])
    weights = [_bin_weights(node, axis, bins[axis - 2]) for axis in (2, 3)]
    return weights[0] @ node.inputs[0] @ weights[1].transpose(1, 0)


def _bin_weights(node: Node, axis: int, bins: int) -> Tensor:
    """Weights (bins, cells): a bin is the mean of all cells that it overlaps."""
    size = node.inputs[0].size(axis)
    # In integers: cell i is [i * bins, (i + 1) * bins), bin b is [b * size, (b + 1) * size).
    begin = size.numbers() * bins
    number = np.arange(bins)[:, None]
    overlaps = ((begin + bins > number * size) & (begin < (number + 1) * size)).cast(node.dtype)
    return overlaps / size.graph("ReduceSum", overlaps, np.array([1]))
