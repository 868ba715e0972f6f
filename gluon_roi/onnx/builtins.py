"""MXNet's operators of detectors in ONNX: a function for each, (graph, node) -> outputs.

A function looks at every attribute that it has a rule for; a node with any other is refused.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import numpy as np

from .graph import Graph, Node

Translation = Callable[[Graph, Node], Any]
TRANSLATIONS: dict[str, Translation] = {}


def _translates(*names: str) -> Callable[[Translation], Translation]:
    def register(function: Translation) -> Translation:
        TRANSLATIONS.update((name, function) for name in names)
        return function

    return register


# ---- Element by element --------------------------------------------------------------------------


def _simple(op: str) -> Translation:
    return lambda g, node: g(op, *node.inputs)


def _float_only(op: str) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        if node.dtype.kind != "f":
            raise node.refusal(f"{node.dtype} data have no translation")
        return g(op, *node.inputs)

    return translate


_FLOAT_ONLY = {
    "arccos": "Acos", "arcsin": "Asin", "arctan": "Atan", "cos": "Cos", "erf": "Erf", "exp": "Exp",
    "log": "Log", "reciprocal": "Reciprocal", "sigmoid": "Sigmoid", "sin": "Sin",
    "softsign": "Softsign", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
}  # fmt: skip
TRANSLATIONS.update((name, _float_only(op)) for name, op in _FLOAT_ONLY.items())
TRANSLATIONS.update(abs=_simple("Abs"), negative=_simple("Neg"), relu=_simple("Relu"))


def _whole(op: str) -> Translation:
    return lambda g, node: g(op, *node.inputs) if node.dtype.kind == "f" else node.inputs[0]


TRANSLATIONS.update(ceil=_whole("Ceil"), floor=_whole("Floor"))

_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div"}
TRANSLATIONS.update(
    (f"{kind}_{name}", _simple(op))
    for kind in ("elemwise", "broadcast")
    for name, op in _BINARY.items()
)
TRANSLATIONS.update(
    {
        "_maximum": _simple("Max"),
        "broadcast_maximum": _simple("Max"),
        "_minimum": _simple("Min"),
        "broadcast_minimum": _simple("Min"),
        "_power": _simple("Pow"),
        "broadcast_power": _simple("Pow"),
    }
)


@_translates("add_n")
def _sum_of_all(g: Graph, node: Node) -> str:
    if node.dtype.kind == "f":
        return g("Sum", *node.inputs)
    return functools.reduce(lambda total, one: g("Add", total, one), node.inputs)


def _scalar(op: str, reverse: bool = False) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        node.get("is_int")
        if node.dtype.kind != "f" and float(node.get("scalar")) % 1:
            raise node.refusal(f"a fractional scalar on {node.dtype} data has no translation")
        scalar = np.array(node.get("scalar"), node.dtype)
        return g(op, scalar, *node.inputs) if reverse else g(op, *node.inputs, scalar)

    return translate


TRANSLATIONS.update(
    {
        "_plus_scalar": _scalar("Add"),
        "_minus_scalar": _scalar("Sub"),
        "_rminus_scalar": _scalar("Sub", reverse=True),
        "_mul_scalar": _scalar("Mul"),
        "_div_scalar": _scalar("Div"),
        "_rdiv_scalar": _scalar("Div", reverse=True),
        "_power_scalar": _scalar("Pow"),
        "_rpower_scalar": _scalar("Pow", reverse=True),
        "_maximum_scalar": _scalar("Max"),
        "_minimum_scalar": _scalar("Min"),
    }
)


def _compared(g: Graph, node: Node, op: str, left: str, right: Any) -> str:
    """MXNet's comparisons give 1 and 0 in the type of their inputs."""
    if op == "NotEqual":
        return g.cast(g("Not", g("Equal", left, right)), node.out_dtypes[0])
    return g.cast(g(op, left, right), node.out_dtypes[0])


def _comparison(op: str) -> Translation:
    return lambda g, node: _compared(g, node, op, *node.inputs)


def _scalar_comparison(op: str) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        node.get("is_int")
        scalar = np.array(node.get("scalar"), np.float64)
        if scalar.astype(node.dtype) != scalar and node.dtype.kind != "f":
            raise node.refusal(f"a fractional scalar on {node.dtype} data has no translation")
        return _compared(g, node, op, node.inputs[0], scalar.astype(node.dtype))

    return translate


def _logical(op: str) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        return g.cast(
            g(op, *(_truth(g, tensor, dtype) for tensor, dtype in zip(node.inputs, node.dtypes))),
            node.out_dtypes[0],
        )

    return translate


