# SPDX-License-Identifier: Apache-2.0
"""Operators that choose by index or order."""

from __future__ import annotations

import numpy as np

from .growth import Call, Graph, Tensor, maker


@maker("take")
def _take(g: Graph, x: Tensor) -> Call | None:
    axis = g.axis(x.rank)
    index = g.index(*(g.size() for _ in range(g.size(1, 2))), low=-9, high=9, dtype=g.index_type())
    return [x, index], {"axis": axis, "mode": g.among(["clip", "wrap"])}


@maker("pick")
def _pick(g: Graph, x: Tensor) -> Call | None:
    axis, keep = g.axis(x.rank), g.coin()
    shape = list(x.shape)
    shape[axis] = 1
    if not keep and x.rank > 1:
        del shape[axis]
    index = g.index(*shape, low=-9, high=9, dtype=g.index_type())
    return [x, index], {"axis": axis, "keepdims": keep, "mode": g.among(["clip", "wrap"])}


@maker("Embedding")
def _embedding(g: Graph, x: Tensor) -> Call | None:
    rows, width = g.size(), g.size()
    shape = [g.size() for _ in range(g.size(1, 3))]
    index = g.index(*shape, low=-2, high=rows + 1, dtype=g.index_type())
    return [index, g.input(rows, width)], {"input_dim": rows, "output_dim": width}


@maker("one_hot")
def _one_hot(g: Graph, x: Tensor) -> Call | None:
    return [x], {
        "depth": g.size(),
        "on_value": g.number(),
        "off_value": g.number(),
        "dtype": g.among(["float16", "float32", "int32"]),
    }


@maker("gather_nd")
def _gather_nd(g: Graph, x: Tensor) -> Call | None:
    depth = g.size(1, x.rank)

    def values(shape: tuple) -> np.ndarray:
        return np.stack([g.random.randint(size, size=shape[1:]) for size in x.shape[:depth]])

    return [x, g.made(values, depth, *(g.size() for _ in range(g.size(1, 2))))], {}


@maker("topk")
def _topk(g: Graph, x: Tensor) -> Call | None:
    axis = None if g.coin(0.2) else g.axis(x.rank)
    return [x], {
        "axis": axis,
        "k": g.size(0, x.value.size if axis is None else x.shape[axis]),
        "ret_typ": g.among(["indices", "value", "both"]),
        "is_ascend": g.coin(),
        "dtype": g.among(["float32", "int32", "int64"]),
    }


@maker("argsort")
def _argsort(g: Graph, x: Tensor) -> Call | None:
    axis = None if g.coin(0.3) else g.axis(x.rank)
    return [x], {"axis": axis, "is_ascend": g.coin(), "dtype": g.among(["float32", "int32"])}


@maker("sort")
def _sort(g: Graph, x: Tensor) -> Call | None:
    return [x], {"axis": None if g.coin(0.3) else g.axis(x.rank), "is_ascend": g.coin()}


@maker("argmax", "argmin")
def _argmax(g: Graph, x: Tensor) -> Call | None:
    return [x], {"axis": None if g.coin(0.3) else g.axis(x.rank), "keepdims": g.coin()}


@maker("SequenceMask")
def _sequence_mask(g: Graph, x: Tensor) -> Call | None:
    axis = g.size(0, 1)
    if x.rank < 2 or g.coin(0.2):
        return ([x], {"axis": axis}) if x.rank > 1 else None
    lengths = g.index(x.shape[1 - axis], low=0, high=x.shape[axis] + 1, dtype=g.index_type())
    return [x, lengths], {"axis": axis, "use_sequence_length": True, "value": float(g.size(-2, 2))}
