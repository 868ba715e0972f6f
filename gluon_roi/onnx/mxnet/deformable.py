"""DeformableConvolution: samples moved by offsets, then a product with the weights."""

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
    groups: int  # of the weights
    parts: int  # deformable groups: channels that share offsets
    fades: bool  # samples fade to 0 within one cell outside of the map
    dtype: Any  # of the computation


def _settings(node: Node, fades: bool) -> _Settings:
    node.expect("layout", None, "None", "NCHW")
    node.accept("num_filter", "no_bias", "im2col_step")  # the inputs tell
    if node.dtype.kind != "f":
        raise node.refusal(f"{node.dtype} data have no translation")
    one = (1, 1)
    return _Settings(
        node.sizes("kernel"),
        node.sizes("stride") or one,
        node.sizes("pad") or (0, 0),
        node.sizes("dilate") or one,
        node.get("num_group", 1),
        node.get("num_deformable_group", 1),
        fades,
        np.float64 if node.dtype == np.float64 else np.float32,
    )


@rule("_contrib_DeformableConvolution")
def _deformable_convolution(g: Graph, node: Node) -> str:
    """A sample counts if it lies on the map; in the last row it reads only that row.

    ::

        data, offset -> _columns --+
        weight, bias --------------+-> _product
    """
    what = _settings(node, fades=False)
    data, offset, weight, *bias = _inputs(g, node, what)
    columns = _columns(g, node, data, offset, None, what)
    return _product(g, node, columns, weight, bias, what)


@rule("_contrib_ModulatedDeformableConvolution")
def _modulated_deformable_convolution(g: Graph, node: Node) -> str:
    """The same times a mask, but a sample fades to 0 within one cell outside of the map.

    ::

        data, offset, mask -> _columns --+
        weight, bias --------------------+-> _product
    """
    what = _settings(node, fades=True)
    data, offset, mask, weight, *bias = _inputs(g, node, what)
    columns = _columns(g, node, data, offset, mask, what)
    return _product(g, node, columns, weight, bias, what)


def _inputs(g: Graph, node: Node, what: _Settings) -> list[str]:
    """float16 in float32; the output is rounded once."""
    if node.dtype == what.dtype:
        return node.inputs
    return [g.cast(tensor, what.dtype) for tensor in node.inputs]


def _columns(
    g: Graph, node: Node, data: str, offset: str, mask: str | None, what: _Settings
) -> str:
    """The factors of the weights, (N, Ho, Wo, kernel cells, parts, channels of a part).

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


def _product(
    g: Graph, node: Node, columns: str, weight: str, bias: list[str], what: _Settings
) -> str:
    """The columns times the weights (filters, channels / groups, kernel): (N, filters, Ho, Wo)."""
    channels, filters = node.shapes[0][1] // what.groups, node.out_shapes[0][1]
    cells, groups = what.kernel[0] * what.kernel[1], what.groups
    images, size = g.shape(columns, 0, 1), g.shape(columns, 1, 3)
    weight = g.reshape(weight, groups, filters // groups, channels, cells)
    weight = g("Transpose", weight, perm=[0, 3, 2, 1])
    weight = g.reshape(weight, groups, cells * channels, filters // groups)
    if groups > 1:
        columns = g.reshape(columns, images, -1, cells, groups, channels)
        columns = g("Transpose", columns, perm=[0, 3, 1, 2, 4])
    columns = g.reshape(columns, images, groups, -1, cells * channels)
    out = g("Transpose", g("MatMul", columns, weight), perm=[0, 1, 3, 2])
    out = g.reshape(out, images, filters, size)
    out = g("Add", out, g.reshape(bias[0], -1, 1, 1)) if bias else out
    return out if node.dtype == what.dtype else g.cast(out, node.dtype)