def _truth(g: Graph, tensor: str, dtype: Any) -> str:
    if dtype == np.bool_:
        return tensor
    return g("Not", g("Equal", tensor, np.array(0, dtype)))


for _name, _op in {
    "equal": "Equal", "not_equal": "NotEqual", "greater": "Greater", "lesser": "Less",
    "greater_equal": "GreaterOrEqual", "lesser_equal": "LessOrEqual",
}.items():  # fmt: skip
    for _form in (f"_{_name}", f"broadcast_{_name}"):
        TRANSLATIONS[_form] = _comparison(_op)
    TRANSLATIONS[f"_{_name}_scalar"] = _scalar_comparison(_op)
for _name, _op in {"and": "And", "or": "Or", "xor": "Xor"}.items():
    TRANSLATIONS[f"broadcast_logical_{_name}"] = _logical(_op)
TRANSLATIONS["logical_not"] = _logical("Not")


@_translates("_copy", "identity", "BlockGrad", "make_loss", "_identity_with_attr_like_rhs")
def _nothing(g: Graph, node: Node) -> str:
    return node.inputs[0]


@_translates("_zeros_without_dtype")
def _nowhere(g: Graph, node: Node) -> str:
    """What a guard refers to; nothing reads it."""
    for name in ("shape", "ctx", "dtype"):
        node.get(name)
    return g.constant(np.float32(0))


@_translates("Dropout")
def _dropout(g: Graph, node: Node) -> str:
    node.get("axes")
    if float(node.get("p", 0.5)) > 0:
        node.expect("mode", "training")
    node.get("mode")
    return node.inputs[0]


@_translates("square")
def _square(g: Graph, node: Node) -> str:
    return g("Mul", node.inputs[0], node.inputs[0])


@_translates("log2")
def _log2(g: Graph, node: Node) -> str:
    if node.dtype.kind != "f":
        raise node.refusal(f"{node.dtype} data have no translation")
    # In float64 the logarithm of a power of two comes out whole: the level of a box is its floor.
    value = g("Log", g.cast(node.inputs[0], np.float64))
    return g.cast(g("Div", value, np.float64(math.log(2))), node.dtype)


@_translates("clip")
def _clip(g: Graph, node: Node) -> str:
    low, high = float(node.get("a_min")), float(node.get("a_max"))
    if low > high:
        raise node.refusal(f"a_min={low} above a_max={high} has no translation")
    if node.dtype.kind != "f":  # MXNet cuts fractions off
        limits = np.iinfo(node.dtype)
        low, high = (math.trunc(min(max(v, limits.min), limits.max)) for v in (low, high))
    return g("Clip", node.inputs[0], np.array(low, node.dtype), np.array(high, node.dtype))


@_translates("Cast", "amp_cast", "amp_multicast")
def _cast(g: Graph, node: Node) -> list[str]:
    for name in ("dtype", "num_outputs", "cast_narrow"):
        node.get(name)
    return [
        tensor if before == after else g.cast(tensor, after)
        for tensor, before, after in zip(node.inputs, node.dtypes, node.out_dtypes)
    ]


@_translates("where")
def _where(g: Graph, node: Node) -> str:
    condition, *values = node.inputs
    condition = _truth(g, condition, node.dtypes[0])
    if node.rank == 1 < len(node.shapes[1]):
        condition = g("Unsqueeze", condition, np.arange(1, len(node.shapes[1])))
    return g("Where", condition, *values)


# ---- Constants -----------------------------------------------------------------------------------


def _filled(value: float | None) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        for name in ("ctx", "dtype"):
            node.get(name)
        number = node.get("value") if value is None else value
        return g.constant(np.full(node.sizes("shape"), number, node.out_dtypes[0]))

    return translate


TRANSLATIONS.update({"_full": _filled(None), "_zeros": _filled(0), "_ones": _filled(1)})


def _filled_like(value: float) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        return g("Expand", np.array(value, node.dtype), g.shape(node.inputs[0]))

    return translate


TRANSLATIONS.update({"zeros_like": _filled_like(0), "ones_like": _filled_like(1)})


@_translates("_arange")
def _arange(g: Graph, node: Node) -> str:
    node.expect("infer_range", False)
    for name in ("ctx", "dtype"):
        node.get(name)
    start, stop, step = node.get("start"), node.get("stop"), node.get("step", 1.0)
    start, stop = (0, start) if stop is None else (start, stop)
    values = start + step * np.arange(math.ceil((stop - start) / step))
    return g.constant(np.repeat(values, node.get("repeat", 1)).astype(node.out_dtypes[0]))


