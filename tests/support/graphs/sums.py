# SPDX-License-Identifier: Apache-2.0
"""Sums, products and softmax."""

from __future__ import annotations

from .growth import Call, Graph, Tensor, maker


@maker("sum", "mean", "max", "min", "prod")
def _reduction(g: Graph, x: Tensor) -> Call | None:
    axis = g.among([None, (), g.axis(x.rank), g.axes(x.rank)])
    return [x], {"axis": axis, "keepdims": g.coin(), "exclude": g.coin(0.3)}


@maker("norm")
def _norm(g: Graph, x: Tensor) -> Call | None:
    if not x.is_float:
        return None
    axis = g.among([None, (), g.axis(x.rank)])
    return [x], {"ord": g.among([1, 2]), "axis": axis, "keepdims": g.coin()}


@maker("log_softmax")
def _log_softmax(g: Graph, x: Tensor) -> Call | None:
    if x.rank == 0 or not x.is_float:  # MXNet may divide integers by 0
        return None
    return [x], {"axis": g.axis(x.rank), "temperature": g.among([None, 1.0, 0.5, 3.0])}


@maker("softmax")
def _softmax(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 2 or not x.is_float or g.coin(0.7):
        return _log_softmax(g, x)
    axis = g.size(0, x.rank - 1)
    shape = list(x.shape)
    size = shape.pop(axis)
    lengths = g.index(*shape, low=0, high=size, dtype=g.among(["int32", "int64"]))
    return [x, lengths], {"axis": axis, "use_length": True}


@maker("SoftmaxActivation")
def _softmax_activation(g: Graph, x: Tensor) -> Call | None:
    if x.dtype != "float32":
        return None  # MXNet takes the bytes for float32 all the same
    return [x], {"mode": g.among(["instance", "channel"]) if x.rank > 2 else "instance"}


@maker("batch_dot")
def _batch_dot(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 3:
        return None
    *batch, rows, columns = x.shape
    first, second = g.coin(), g.coin()
    inner, outer = (rows if first else columns), g.size()
    other = g.input(*batch, *((outer, inner) if second else (inner, outer)), dtype=x.dtype)
    return [x, other], {"transpose_a": first, "transpose_b": second}


@maker("_linalg_gemm2")
def _gemm2(g: Graph, x: Tensor) -> Call | None:
    call = _batch_dot(g, x) if x.is_float else None
    return call and (call[0], {**call[1], "alpha": g.among([1.0, 0.5, -2.0])})


@maker("dot")
def _dot(g: Graph, x: Tensor) -> Call | None:
    if not x.is_float:
        return None
    first, second = g.coin(), g.coin()
    size = x.shape[0 if first else -1]
    others = [g.size() for _ in range(g.size(0, 2))]
    other = g.input(*((*others, size) if second else (size, *others)), dtype=x.dtype)
    return [x, other], {"transpose_a": first, "transpose_b": second}
