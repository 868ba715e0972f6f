# SPDX-License-Identifier: Apache-2.0
"""Operators on each element, and constants."""

from __future__ import annotations

from .growth import Call, Graph, Tensor, maker

TYPES = ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"]


@maker(
    "abs", "ceil", "floor", "negative", "relu", "square", "_copy", "BlockGrad", "make_loss",
    "zeros_like", "ones_like", "logical_not", "shape_array", "size_array", "Flatten", "sign",
    "round", "rint", "fix", "trunc",
)  # fmt: skip
def _one(g: Graph, x: Tensor) -> Call | None:
    return [x], {}


@maker(
    "arccos", "arcsin", "arctan", "cos", "erf", "exp", "log", "log2", "reciprocal", "sigmoid",
    "sin", "softsign", "sqrt", "tan", "tanh", "rsqrt", "hard_sigmoid",
)  # fmt: skip
def _one_of_floats(g: Graph, x: Tensor) -> Call | None:
    return ([x], {}) if x.is_float else None


@maker(
    "elemwise_add", "elemwise_sub", "elemwise_mul", "_maximum", "_minimum",
    "_equal", "_not_equal", "_greater", "_lesser", "_greater_equal", "_lesser_equal",
    "_identity_with_attr_like_rhs", "_mod",
)  # fmt: skip
def _two(g: Graph, x: Tensor) -> Call | None:
    return [x, g.partner(x)], {}


@maker("elemwise_div")
def _quotient(g: Graph, x: Tensor) -> Call | None:
    return [x, g.partner(x)], {}


@maker("_power", "broadcast_power")
def _power(g: Graph, x: Tensor) -> Call | None:
    return ([x, g.partner(x)], {}) if x.is_float and (x.value.asnumpy() > 0).all() else None


@maker(
    "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_maximum", "broadcast_minimum",
    "broadcast_equal", "broadcast_not_equal", "broadcast_greater",
    "broadcast_lesser", "broadcast_greater_equal", "broadcast_lesser_equal",
    "broadcast_logical_and", "broadcast_logical_or", "broadcast_logical_xor", "broadcast_mod",
)  # fmt: skip
def _broadcast(g: Graph, x: Tensor) -> Call | None:
    other = [1 if g.coin(0.4) else size for size in x.shape]
    both = [x, g.input(*other, dtype=x.dtype)]
    return (both if g.coin() else both[::-1]), {}


@maker("broadcast_div")
def _broadcast_quotient(g: Graph, x: Tensor) -> Call | None:
    return _broadcast(g, x)


@maker("add_n")
def _sum(g: Graph, x: Tensor) -> Call | None:
    return [x, *(g.partner(x) for _ in range(g.size(0, 2)))], {}


@maker(
    "_plus_scalar", "_minus_scalar", "_rminus_scalar", "_mul_scalar",
    "_maximum_scalar", "_minimum_scalar", "_equal_scalar", "_not_equal_scalar", "_greater_scalar",
    "_lesser_scalar", "_greater_equal_scalar", "_lesser_equal_scalar", "_mod_scalar",
    "_rmod_scalar",
)  # fmt: skip
def _scalar(g: Graph, x: Tensor) -> Call | None:
    return [x], {"scalar": g.number() if x.is_float else float(g.size(-3, 3))}


@maker("_div_scalar")
def _divided(g: Graph, x: Tensor) -> Call | None:
    return _scalar(g, x) if x.is_float else ([x], {"scalar": g.among([-3.0, -2.0, 2.0, 5.0])})


@maker("_rdiv_scalar")
def _over(g: Graph, x: Tensor) -> Call | None:
    return _scalar(g, x)


@maker("_power_scalar", "_rpower_scalar")
def _power_scalar(g: Graph, x: Tensor) -> Call | None:
    return ([x], {"scalar": g.among([0.5, 2.0, 3.0])}) if x.is_float else None


@maker("smooth_l1")
def _smooth_l1(g: Graph, x: Tensor) -> Call | None:
    return [x], {"scalar": g.among([0.5, 1.0, 3.0])}


@maker("clip")
def _clip(g: Graph, x: Tensor) -> Call | None:
    low = g.number() if x.is_float else float(g.size(-3, 3))
    return [x], {"a_min": low, "a_max": low + g.size(0, 3)}


@maker("Cast")
def _cast(g: Graph, x: Tensor) -> Call | None:
    return [x], {"dtype": g.among(TYPES)}


@maker("amp_cast")
def _amp_cast(g: Graph, x: Tensor) -> Call | None:
    return [x], {"dtype": g.among(["float16", "float32"])}


@maker("where")
def _where(g: Graph, x: Tensor) -> Call | None:
    a, b = g.input(*x.shape), g.input(*x.shape)
    if g.coin(0.3):
        return [g.index(x.shape[0], low=0, high=1), a, b], {}
    return [x, a, b], {}


@maker("Dropout")
def _dropout(g: Graph, x: Tensor) -> Call | None:
    return [x], {"p": g.among([0.0, 0.5]), "axes": (0,) if g.coin(0.3) else ()}


# ---- Constants -----------------------------------------------------------------------------------


def _beside(g: Graph, x: Tensor) -> Call:
    return [], {"shape": tuple(g.size() for _ in range(g.size(1, 3))), "dtype": g.dtype}


@maker("_zeros", "_ones")
def _filled(g: Graph, x: Tensor) -> Call | None:
    return _beside(g, x)


@maker("_full")
def _full(g: Graph, x: Tensor) -> Call | None:
    return [], {**_beside(g, x)[1], "value": g.number()}


@maker("_arange")
def _arange(g: Graph, x: Tensor) -> Call | None:
    step = g.among([-2.0, -0.5, 0.5, 1.0, 3.0])
    start = g.number()
    stop = None if step == 1 and start >= 1 and g.coin() else start + step * g.size() - g.coin() / 8
    dtype = g.among(["float32", "float16", "float64", "int32", "int64"])
    return [], {"start": start, "stop": stop, "step": step, "repeat": g.size(1, 2), "dtype": dtype}


@maker("_contrib_arange_like")
def _arange_like(g: Graph, x: Tensor) -> Call | None:
    axis = None if g.coin(0.3) else g.axis(x.rank)
    start, step = g.number(), g.number()
    if x.dtype not in ("float32", "float64"):  # in which MXNet cuts the fractions off
        start, step = float(int(start)), float(int(step))
    return [x], {"axis": axis, "start": start, "step": step}