@_translates("_contrib_arange_like")
def _arange_like(g: Graph, node: Node) -> str:
    node.expect("repeat", 1)
    node.get("ctx")
    dtype = node.out_dtypes[0]
    shape = g.shape(node.inputs[0])
    if node.get("axis") is None:
        size = g("ReduceProd", shape, keepdims=0)
    else:
        axis = node.axis()
        size = g.scalar(g.shape(node.inputs[0], axis, axis + 1))
    values = g.cast(g("Range", np.array(0), size, np.array(1)), dtype)
    start, step = node.get("start", 0.0), node.get("step", 1.0)
    if dtype not in (np.float32, np.float64) and (start % 1 or step % 1):
        # MXNet cuts the fractions off.
        raise node.refusal(f"start={start}, step={step} in {dtype} has no translation")
    if (start, step) != (0, 1):
        values = g("Mul", values, np.array(step, dtype))
        values = g("Add", values, np.array(start, dtype))
    return values if node.get("axis") is not None else g("Reshape", values, shape)


@_translates("shape_array")
def _shape_array(g: Graph, node: Node) -> str:
    return g.shape(node.inputs[0])


# ---- Shapes --------------------------------------------------------------------------------------


@_translates("Reshape")
def _reshape(g: Graph, node: Node) -> str:
    data, codes = node.inputs[0], node.sizes("shape")
    if not codes:
        raise node.refusal("a shape that is not given has no translation")
    for name in ("target_shape", "keep_highest"):
        node.get(name)  # of old files, and of no effect beside shape
    backwards = node.get("reverse", False)
    if backwards and -4 in codes:
        raise node.refusal(f"shape={codes} with reverse=True has no translation")

    def sizes(first: int, end: int) -> str:
        """Sizes of axes, which are counted from the last if the shape is read backwards."""
        if backwards:
            first, end = node.rank - end, node.rank - first
        return g.shape(data, first, end)

    codes = codes[::-1] if backwards else codes
    parts: list[Any] = []
    axis, position = 0, 0
    while position < len(codes):
        code = codes[position]
        if code == 0:
            parts.append(sizes(axis, axis + 1))
        elif code == -2:
            if axis < node.rank:
                parts.append(sizes(axis, node.rank))
            axis = node.rank
        elif code == -3:
            parts.append(g("Mul", *(sizes(axis + n, axis + n + 1) for n in range(2))))
            axis += 1
        elif code == -4:
            first, second = codes[position + 1 : position + 3]
            whole = sizes(axis, axis + 1)
            if first == -1:
                parts += [g("Div", whole, np.array([second])), second]
            elif second == -1:
                parts += [first, g("Div", whole, np.array([first]))]
            else:
                parts += [first, second]
            position += 2
        else:
            parts.append(code)
        axis += 1
        position += 1
    return g.reshape(data, *(parts[::-1] if backwards else parts))


@_translates("Flatten")
def _flatten(g: Graph, node: Node) -> str:
    return g("Flatten", node.inputs[0])


@_translates("reshape_like")
def _reshape_like(g: Graph, node: Node) -> str:
    data, like = node.inputs
    pieces = []
    for side, shape in (("lhs", node.shapes[0]), ("rhs", node.shapes[1])):
        begin, end, _ = slice(node.get(f"{side}_begin"), node.get(f"{side}_end")).indices(
            len(shape)
        )
        pieces.append((begin, end))
    (left, right), (begin, end) = pieces
    parts = [g.shape(like, begin, end)]
    if left > 0:
        parts.insert(0, g.shape(data, 0, left))
    if right < node.rank:
        parts.append(g.shape(data, right, node.rank))
    return g.reshape(data, *parts)


@_translates("expand_dims")
def _expand_dims(g: Graph, node: Node) -> str:
    return g("Unsqueeze", node.inputs[0], np.array([node.axis(rank=node.rank + 1)]))


@_translates("squeeze")
def _squeeze(g: Graph, node: Node) -> str:
    axes = node.axes() or [axis for axis, size in enumerate(node.shapes[0]) if size == 1]
    left = node.rank - len(axes)
    if left == 0:  # MXNet gives a vector of one element
        axes = axes[1:]
    return g("Squeeze", node.inputs[0], np.array(axes)) if axes else node.inputs[0]


@_translates("transpose")
def _transpose(g: Graph, node: Node) -> str:
    axes = node.axes("axes") or list(range(node.rank))[::-1]
    return g("Transpose", node.inputs[0], perm=axes)


