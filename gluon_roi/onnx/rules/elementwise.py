# SPDX-License-Identifier: Apache-2.0
"""MXNet's elementwise operators, and constants."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from ..graph import Node, OnnxGraph, Tensor
from ..registry import rule, rules
from ..roi.arithmetic import round_away

# ---- One operator of ONNX ------------------------------------------------------------------------


@rules({
    "abs": "Abs", "negative": "Neg", "sign": "Sign",
    "elemwise_add": "Add", "elemwise_sub": "Sub", "elemwise_mul": "Mul", "elemwise_div": "Div",
    "broadcast_add": "Add", "broadcast_sub": "Sub", "broadcast_mul": "Mul", "broadcast_div": "Div",
    "_maximum": "Max", "broadcast_maximum": "Max", "_minimum": "Min", "broadcast_minimum": "Min",
    "_power": "Pow", "broadcast_power": "Pow",
    "arccos": "Acos", "arcsin": "Asin", "arctan": "Atan", "cos": "Cos", "erf": "Erf", "exp": "Exp",
    "log": "Log", "reciprocal": "Reciprocal", "sigmoid": "Sigmoid", "sin": "Sin",
    "softsign": "Softsign", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
})  # fmt: skip
def _simple(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    return g(variant, *node.inputs)


@rule("relu")
def _relu(g: OnnxGraph, node: Node) -> Tensor:
    # onnxruntime has no Relu of int64.
    return g("Relu", node.inputs[0]) if node.dtype.kind == "f" else node.inputs[0].max(0)


@rules({"ceil": "Ceil", "floor": "Floor"})
def _floor_or_ceil(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    return g(variant, *node.inputs) if node.dtype.kind == "f" else node.inputs[0]


@rule("add_n")
def _sum_of_all(g: OnnxGraph, node: Node) -> Tensor:
    if node.dtype.kind == "f" and len(node.inputs) > 1:  # OpenVINO replaces a sum of one tensor
        return g("Sum", *node.inputs)
    return functools.reduce(operator.add, node.inputs)


# ---- With a scalar -------------------------------------------------------------------------------


def _scalar_of(node: Node) -> np.ndarray:
    """The scalar in the dtype of the data. Like MXNet, it is read as float64."""
    node.ignore("is_int")
    scalar = float(node.get("scalar"))
    if node.dtype.kind == "f":
        return np.array(scalar, node.dtype)
    if scalar % 1:
        raise node.refusal(f"a fractional scalar on {node.dtype} data has no translation")
    lowest, highest = _limits(node.dtype)
    if not lowest <= scalar <= highest:
        raise node.refusal(
            f"scalar={scalar:g} has no translation for {node.dtype} data, whose numbers are "
            f"from {lowest} to {highest}"
        )
    return np.array(int(scalar), node.dtype)


def _cast_number(number: float, dtype: np.dtype) -> np.ndarray:
    """A number as MXNet casts it: of integers, the lower bits of the truncated number."""
    if dtype.kind in "iu":
        return np.array(math.trunc(number)).astype(dtype)
    return np.array(number).astype(dtype)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    """The lowest and the highest number of a dtype that is not floating point."""
    if dtype.kind == "b":
        return 0, 1
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


@rules({
    "_plus_scalar": "Add", "_minus_scalar": "Sub", "_mul_scalar": "Mul", "_div_scalar": "Div",
    "_power_scalar": "Pow", "_maximum_scalar": "Max", "_minimum_scalar": "Min",
})  # fmt: skip
def _tensor_and_scalar(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    return g(variant, *node.inputs, _scalar_of(node))


@rules({"_rminus_scalar": "Sub", "_rdiv_scalar": "Div", "_rpower_scalar": "Pow"})
def _scalar_and_tensor(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    return g(variant, _scalar_of(node), *node.inputs)


@rule("_mod", "broadcast_mod", "_mod_scalar", "_rmod_scalar")
def _remainder(g: OnnxGraph, node: Node) -> Tensor:
    """As in MXNet, the remainder has the sign of the divisor, and is 0 for a divisor of 0."""
    a, b = node.inputs if len(node.inputs) == 2 else (*node.inputs, g.constant(_scalar_of(node)))
    if node.op == "_rmod_scalar":
        a, b = b, a
    by_zero = b.equal(0)
    b = by_zero.where(1, b)
    if node.dtype.kind != "f":
        return by_zero.where(0, a % b)
    rest = g("Mod", a, b, fmod=1)  # has the sign of the dividend
    rest = (rest.sign() * b < 0).where(rest + b, rest)
    return by_zero.where(0, rest)


# ---- Comparisons and logic -----------------------------------------------------------------------


_COMPARISONS = {
    "equal": "Equal", "not_equal": "NotEqual", "greater": "Greater", "lesser": "Less",
    "greater_equal": "GreaterOrEqual", "lesser_equal": "LessOrEqual",
}  # fmt: skip


def _compare(g: OnnxGraph, node: Node, variant: str, left: Any, right: Any) -> Tensor:
    """As in MXNet, comparisons return 1 or 0 in the dtype of their inputs.

    OpenVINO's Greater and GreaterOrEqual are true for NaN, its Less and LessOrEqual are not.
    """
    if variant.startswith("Greater"):
        variant, left, right = variant.replace("Greater", "Less"), right, left
    found = ~left.equal(right) if variant == "NotEqual" else g(variant, left, right)
    return found.cast(node.out_dtypes[0])


@rules({f"{place}_{name}": op for place in ("", "broadcast") for name, op in _COMPARISONS.items()})
def _comparison(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    return _compare(g, node, variant, *node.inputs)


@rules({f"_{name}_scalar": op for name, op in _COMPARISONS.items()})
def _scalar_comparison(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    return _compare(g, node, variant, node.inputs[0], _scalar_of(node))


@rules({
    "broadcast_logical_and": "And", "broadcast_logical_or": "Or", "broadcast_logical_xor": "Xor",
    "logical_not": "Not",
})  # fmt: skip
def _logical(g: OnnxGraph, node: Node, variant: str) -> Tensor:
    return g(variant, *map(_truth, node.inputs)).cast(node.out_dtypes[0])


def _truth(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == np.bool_ else ~tensor.equal(0)


@rule("where")
def _where(g: OnnxGraph, node: Node) -> Tensor:
    condition, *values = node.inputs
    condition = _truth(condition)
    if node.rank == 1 < len(node.shapes[1]):
        condition = condition.unsqueeze(*range(1, len(node.shapes[1])))
    return condition.where(*values)


# ---- Identity, and other functions ---------------------------------------------------------------


@rule("_copy", "BlockGrad", "make_loss", "MakeLoss", "_identity_with_attr_like_rhs")
def _identity(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("grad_scale", "valid_thresh", "normalization")  # of MakeLoss
    return node.inputs[0]


@rule("Dropout")
def _dropout(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("axes")
    drops_nothing = float(node.get("p", 0.5)) == 0
    node.expect("mode", "training", *["always"] * drops_nothing)
    return node.inputs[0]


@rule("round")
def _round(g: OnnxGraph, node: Node) -> Tensor:
    return round_away(node.inputs[0]) if node.dtype.kind == "f" else node.inputs[0]


@rule("rint")
def _rint(g: OnnxGraph, node: Node) -> Tensor:
    """Round to the nearest integer, and halves down."""
    if node.dtype.kind != "f":
        return node.inputs[0]
    low, high = (g(op, node.inputs[0]) for op in ("Floor", "Ceil"))
    is_low = node.inputs[0] - low <= high - node.inputs[0]
    return is_low.where(low, high)


@rule("fix", "trunc")
def _truncate(g: OnnxGraph, node: Node) -> Tensor:
    if node.dtype.kind != "f":
        return node.inputs[0]
    return node.inputs[0].abs().floor() * node.inputs[0].sign()


@rule("rsqrt")
def _reciprocal_root(g: OnnxGraph, node: Node) -> Tensor:
    return g("Reciprocal", node.inputs[0].sqrt())


@rule("hard_sigmoid")
def _hard_sigmoid(g: OnnxGraph, node: Node) -> Tensor:
    alpha, beta = float(node.get("alpha", 0.2)), float(node.get("beta", 0.5))
    return g("HardSigmoid", node.inputs[0], alpha=alpha, beta=beta)


@rule("smooth_l1")
def _smooth_l1(g: OnnxGraph, node: Node) -> Tensor:
    node.ignore("is_int")
    scalar = float(node.get("scalar", 1.0))
    if node.dtype.kind == "f":
        if not scalar:
            raise node.refusal("scalar=0 has no translation, expected another number")
        return _huber(node.inputs[0], scalar)
    # MXNet truncates the scalar of integers, computes in float32 and truncates the result.
    if math.trunc(scalar) == 0:
        return g("Expand", np.array(0, node.dtype), node.inputs[0].shape())
    return _huber(node.inputs[0].cast(np.float32), math.trunc(scalar)).cast(node.dtype)


def _huber(value: Tensor, scalar: float) -> Tensor:
    squared = scalar**2
    size = value.abs()
    near = size * size * (squared / 2)
    far = size - 0.5 / squared
    return (size < 1 / squared).where(near, far)


@rule("square")
def _square(g: OnnxGraph, node: Node) -> Tensor:
    return node.inputs[0] * node.inputs[0]


@rule("log2")
def _log2(g: OnnxGraph, node: Node) -> Tensor:
    node.expect_floats()
    # In float64 the logarithm of a power of two is exact: the level of a box is its floor.
    value = node.inputs[0].cast(np.float64).log()
    return (value / math.log(2)).cast(node.dtype)


@rule("clip")
def _clip(g: OnnxGraph, node: Node) -> Tensor:
    low, high = float(node.get("a_min")), float(node.get("a_max"))
    if low > high:
        raise node.refusal(f"a_min={low} above a_max={high} has no translation")
    if node.dtype.kind != "f":  # MXNet truncates fractions
        lowest, highest = _limits(node.dtype)
        if low > highest or high < lowest:
            raise node.refusal(
                f"a_min={low:g}, a_max={high:g} have no translation for {node.dtype} data, whose "
                f"numbers are from {lowest} to {highest}"
            )
        low, high = (math.trunc(min(max(v, lowest), highest)) for v in (low, high))
    return node.inputs[0].clip(low, high)


@rule("Cast", "amp_cast", "amp_multicast")
def _cast(g: OnnxGraph, node: Node) -> list[Tensor]:
    node.ignore("dtype", "num_outputs", "cast_narrow")  # MXNet has inferred the types
    return [
        tensor if before == after else tensor.cast(after)
        for tensor, before, after in zip(node.inputs, node.dtypes, node.out_dtypes)
    ]


# ---- Constants -----------------------------------------------------------------------------------


@rules({"_full": None, "_zeros": 0, "_ones": 1})
def _fill(g: OnnxGraph, node: Node, variant: float | None) -> Tensor:
    node.ignore("ctx", "dtype", "shape")
    number = _cast_number(
        float(node.get("value")) if variant is None else variant, node.out_dtypes[0]
    )
    sizes = node.out_sizes
    if None in sizes:
        raise node.refusal(
            f"shape={node.get('shape')}: the size of axis {sizes.index(None)} is dynamic, and no "
            "other tensor has it; export with fixed sizes"
        )
    if all(isinstance(size, int) for size in sizes):
        return g.constant(np.full(sizes, number))
    return g.constant(number).expand(*sizes)


@rules({"zeros_like": 0, "ones_like": 1})
def _fill_like(g: OnnxGraph, node: Node, variant: float) -> Tensor:
    node.ignore("dtype")
    return g("Expand", np.array(variant, node.out_dtypes[0]), node.inputs[0].shape())


@rule("_arange")
def _arange(g: OnnxGraph, node: Node) -> Tensor:
    node.expect("infer_range", False)
    node.ignore("ctx", "dtype")
    start, stop, step = node.get("start"), node.get("stop"), node.get("step", 1.0)
    start, stop = (0, start) if stop is None else (start, stop)
    dtype, count = node.out_dtypes[0], math.ceil((stop - start) / step)
    if dtype not in (np.float32, np.float64):  # MXNet truncates both, also in float16
        start, step = math.trunc(start), math.trunc(step)
    values = _cast_number(start, dtype) + _cast_number(step, dtype) * np.arange(count).astype(dtype)
    return g.constant(np.repeat(values.astype(dtype), node.get("repeat", 1)))


@rule("_contrib_arange_like")
def _arange_like(g: OnnxGraph, node: Node) -> Tensor:
    node.expect("repeat", 1)
    node.ignore("ctx")
    dtype = node.out_dtypes[0]
    shape = node.inputs[0].shape()
    if node.get("axis") is None:
        size = g("ReduceProd", shape, keepdims=0)
    else:
        axis = node.axis()
        size = node.inputs[0].size(axis).scalar()
    values = g("Range", np.array(0), size, np.array(1)).cast(dtype)
    start, step = node.get("start", 0.0), node.get("step", 1.0)
    if dtype not in (np.float32, np.float64) and (start % 1 or step % 1):
        # MXNet truncates the fractions.
        raise node.refusal(f"start={start}, step={step} in {dtype} has no translation")
    if (start, step) != (0, 1):
        values = values * _cast_number(step, dtype) + _cast_number(start, dtype)
    return values if node.get("axis") is not None else values.reshape_exactly(shape)


@rule("shape_array")
def _shape_array(g: OnnxGraph, node: Node) -> Tensor:
    return node.inputs[0].shape()


@rule("size_array")
def _size_array(g: OnnxGraph, node: Node) -> Tensor:
    return g("ReduceProd", node.inputs[0].shape(), keepdims=1)
