# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution: samples that offsets move, which an ordinary convolution reads."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..graph import Graph, Node
from ..registry import rule
from ..roi.boxes import count_to


class _Settings(NamedTuple):
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pad: tuple[int, int]
    dilate: tuple[int, int]
    parts: int  # deformable groups: channels that share offsets
    fades: bool  # samples fade to 0 within one cell outside of the map
    dtype: Any  # of the computation


@rule("_gluon_roi_DeformableSampling")
def _deformable_sampling(g: Graph, node: Node) -> str:
    """Samples as cells of a map, or as columns, one for each kernel cell of each channel.

    ::

        data, offset(, mask) -> _columns -> Reshape, Transpose, Reshape
    """
    node.accept("mask")  # the inputs tell
    if node.dtype.kind != "f":
        raise node.refusal(f"{node.dtype} data have no translation")
    what = _Settings(
        _pair(node, "kernel"),
        _pair(node, "stride"),
        _pair(node, "pad", 0),
        _pair(node, "dilate"),
        node.get("num_deformable_group", 1),
        node.get("convention", "mxnet") == "torchvision",
        np.float64 if node.dtype == np.float64 else np.float32,
    )
    inputs = node.inputs
    if node.dtype != what.dtype:
        inputs = [g.cast(tensor, what.dtype) for tensor in inputs]
    data, offset, mask = (*inputs, None)[:3]
    columns = _columns(g, node, data, offset, mask, what)
    sizes = g.shape(columns, 0, 3)
    apart = g.reshape(columns, sizes, *what.kernel, node.shapes[0][1])
    if node.get("layout", "map") == "columns":
        apart = g("Transpose", apart, perm=[0, 5, 3, 4, 1, 2])
        channels = node.shapes[0][1] * what.kernel[0] * what.kernel[1]
        samples = g.reshape(apart, g.shape(data, 0, 1), channels, g.shape(offset, 2, 4))
    else:
        apart = g("Transpose", apart, perm=[0, 5, 1, 3, 2, 4])
        outputs = g("Mul", g.shape(offset, 2, 4), np.array(what.kernel))
        samples = g.reshape(apart, g.shape(data, 0, 2), outputs)
    return samples if node.dtype == what.dtype else g.cast(samples, node.dtype)


def _pair(node: Node, name: str, default: int = 1) -> tuple[int, int]:
    sizes = node.sizes(name) or (default,)
    return (sizes * 2)[:2]


def _columns(
    g: Graph, node: Node, data: str, offset: str, mask: str | None, what: _Settings
) -> str:
    """The samples, (N, Ho, Wo, kernel cells, parts, channels of a part).

    ::

        offset --> + place of the kernel's cell -> y, x --> which count
                                                    |           |
                                    cells around, their weights (* mask)
                                                    |           |
        data --> rows of channels, one of 0 --> 4 Gather <- index, of the row of 0 if none counts
                                                    |
                                                 * weights, Sum
    """
    cells = what.kernel[0] * what.kernel[1]
    size = g.shape(offset, 2, 4)
    apart = g.reshape(offset, g.shape(offset, 0, 1), what.parts, cells, 2, size)
    apart = g("Transpose", apart, perm=[0, 4, 5, 2, 1, 3])
    moves = [
        g("Squeeze", part, np.array([5]))
        for part in g("Split", apart, np.array([1, 1]), axis=5, outputs=2)
    ]
    y, x = (
        _axis(g, data, move, g.shape(offset, 2 + n, 3 + n), n, what) for n, move in enumerate(moves)
    )
    inside = g("And", y.inside, x.inside)
    rows, row_of_zeros = _rows(g, node, data, what)
    if mask is not None:
        mask = g.reshape(mask, g.shape(mask, 0, 1), what.parts, cells, size)
        mask = g("Transpose", mask, perm=[0, 3, 4, 2, 1])
    taps = []
    for ty in _taps(g, y, inside, what):
        for tx in _taps(g, x, inside, what):
            index = _index(g, data, ty.cell, tx.cell, what)
            index = g("Where", g("And", ty.counts, tx.counts), index, row_of_zeros)
            weight = g("Mul", ty.weight, tx.weight)
            weight = g("Mul", weight, mask) if mask is not None else weight
            weight = g("Unsqueeze", weight, np.array([5]))
            taps.append(g("Mul", g("Gather", rows, index, axis=0), weight))
    return g("Sum", *taps)


class _Axis(NamedTuple):
    """Samples along one axis of the map, (N, Ho, Wo, kernel cells, parts)."""

    position: str
    inside: str  # whether they count
    last: str  # cell of the map, in the type that is computed in


def _axis(g: Graph, data: str, move: str, size: str, n: int, what: _Settings) -> _Axis:
    """Samples along y (0) or x (1)."""
    dtype = what.dtype
    number = g.cast(g.reshape(count_to(g, size), -1, *[1] * (3 - n)), dtype)
    corner = g("Mul", number, np.array(what.stride[n], dtype))
    of_cells = np.indices(what.kernel)[n].reshape(-1, 1) * what.dilate[n] - what.pad[n]
    position = g("Add", g("Add", corner, of_cells.astype(dtype)), move)
    end = g.cast(g.shape(data, 2 + n, 3 + n), dtype)
    least = g(
        "Greater" if what.fades else "GreaterOrEqual",
        position,
        np.array(-1 if what.fades else 0, dtype),
    )
    inside = g("And", least, g("Less", position, end))
    return _Axis(position, inside, g("Sub", end, np.array(1, dtype)))


class _Tap(NamedTuple):
    """A cell beside each sample along one axis."""

    cell: str  # int64
    weight: str
    counts: str


def _taps(g: Graph, axis: _Axis, inside: str, what: _Settings) -> list[_Tap]:
    """The cells before and after each sample."""
    zero, one = np.array(0, what.dtype), np.array(1, what.dtype)
    position = g("Where", inside, axis.position, zero)
    if not what.fades:
        position = g("Min", position, axis.last)
    low = g("Floor", position)
    high, part = g("Add", low, one), g("Sub", position, low)
    cells = ((low, g("Sub", one, part)), (high if what.fades else g("Min", high, axis.last), part))
    taps = []
    for cell, weight in cells:
        counts = inside
        if what.fades:
            on = g("And", g("GreaterOrEqual", cell, zero), g("LessOrEqual", cell, axis.last))
            counts = g("And", inside, on)
        taps.append(_Tap(g.cast(cell, np.int64), weight, counts))
    return taps


def _rows(g: Graph, node: Node, data: str, what: _Settings) -> tuple[str, str]:
    """The map as rows of the channels of a part, and the number of a final row of zeros."""
    channels = node.shapes[0][1] // what.parts
    apart = g.reshape(data, g.shape(data, 0, 1), what.parts, channels, g.shape(data, 2, 4))
    rows = g.reshape(g("Transpose", apart, perm=[0, 3, 4, 1, 2]), -1, channels)
    zeros = np.zeros((1, channels), what.dtype)
    return g("Concat", rows, zeros, axis=0), g.shape(rows, 0, 1)


def _index(g: Graph, data: str, y: str, x: str, what: _Settings) -> str:
    """The row of a cell, for each image and part."""
    image = g.reshape(count_to(g, g.shape(data, 0, 1)), -1, 1, 1, 1, 1)
    row = g("Add", g("Mul", image, g.shape(data, 2, 3)), y)
    row = g("Add", g("Mul", row, g.shape(data, 3, 4)), x)
    return g("Add", g("Mul", row, np.array(what.parts)), np.arange(what.parts))