@_translates("SwapAxis")
def _swap_axes(g: Graph, node: Node) -> str:
    axes = list(range(node.rank))
    first, second = node.axis("dim1", 0), node.axis("dim2", 0)
    axes[first], axes[second] = second, first
    return g("Transpose", node.inputs[0], perm=axes)


@_translates("Concat")
def _concat(g: Graph, node: Node) -> str:
    return g("Concat", *node.inputs, axis=node.axis("dim", 1))


@_translates("stack")
def _stack(g: Graph, node: Node) -> str:
    axis = node.axis("axis", 0, rank=node.rank + 1)
    parts = [g("Unsqueeze", tensor, np.array([axis])) for tensor in node.inputs]
    return g("Concat", *parts, axis=axis)


@_translates("SliceChannel")
def _split(g: Graph, node: Node) -> Any:
    number, axis = node.get("num_outputs"), node.axis("axis", 1)
    squeeze = node.get("squeeze_axis", False)
    parts = [node.inputs[0]]
    if number > 1:
        parts = g("Split", node.inputs[0], axis=axis, outputs=number)
    return [g("Squeeze", part, np.array([axis])) if squeeze else part for part in parts]


_END = np.iinfo(np.int64).max


@_translates("slice_axis")
def _slice_axis(g: Graph, node: Node) -> str:
    axis, begin, end = node.axis(), node.get("begin"), node.get("end")
    return g.columns(node.inputs[0], begin, _END if end is None else end, axis)


@_translates("slice")
def _slice(g: Graph, node: Node) -> str:
    begin, end, step = (node.sizes(name) for name in ("begin", "end", "step"))
    step = step or (None,) * len(begin)
    step = tuple(1 if s is None else s for s in step)
    back = tuple(s < 0 for s in step)
    begin = tuple((_END if r else 0) if b is None else b for b, r in zip(begin, back))
    end = tuple((-_END if r else _END) if e is None else e for e, r in zip(end, back))
    axes = np.arange(len(begin))
    return g(
        "Slice",
        node.inputs[0],
        *(np.array(v, np.int64) for v in (begin, end)),
        axes,
        np.array(step, np.int64),
    )


@_translates("slice_like")
def _slice_like(g: Graph, node: Node) -> str:
    data, like = node.inputs
    axes = node.axes("axes") or list(range(node.rank))
    ends = g("Gather", g.shape(like), np.array(axes))
    return g("Slice", data, np.zeros(len(axes), np.int64), ends, np.array(axes))


@_translates("reverse")
def _reverse(g: Graph, node: Node) -> str:
    axes = np.array(node.axes())
    ones = np.ones(len(axes), np.int64)
    return g("Slice", node.inputs[0], -ones, -ones * _END, axes, -ones)


@_translates("tile")
def _tile(g: Graph, node: Node) -> str:
    reps = node.sizes("reps")
    data, rank = node.inputs[0], node.rank
    if len(reps) > rank:
        data = g("Unsqueeze", data, np.arange(len(reps) - rank))
    return g("Tile", data, np.array((1,) * (rank - len(reps)) + reps, np.int64))


@_translates("repeat")
def _repeat(g: Graph, node: Node) -> str:
    repeats = node.get("repeats")
    data, axis, rank = _along(g, node, None)
    times = [1] * (rank + 1)
    times[axis + 1] = repeats
    tiled = g("Tile", g("Unsqueeze", data, np.array([axis + 1])), np.array(times, np.int64))
    size = g("Mul", g.shape(data, axis, axis + 1), np.array([repeats]))
    parts = [g.shape(data, 0, axis)] * (axis > 0) + [size]
    parts += [g.shape(data, axis + 1, rank)] * (axis + 1 < rank)
    return g.reshape(tiled, *parts)


@_translates("broadcast_like")
def _broadcast_like(g: Graph, node: Node) -> str:
    data, like = node.inputs
    lhs, rhs = node.axes("lhs_axes"), node.sizes("rhs_axes")
    if not lhs:
        return g("Expand", data, g.shape(like))
    parts: list[Any] = [g.shape(data, axis, axis + 1) for axis in range(node.rank)]
    for left, right in zip(lhs, rhs):
        right %= len(node.shapes[1])
        parts[left] = g.shape(like, right, right + 1)
    return g("Expand", data, g.joined(*parts))


@_translates("broadcast_axis", "broadcast_axes")
def _broadcast_axis(g: Graph, node: Node) -> str:
    shape = [1] * node.rank
    for axis, size in zip(node.axes(), node.sizes("size")):
        shape[axis] = size
    return g("Expand", node.inputs[0], np.array(shape, np.int64))


@_translates("broadcast_to")
def _broadcast_to(g: Graph, node: Node) -> str:
    shape = tuple(size or 1 for size in node.sizes("shape"))  # 0 keeps the size
    return g("Expand", node.inputs[0], np.array(shape, np.int64))


# ---- Choosing ------------------------------------------------------------------------------------


@_translates("take")
def _take(g: Graph, node: Node) -> str:
    node.expect("mode", "clip", "wrap")
    axis, mode = node.axis("axis", 0), node.get("mode", "clip")
    data, index = node.inputs
    size = g.shape(data, axis, axis + 1)
    index = g.cast(index, np.int64)
    if mode == "clip":
        index = g("Max", g("Min", index, g("Sub", size, np.array([1]))), np.array([0]))
    else:
        # The first step is for OpenVINO, whose Mod is that of float32, exact up to 2**24.
        index = g("Sub", index, g("Mul", g("Div", index, size), size))
        index = g("Mod", index, size)
    if len(node.shapes[1]) == 0:
        index = g("Squeeze", index, np.array([0]))
    return g("Gather", data, index, axis=axis)


@_translates("Embedding")
def _embedding(g: Graph, node: Node) -> str:
    for name in ("input_dim", "output_dim", "dtype", "sparse_grad"):
        node.get(name)
    index, data = node.inputs
    size = g.shape(data, 0, 1)
    index = g("Min", g.cast(index, np.int64), g("Sub", size, np.array([1])))
    return g("Gather", data, g("Max", index, np.array([0])))


@_translates("gather_nd")
def _gather_nd(g: Graph, node: Node) -> str:
    data, index = node.inputs
    rank = len(node.shapes[1])
    last = g("Transpose", g.cast(index, np.int64), perm=[*range(1, rank), 0])
    return g("GatherND", data, last)


def _along(g: Graph, node: Node, default: int | None) -> tuple[str, int, int]:
    """The data, the axis to go along, and the rank; without an axis, all elements in a row."""
    if node.get("axis", default) is None:
        return g.reshape(node.inputs[0], -1), 0, 1
    return node.inputs[0], node.axis("axis", default), node.rank


@_translates("topk")
def _topk(g: Graph, node: Node) -> Any:
    kind = node.get("ret_typ", "indices")
    node.expect("ret_typ", "indices", "value", "both")
    node.get("dtype")
    data, axis, _ = _along(g, node, -1)
    size = g.shape(data, axis, axis + 1)
    k = node.get("k", 1)
    k = size if k < 1 else np.array([k])
    largest = 0 if node.get("is_ascend", False) else 1
    value, index = g("TopK", data, k, axis=axis, largest=largest, sorted=1, outputs=2)
    if kind == "value":
        return value
    index = g.cast(index, node.out_dtypes[-1])
    return [value, index] if kind == "both" else index


@_translates("argsort", "sort")
def _argsort(g: Graph, node: Node) -> str:
    node.get("dtype")
    data, axis, _ = _along(g, node, -1)
    size = g.shape(data, axis, axis + 1)
    largest = 0 if node.get("is_ascend", True) else 1
    value, index = g("TopK", data, size, axis=axis, largest=largest, sorted=1, outputs=2)
    return value if node.op == "sort" else g.cast(index, node.out_dtypes[0])


def _arg(op: str) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        keep = bool(node.get("keepdims", False))
        data, axis, rank = _along(g, node, None)
        found = g(op, data, axis=axis, keepdims=int(keep or rank == 1))
        if rank == 1 < len(node.out_shapes[0]):
            found = g.reshape(found, *node.out_shapes[0])  # of ones
        return g.cast(found, node.out_dtypes[0])

    return translate


TRANSLATIONS.update({"argmax": _arg("ArgMax"), "argmin": _arg("ArgMin")})


# ---- Sums and products ---------------------------------------------------------------------------


def _reduction(op: str) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        given = node.axes() or list(range(node.rank))
        keep = int(node.get("keepdims", False))
        if node.get("exclude", False) and node.axes():
            given = [axis for axis in range(node.rank) if axis not in given]
            if not given:
                return node.inputs[0]
        if op == "ReduceSum":
            out = g(op, node.inputs[0], np.array(given), keepdims=keep)
        else:
            out = g(op, node.inputs[0], axes=given, keepdims=keep)
        # MXNet gives a vector of one element where nothing is left.
        return out if keep or len(given) < node.rank else g("Unsqueeze", out, np.array([0]))

    return translate


for _name, _op in {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
}.items():
    TRANSLATIONS[_name] = _reduction(_op)


def _softmax_like(op: str) -> Translation:
    def translate(g: Graph, node: Node) -> str:
        node.expect("use_length", False)
        node.expect("dtype", None, node.dtype.name)
        temperature = node.get("temperature")
        data = node.inputs[0]
        if temperature not in (None, 1):
            data = g("Div", data, np.array(temperature, node.dtype))
        return g(op, data, axis=node.axis("axis", -1))

    return translate


TRANSLATIONS.update(
    {"softmax": _softmax_like("Softmax"), "log_softmax": _softmax_like("LogSoftmax")}
)


@_translates("SoftmaxActivation")
def _softmax_activation(g: Graph, node: Node) -> str:
    if node.get("mode", "instance") == "channel":
        return g("Softmax", node.inputs[0], axis=1)
    return g("Softmax", node.inputs[0], axis=-1)


@_translates("batch_dot")
def _batch_dot(g: Graph, node: Node) -> str:
    node.get("forward_stype")
    sides = [
        g("Transpose", tensor, perm=[0, 2, 1]) if node.get(flag, False) else tensor
        for tensor, flag in zip(node.inputs, ("transpose_a", "transpose_b"))
    ]
    return g("MatMul", *sides)


# ---- Layers --------------------------------------------------------------------------------------


@_translates("FullyConnected")
def _fully_connected(g: Graph, node: Node) -> str:
    node.get("num_hidden")
    node.get("no_bias")
    data, weight, *bias = node.inputs
    if node.get("flatten", True):
        flat = g("Flatten", data) if node.rank != 2 else data
        return g("Gemm", flat, weight, *bias, transB=1)
    out = g("MatMul", data, g("Transpose", weight, perm=[1, 0]))
    return g("Add", out, bias[0]) if bias else out


def _convolution_attributes(node: Node) -> dict:
    kernel = node.sizes("kernel")
    layout = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[len(kernel)]
    node.expect("layout", None, "None", layout)
    node.get("num_filter")
    node.get("no_bias")
    padding = node.sizes("pad") or (0,) * len(kernel)
    return {
        "kernel_shape": kernel,
        "strides": node.sizes("stride") or (1,) * len(kernel),
        "dilations": node.sizes("dilate") or (1,) * len(kernel),
        "pads": padding + padding,
        "group": node.get("num_group", 1),
    }


@_translates("Convolution")
def _convolution(g: Graph, node: Node) -> str:
    return g("Conv", *node.inputs, **_convolution_attributes(node))


@_translates("Deconvolution")
def _deconvolution(g: Graph, node: Node) -> str:
    attributes = _convolution_attributes(node)
    node.expect("target_shape", (), None)
    adjust = node.sizes("adj") or (0,) * len(attributes["kernel_shape"])
    return g("ConvTranspose", *node.inputs, output_padding=adjust, **attributes)


@_translates("BatchNorm")
def _batch_norm(g: Graph, node: Node) -> str:
    node.get("use_global_stats")
    node.expect("output_mean_var", False)
    axis = node.axis("axis", 1)
    data, gamma, beta, mean, variance = node.inputs
    if node.get("fix_gamma", True):
        gamma = g.constant(np.ones(node.shapes[1], node.dtypes[1]))
    names = [gamma, beta, mean, variance]
    eps = float(node.get("eps", 1e-3))
    if axis == 1:
        return g("BatchNormalization", data, *names, epsilon=eps)
    front = list(range(node.rank))
    front[1], front[axis] = axis, 1
    out = g("BatchNormalization", g("Transpose", data, perm=front), *names, epsilon=eps)
    return g("Transpose", out, perm=front)


@_translates("Activation")
def _activation(g: Graph, node: Node) -> str:
    kinds = {
        "relu": "Relu",
        "sigmoid": "Sigmoid",
        "tanh": "Tanh",
        "softrelu": "Softplus",
        "softsign": "Softsign",
    }
    kind = node.get("act_type")
    if kind not in kinds:
        raise node.refusal(f"act_type={kind} has no translation")
    return g(kinds[kind], node.inputs[0])


@_translates("LeakyReLU")
def _leaky_relu(g: Graph, node: Node) -> str:
    kind, slope = node.get("act_type", "leaky"), float(node.get("slope", 0.25))
    for name in ("lower_bound", "upper_bound"):
        node.get(name)
    if kind == "leaky":
        return g("LeakyRelu", node.inputs[0], alpha=slope)
    if kind == "elu":
        return g("Elu", node.inputs[0], alpha=slope)
    if kind == "prelu":
        gamma = node.inputs[1]
        if len(node.shapes[1]) == 1 and node.rank > 2:
            gamma = g("Unsqueeze", gamma, np.arange(1, node.rank - 1))
        return g("PRelu", node.inputs[0], gamma)
    raise node.refusal(f"act_type={kind} has no translation")


@_translates("Pooling")
def _pooling(g: Graph, node: Node) -> str:
    node.expect("layout", None, "None", {3: "NCW", 4: "NCHW", 5: "NCDHW"}[node.rank])
    node.expect("pool_type", "max", "avg")
    node.get("p_value")
    kind = {"max": "Max", "avg": "Average"}[node.get("pool_type", "max")]
    kernel, stride, padding = (node.sizes(name) for name in ("kernel", "stride", "pad"))
    include = node.get("count_include_pad", True)
    if node.get("global_pool", False):
        node.get("pooling_convention")
        return g(f"Global{kind}Pool", node.inputs[0])
    node.expect("pooling_convention", "valid")
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": stride or (1,) * len(kernel)}
    padding = padding or (0,) * len(kernel)
    if kind == "Average":
        attributes["count_include_pad"] = int(include is not False)
    return g(f"{kind}Pool", node.inputs[0], pads=padding + padding, **attributes)


@_translates("_contrib_AdaptiveAvgPooling2D")
def _adaptive_average(g: Graph, node: Node) -> str:
    if set(node.sizes("output_size", (1,))) != {1}:
        raise node.refusal("an output_size other than 1 has no translation")
    return g("GlobalAveragePool", node.inputs[0])


@_translates("UpSampling")
def _upsampling(g: Graph, node: Node) -> str:
    node.expect("sample_type", "nearest")
    node.get("num_filter")
    node.get("multi_input_mode")
    if len(node.inputs) > 1:
        raise node.refusal("several inputs have no translation")
    scale = node.get("scale")
    return g(
        "Resize",
        node.inputs[0],
        None,
        np.array([1, 1, scale, scale], np.float32),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


# ---- Boxes ---------------------------------------------------------------------------------------


@_translates("_contrib_box_decode")
def _box_decode(g: Graph, node: Node) -> str:
    data, anchors = node.inputs
    dtype = node.dtype

    def number(value: Any) -> np.ndarray:
        return np.array(value, dtype)

    def half(value: str) -> str:
        return g("Mul", value, number(0.5))

    deviations = [node.get(f"std{n}", 1.0) for n in range(4)]
    clip = float(node.get("clip", -1.0))
    four = np.ones(4, np.int64)
    ax, ay, aw, ah = g("Split", anchors, four, axis=2, outputs=4)
    if node.get("format", "center") == "corner":
        aw, ah = g("Sub", aw, ax), g("Sub", ah, ay)
        ax, ay = g("Add", ax, half(aw)), g("Add", ay, half(ah))
    offsets = g("Mul", data, number(deviations))
    dx, dy, dw, dh = g("Split", offsets, four, axis=2, outputs=4)
    low, high = [], []
    for centre, size, shift, growth in ((ax, aw, dx, dw), (ay, ah, dy, dh)):
        middle = g("Add", g("Mul", shift, size), centre)
        growth = g("Min", growth, number(clip)) if clip > 0 else growth
        reach = half(g("Mul", g("Exp", growth), size))
        low.append(g("Sub", middle, reach))
        high.append(g("Add", middle, reach))
    return g("Concat", *low, *high, axis=2)


@_translates("_contrib_box_nms")
def _box_nms(g: Graph, node: Node) -> str:
    """The best boxes first; those that are suppressed or invalid are rows of -1 at the end."""
    node.expect("in_format", "corner")
    node.expect("out_format", "corner")
    if node.dtype != np.float32:
        raise node.refusal(f"{node.dtype} boxes have no translation")
    threshold = float(node.get("overlap_thresh", 0.5))
    lowest = np.float32(node.get("valid_thresh", 0))
    best = node.get("topk", -1)
    corner, score = node.get("coord_start", 2), node.get("score_index", 1)
    identity, background = node.get("id_index", -1), node.get("background_id", -1)
    apart = identity >= 0 and not node.get("force_suppress", False)
    node.get("force_suppress")
    if best == 0:
        return node.inputs[0]
    if not 0 <= threshold <= 1:
        raise node.refusal(f"overlap_thresh={threshold} has no translation")
    width = node.shapes[0][-1]
    data = node.inputs[0]
    number = g.shape(data, node.rank - 2, node.rank - 1)  # of boxes of an image
    batch = np.array([1]) if node.rank == 2 else g("ReduceProd", g.shape(data, 0, node.rank - 2))
    rows = g.reshape(data, batch, number, width)

    def column(tensor: str, index: int) -> str:
        return g("Squeeze", g.columns(tensor, index, index + 1), np.array([2]))

    scores = column(rows, score)
    valid = g("Greater", scores, lowest)
    if identity >= 0:
        other = g("Not", g("Equal", column(rows, identity), np.float32(background)))
        valid = g("And", valid, other)
    order_by = g("Where", valid, scores, np.float32(np.finfo(np.float32).min))
    count = number if best < 0 else g("Min", number, np.array([best]))
    order = _first_of_equal(g, order_by, number, count)
    rows = _gathered_rows(g, rows, order, width)
    valid = g("GatherElements", g.cast(valid, np.float32), order, axis=1)
    place = g.cast(g("Range", np.array(0), g.scalar(count), np.array(1)), np.float32)
    # Ranks for scores: no ties, and the valid ones are the positive ones.
    rank = g("Mul", valid, g("Sub", g.cast(count, np.float32), place))
    x1, y1, x2, y2 = (g.columns(rows, corner + n, corner + n + 1) for n in range(4))
    # NonMaxSuppression would turn inverted boxes round; here they overlap nothing.
    boxes = g("Concat", y1, x1, g("Max", y1, y2), g("Max", x1, x2), axis=2)
    class_scores = g("Unsqueeze", rank, np.array([1]))
    if apart:
        kind = g.cast(
            g("Where", g.cast(valid, np.bool_), column(rows, identity), np.float32(0)), np.int64
        )
        first, last = g("ReduceMin", kind, keepdims=0), g("ReduceMax", kind, keepdims=0)
        kinds = g("Range", first, g("Add", last, np.array(1)), np.array(1))
        same = g(
            "Equal", g("Unsqueeze", kind, np.array([1])), g("Unsqueeze", kinds, np.array([0, 2]))
        )
        class_scores = g("Mul", class_scores, g.cast(same, np.float32))
    chosen = g(
        "NonMaxSuppression",
        boxes,
        class_scores,
        count,
        np.array([threshold], np.float32),
        np.array([0.5], np.float32),
    )
    # Their places in the sorted rows, moved to the front.
    places = g("Gather", chosen, np.array([0, 2]), axis=1)
    ones = g("Expand", np.float32(1), g.shape(chosen, 0, 1))
    kept = g("ScatterND", g("Mul", rank, np.float32(0)), places, ones)
    _, order = g("TopK", g("Mul", kept, rank), count, axis=1, outputs=2)
    kept = g("Unsqueeze", g("GatherElements", kept, order, axis=1), np.array([2]))
    rows = g(
        "Where",
        g("Greater", kept, np.float32(0)),
        _gathered_rows(g, rows, order, width),
        np.float32(-1),
    )
    if best > 0:
        rest = g.joined(batch, g("Sub", number, count), width)
        rows = g("Concat", rows, g("Expand", np.float32(-1), rest), axis=1)
    return g("Reshape", rows, g.shape(data))


def _first_of_equal(g: Graph, values: str, number: str, count: str) -> str:
    """The places (B, count) of the greatest of (B, number) values, equal ones by place.

    OpenVINO's TopK has equal values in any order, and takes any of them where not all are wanted:
    so all values are sorted, then keys of group and place, a group for each value. It divides and
    compares integers in float32, exact up to 2**24: so no place is computed from a key.
    """
    value, order = g("TopK", values, number, axis=1, outputs=2)
    before = g("Slice", value, np.array([0]), np.array([-1]), np.array([1]))
    after = g("Slice", value, np.array([1]), np.array([_END]), np.array([1]))
    lower = g.cast(g("Not", g("Equal", before, after)), np.int64)
    group = g("CumSum", g("Pad", lower, np.array([0, 1, 0, 0]), np.array(0)), np.array(1))
    # No place of group `count` or a later one is wanted: as one they keep keys small.
    group = g("Min", group, count)
    key = g("Add", g("Mul", group, number), order)
    _, rank = g("TopK", key, count, axis=1, largest=0, outputs=2)
    # OpenVINO computes int64 in int32: where keys may not fit, the first order has to do.
    groups = g("Add", g.cast(count, np.float32), np.float32(1))
    fits = g("Less", g("Mul", groups, g.cast(number, np.float32)), np.float32(2.147e9))
    rank = g("Where", fits, rank, g("Range", np.array(0), g.scalar(count), np.array(1)))
    return g("GatherElements", order, rank, axis=1)


def _gathered_rows(g: Graph, rows: str, order: str, width: int) -> str:
    """rows (B, n, width) in the order (B, k)."""
    index = g("Expand", g("Unsqueeze", order, np.array([2])), np.array([1, 1, width]))
    return g("GatherElements", rows, index, axis=1)
