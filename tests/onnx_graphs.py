# SPDX-License-Identifier: Apache-2.0
"""Random graphs of MXNet's operators for the export; MXNet runs each call as it is made.

    python tests/onnx_graphs.py --graphs 2000 --seed 7

exports that many graphs, runs them in onnxruntime if it is installed, otherwise in onnx's
reference, and prints differences. tests/test_onnx_graphs.py does the same with a few.

A graph grows call by call: an operator is drawn, then inputs among the existing tensors, then
attributes. If MXNet rejects a call, or a result is not finite or too large, it is drawn again.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional, Tuple

import mxnet as mx
import numpy as np
from support.onnx_evaluator import run

import gluon_roi

Call = Tuple[list, dict]  # tensors and attributes
Maker = Callable[["Graph", "Tensor"], Optional[Call]]
#: Name of an operator in graphs -> what draws a call of it on a tensor, or None if it takes none.
MAKERS: dict[str, Maker] = {}

#: Results of these jump where their input is rounded otherwise: they get exact inputs alone.
JUMPS = {
    *("ceil", "floor", "round", "rint", "fix", "trunc", "sign", "Cast"),
    *("where", "take", "pick", "Embedding", "gather_nd", "one_hot"),
    *("_mod", "broadcast_mod", "_mod_scalar", "_rmod_scalar"),
    *(f"{form}_{name}" for name in ("equal", "not_equal", "greater", "lesser", "greater_equal",
      "lesser_equal") for form in ("", "broadcast")),
    *(f"_{name}_scalar" for name in ("equal", "not_equal", "greater", "lesser", "greater_equal",
      "lesser_equal")),
    *("broadcast_logical_and", "broadcast_logical_or", "broadcast_logical_xor", "logical_not"),
}  # fmt: skip
#: And these depend on the order of equal values, too.
ORDERS = {"argmax", "argmin", "argsort", "topk"}

TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-6}


@dataclass
class Tensor:
    """A tensor of the graph, for MXNet's arrays and symbols."""

    symbol: Any
    value: Any
    exact: bool  # no runtime can round it otherwise
    tolerance: float  # relative to the greatest element, or to 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> str:
        return np.dtype(self.value.dtype).name

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith("float")


@dataclass
class Graph:
    """A graph in the making."""

    random: np.random.RandomState
    dtype: str = "float32"
    inputs: list[Tensor] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    # ---- Choices ----

    def coin(self, chance: float = 0.5) -> bool:
        return self.random.rand() < chance

    def among(self, options: Any) -> Any:
        options = list(options)
        return options[self.random.randint(len(options))]

    def size(self, low: int = 1, high: int = 4) -> int:
        return int(self.random.randint(low, high + 1))

    def axis(self, rank: int) -> int:
        """An axis, counted from either end."""
        return int(self.random.randint(-rank, rank))

    def axes(self, rank: int) -> tuple[int, ...]:
        """Some axes, each counted from either end."""
        chosen = self.random.permutation(rank)[: self.size(1, rank)]
        return tuple(int(axis) - rank * self.coin(0.3) for axis in chosen)

    def number(self) -> float:
        """A number that float16 has."""
        return float(self.random.randint(-24, 25)) / 8

    # ---- Tensors ----

    def input(self, *shape: int, dtype: str | None = None, low: int = -24) -> Tensor:
        """A further input: eighths, none twice as long as there are enough."""
        count = int(np.prod(shape))
        if count <= 25 - low:
            values = low + self.random.permutation(49 if low < 0 else 25)[:count]
        else:
            values = self.random.permutation(count) - (count // 2 if low < 0 else -low)
        value = mx.nd.array(values.reshape(shape) / 8, dtype=dtype or self.dtype)
        symbol = mx.sym.var(f"x{len(self.inputs)}", shape=shape)
        tensor = Tensor(symbol, value, True, TOLERANCE.get(np.dtype(value.dtype).name, 0))
        self.inputs.append(tensor)
        return tensor

    def index(self, *shape: int, low: int, high: int) -> Tensor:
        """A further input of whole numbers in [low, high]."""
        tensor = self.input(*shape, dtype="float32")
        tensor.value = mx.nd.array(self.random.randint(low, high + 1, shape))
        return tensor

    def partner(self, x: Tensor) -> Tensor:
        """A tensor of the same shape and type, made before or not."""
        same = [t for t in self.tensors() if (t.shape, t.dtype) == (x.shape, x.dtype)]
        return self.among(same) if self.coin() else self.input(*x.shape, dtype=x.dtype)

    def tensors(self) -> list[Tensor]:
        return self.inputs + self.results

    # ---- Growth ----

    def grow(self, op: str) -> bool:
        """Add a call of an operator, if one is found that MXNet takes."""
        candidates = [t for t in self.tensors() if t.exact or op not in {*JUMPS, *ORDERS}]
        inputs = list(self.inputs)
        x = self.among(candidates)
        call = MAKERS[op](self, x)
        if call is not None and self._call(op, *call):
            return True
        self.inputs = inputs
        return False

    def _call(self, op: str, tensors: list, attributes: dict) -> bool:
        exact = all(tensor.exact for tensor in tensors)
        if op in JUMPS and not exact:
            return False
        if op in ORDERS and len(np.unique(tensors[0].value.asnumpy())) < tensors[0].value.size:
            return False
        try:
            with mx.name.Prefix(f"n{len(self.calls)}_"):
                symbol = _function(mx.sym, op)(*(t.symbol for t in tensors), **attributes)
                values = _function(mx.nd, op)(*(t.value for t in tensors), **attributes)
            values = values if isinstance(values, list) else [values]
            values = values[: len(symbol.list_outputs())]
            arrays = [value.asnumpy() for value in values]
        except (mx.MXNetError, ValueError, TypeError):
            return False
        if not all(a.size and np.isfinite(a).all() and np.abs(a).max() < 1e3 for a in arrays):
            return False
        self.calls.append(f"{op}({', '.join(str(t.shape) for t in tensors)}, {attributes})")
        for number, (value, array) in enumerate(zip(values, arrays)):
            same = exact and not (array.astype(np.float64) * 4096 % 1).any()
            tolerance = max([t.tolerance for t in tensors] + [TOLERANCE.get(array.dtype.name, 0)])
            self.results.append(Tensor(symbol[number], value, same, tolerance))
        return True

    # ---- The export ----

    def export(self, path: Path) -> list[Tensor]:
        """Write a model that gives every result; gives the inputs that it has."""
        symbol = mx.sym.Group([result.symbol for result in self.results])
        names = symbol.list_inputs()
        used = {t.symbol.name: t for t in self.inputs}
        inputs = [used[name] for name in names]
        free = [tuple(range(t.rank)) if self.coin(0.2) else () for t in inputs]
        gluon_roi.onnx.export(
            symbol,
            [t.shape for t in inputs],
            path,
            input_types=[t.dtype for t in inputs],
            dynamic=free if self.coin(0.3) else None,
        )
        return inputs

    def compare(self, found: list) -> str:
        """What differs, one line, or nothing."""
        for number, (ours, theirs) in enumerate(zip(found, self.results)):
            expected = theirs.value.asnumpy()
            ours = np.asarray(ours)
            if (ours.dtype, ours.shape) != (expected.dtype, expected.shape):
                return f"{number}: {ours.dtype} {ours.shape}, not {expected.dtype} {expected.shape}"
            a, b = ours.astype(np.float64), expected.astype(np.float64)
            off = np.abs(a - b)
            if not (off <= theirs.tolerance * np.maximum(1, np.abs(b).max())).all():
                return f"{number}: off by {off.max():.3g}"
        return ""


def graph(seed: int, nodes: int = 6) -> Graph:
    """The graph of a number."""
    random = np.random.RandomState(seed)
    made = Graph(random, dtype="float64" if random.rand() < 0.1 else "float32")
    for _ in range(2):
        rank = made.among([1, 2, 2, 3, 3, 4, 4, 4, 5])
        made.input(*(made.size(1, 5) for _ in range(rank)))
    # The first operator goes by the number, so that each has its turn.
    names = sorted(MAKERS)
    tries, wanted = 0, names[seed % len(names)]
    while len(made.calls) < nodes and tries < 50:
        if made.grow(wanted) or made.coin(0.2):
            wanted = made.among(names)
        tries += 1
    return made


def _function(namespace: Any, op: str) -> Callable:
    """The function of an operator by its name in graphs."""
    if op.startswith("_contrib_"):
        return getattr(namespace.contrib, op[len("_contrib_") :])
    return getattr(namespace._internal if op.startswith("_") else namespace, op)


def _maker(*names: str) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        MAKERS.update((name, function) for name in names)
        return function

    return register


# ---- Element by element --------------------------------------------------------------------------


@_maker(
    "abs", "ceil", "floor", "negative", "relu", "square", "_copy", "BlockGrad", "make_loss",
    "zeros_like", "ones_like", "logical_not", "shape_array", "Flatten", "sign", "round",
    "rint", "fix", "trunc",
)  # fmt: skip
def _one(g: Graph, x: Tensor) -> Call | None:
    return [x], {}


@_maker(
    "arccos", "arcsin", "arctan", "cos", "erf", "exp", "log", "log2", "reciprocal", "sigmoid",
    "sin", "softsign", "sqrt", "tan", "tanh", "rsqrt", "hard_sigmoid",
)  # fmt: skip
def _one_of_floats(g: Graph, x: Tensor) -> Call | None:
    return ([x], {}) if x.is_float else None


@_maker(
    "elemwise_add", "elemwise_sub", "elemwise_mul", "_maximum", "_minimum",
    "_equal", "_not_equal", "_greater", "_lesser", "_greater_equal", "_lesser_equal",
    "_identity_with_attr_like_rhs", "_mod",
)  # fmt: skip
def _two(g: Graph, x: Tensor) -> Call | None:
    return [x, g.partner(x)], {}


@_maker("elemwise_div")
def _quotient(g: Graph, x: Tensor) -> Call | None:
    return ([x, g.partner(x)], {}) if x.is_float else None


@_maker("_power", "broadcast_power")
def _power(g: Graph, x: Tensor) -> Call | None:
    return ([x, g.partner(x)], {}) if x.is_float and (x.value.asnumpy() > 0).all() else None


@_maker(
    "broadcast_add", "broadcast_sub", "broadcast_mul", "broadcast_maximum", "broadcast_minimum",
    "broadcast_equal", "broadcast_not_equal", "broadcast_greater",
    "broadcast_lesser", "broadcast_greater_equal", "broadcast_lesser_equal",
    "broadcast_logical_and", "broadcast_logical_or", "broadcast_logical_xor", "broadcast_mod",
)  # fmt: skip
def _broadcast(g: Graph, x: Tensor) -> Call | None:
    other = [1 if g.coin(0.4) else size for size in x.shape]
    both = [x, g.input(*other, dtype=x.dtype)]
    return (both if g.coin() else both[::-1]), {}


@_maker("broadcast_div")
def _broadcast_quotient(g: Graph, x: Tensor) -> Call | None:
    return _broadcast(g, x) if x.is_float else None


@_maker("add_n")
def _sum(g: Graph, x: Tensor) -> Call | None:
    return [x, *(g.partner(x) for _ in range(g.size(0, 2)))], {}


@_maker(
    "_plus_scalar", "_minus_scalar", "_rminus_scalar", "_mul_scalar", "_div_scalar",
    "_maximum_scalar", "_minimum_scalar", "_equal_scalar", "_not_equal_scalar", "_greater_scalar",
    "_lesser_scalar", "_greater_equal_scalar", "_lesser_equal_scalar", "_mod_scalar",
    "_rmod_scalar",
)  # fmt: skip
def _scalar(g: Graph, x: Tensor) -> Call | None:
    return [x], {"scalar": g.number() if x.is_float else float(g.size(-3, 3))}


@_maker("_rdiv_scalar")
def _over(g: Graph, x: Tensor) -> Call | None:
    return _scalar(g, x) if x.is_float else None


@_maker("_power_scalar", "_rpower_scalar")
def _power_scalar(g: Graph, x: Tensor) -> Call | None:
    return ([x], {"scalar": g.among([0.5, 2.0, 3.0])}) if x.is_float else None


@_maker("smooth_l1")
def _smooth_l1(g: Graph, x: Tensor) -> Call | None:
    return ([x], {"scalar": g.among([0.5, 1.0, 3.0])}) if x.is_float else None


@_maker("clip")
def _clip(g: Graph, x: Tensor) -> Call | None:
    low = g.number() if x.is_float else float(g.size(-3, 3))
    return [x], {"a_min": low, "a_max": low + g.size(0, 3)}


@_maker("Cast")
def _cast(g: Graph, x: Tensor) -> Call | None:
    return [x], {"dtype": g.among(["float16", "float32", "float64", "int32", "int64"])}


@_maker("amp_cast")
def _amp_cast(g: Graph, x: Tensor) -> Call | None:
    return [x], {"dtype": g.among(["float16", "float32"])}


@_maker("where")
def _where(g: Graph, x: Tensor) -> Call | None:
    a, b = g.input(*x.shape), g.input(*x.shape)
    if g.coin(0.3):
        return [g.index(x.shape[0], low=0, high=1), a, b], {}
    return [x, a, b], {}


@_maker("Dropout")
def _dropout(g: Graph, x: Tensor) -> Call | None:
    return [x], {"p": g.among([0.0, 0.5]), "axes": (0,) if g.coin(0.3) else ()}


# ---- Constants -----------------------------------------------------------------------------------


def _beside(g: Graph, x: Tensor) -> Call:
    return [], {"shape": tuple(g.size() for _ in range(g.size(1, 3))), "dtype": g.dtype}


@_maker("_zeros", "_ones")
def _filled(g: Graph, x: Tensor) -> Call | None:
    return _beside(g, x)


@_maker("_full")
def _full(g: Graph, x: Tensor) -> Call | None:
    return [], {**_beside(g, x)[1], "value": g.number()}


@_maker("_arange")
def _arange(g: Graph, x: Tensor) -> Call | None:
    step = g.among([-2.0, -0.5, 0.5, 1.0, 3.0])
    start = g.number()
    stop = None if step == 1 and start >= 1 and g.coin() else start + step * g.size() - g.coin() / 8
    return [], {"start": start, "stop": stop, "step": step, "repeat": g.size(1, 2)}


@_maker("_contrib_arange_like")
def _arange_like(g: Graph, x: Tensor) -> Call | None:
    axis = None if g.coin(0.3) else g.axis(x.rank)
    start, step = g.number(), g.number()
    if x.dtype not in ("float32", "float64"):  # in which MXNet cuts the fractions off
        start, step = float(int(start)), float(int(step))
    return [x], {"axis": axis, "start": start, "step": step}


# ---- Shapes --------------------------------------------------------------------------------------


@_maker("Reshape")
def _reshape(g: Graph, x: Tensor) -> Call | None:
    if g.coin(0.2):
        shape = g.among([(-1, 0), (0, -1), (-1,), (-1, 1), (-2, 0), (-1, -3), (0, -3, 0)])
        return [x], {"shape": shape, "reverse": g.coin()}
    codes: list[int] = []
    axis, inferred = 0, False
    # With -4 and a size or -1 in one shape MXNet may write beyond its memory.
    others = ["split"] if g.coin() else ["size", "infer"]
    while axis < x.rank:
        kind = g.among(["keep", "keep", "merge", "rest", *others])
        if kind == "infer" and not inferred:
            inferred = True
            codes.append(-1)
        elif kind == "merge" and axis + 1 < x.rank:
            codes.append(-3)
            axis += 1
        elif kind == "split":
            first = g.among(d for d in range(1, x.shape[axis] + 1) if x.shape[axis] % d == 0)
            parts = [first, x.shape[axis] // first]
            if g.coin(0.3) and not inferred:
                inferred = True
                parts[g.size(0, 1)] = -1
            codes += [-4, *parts]
        elif kind == "rest":
            codes.append(-2)
            axis = x.rank
        elif kind == "size":
            codes.append(x.shape[axis])
        else:
            codes.append(0)
        axis += 1
    ones = (1,) * g.size(0, 2) if "size" in others else ()
    return [x], {"shape": (*codes, *ones)}


@_maker("reshape_like")
def _reshape_like(g: Graph, x: Tensor) -> Call | None:
    if g.coin():
        return [x, g.input(*g.random.permutation(x.shape))], {}
    begin = g.size(0, x.rank - 1)
    end = g.size(begin + 1, x.rank)
    middle = x.shape[begin:end][::-1]
    other = (3, *middle, 2)
    signs = [g.coin(0.3) for _ in range(4)]
    return [x, g.input(*other)], {
        "lhs_begin": begin - x.rank * signs[0],
        "lhs_end": None if end == x.rank and signs[1] else end,
        "rhs_begin": 1 - len(other) * signs[2],
        "rhs_end": len(other) - 1 - len(other) * signs[3],
    }


@_maker("expand_dims")
def _expand_dims(g: Graph, x: Tensor) -> Call | None:
    return ([x], {"axis": g.axis(x.rank + 1)}) if x.rank < 5 else None


@_maker("squeeze")
def _squeeze(g: Graph, x: Tensor) -> Call | None:
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if g.coin(0.3):
        return [x], {"axis": None}
    if not ones:
        return None
    return [x], {"axis": g.among([ones[0], ones[-1] - x.rank, tuple(ones)])}


@_maker("transpose")
def _transpose(g: Graph, x: Tensor) -> Call | None:
    axes = tuple(int(axis) for axis in g.random.permutation(x.rank))
    return [x], {"axes": () if g.coin(0.3) else axes}


@_maker("SwapAxis")
def _swap(g: Graph, x: Tensor) -> Call | None:
    return [x], {"dim1": g.axis(x.rank), "dim2": g.axis(x.rank)}


@_maker("Concat")
def _concat(g: Graph, x: Tensor) -> Call | None:
    axis = g.axis(x.rank)
    others = []
    for _ in range(g.size(0, 2)):
        shape = list(x.shape)
        shape[axis] = g.size()
        others.append(g.input(*shape, dtype=x.dtype))
    return [x, *others], {"dim": axis}


@_maker("stack")
def _stack(g: Graph, x: Tensor) -> Call | None:
    return [x, *(g.partner(x) for _ in range(g.size(0, 2)))], {"axis": g.axis(x.rank + 1)}


@_maker("SliceChannel")
def _split(g: Graph, x: Tensor) -> Call | None:
    axis = g.axis(x.rank)
    number = g.among(d for d in range(1, x.shape[axis] + 1) if x.shape[axis] % d == 0)
    squeeze = number == x.shape[axis] and x.rank > 1 and g.coin()
    return [x], {"num_outputs": number, "axis": axis, "squeeze_axis": squeeze}


@_maker("slice_axis")
def _slice_axis(g: Graph, x: Tensor) -> Call | None:
    axis = g.axis(x.rank)
    size = x.shape[axis]
    begin = g.size(0, size - 1)
    end = g.size(begin + 1, size)
    return [x], {
        "axis": axis,
        "begin": begin - size * g.coin(0.3),
        "end": None if end == size and g.coin() else end - size * (end < size and g.coin(0.3)),
    }


@_maker("slice")
def _slice(g: Graph, x: Tensor) -> Call | None:
    begins, ends, steps = [], [], []
    for size in x.shape[: g.size(1, x.rank)]:
        begin = g.size(0, size - 1)
        end = g.size(begin + 1, size)
        step = g.among([None, 1, 2, -1])
        if step == -1:
            begin, end = end - 1, begin - 1
        begins.append(None if g.coin(0.2) else begin - size * g.coin(0.2))
        ends.append(None if end < 0 or g.coin(0.2) else end - size * (end < size and g.coin(0.2)))
        steps.append(step)
    step = {} if all(one in (None, 1) for one in steps) else {"step": tuple(steps)}
    return [x], {"begin": tuple(begins), "end": tuple(ends), **step}


@_maker("slice_like")
def _slice_like(g: Graph, x: Tensor) -> Call | None:
    like = [g.size(1, size) for size in x.shape]
    if g.coin(0.3):
        return [x, g.input(*like)], {}
    return [x, g.input(*like)], {"axes": g.axes(x.rank)}


@_maker("Crop")
def _crop(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4:
        return None
    size = tuple(g.size(1, n) for n in x.shape[2:])
    room = [n - m for n, m in zip(x.shape[2:], size)]
    place: dict = {"center_crop": True}
    if g.coin():
        place = {"offset": tuple(g.size(0, n) for n in room)}
    if g.coin():
        return [x], {"h_w": size, "num_args": 1, **place}
    return [x, g.input(1, 2, *size, dtype=x.dtype)], {"num_args": 2, **place}


@_maker("Pad")
def _pad(g: Graph, x: Tensor) -> Call | None:
    if x.rank not in (4, 5) or not x.is_float:
        return None
    mode = g.among(["constant", "edge", "reflect"])
    most = [n - 1 if mode == "reflect" else 2 for n in x.shape[2:] for _ in range(2)]
    return [x], {"mode": mode, "pad_width": (0, 0, 0, 0, *(min(g.size(0, 2), n) for n in most))}


@_maker("reverse")
def _reverse(g: Graph, x: Tensor) -> Call | None:
    return [x], {"axis": g.among([g.axis(x.rank), g.axes(x.rank)])}


@_maker("tile")
def _tile(g: Graph, x: Tensor) -> Call | None:
    return [x], {"reps": tuple(g.size(1, 2) for _ in range(g.size(1, x.rank + 1)))}


@_maker("repeat")
def _repeat(g: Graph, x: Tensor) -> Call | None:
    return [x], {"repeats": g.size(1, 3), "axis": None if g.coin(0.3) else g.axis(x.rank)}


@_maker("broadcast_like")
def _broadcast_like(g: Graph, x: Tensor) -> Call | None:
    shape = [g.size() if size == 1 else size for size in x.shape]
    if g.coin():
        return [x, g.input(*shape)], {}
    axis = g.axis(x.rank)
    other = (2, shape[axis], 3)
    return [x, g.input(*other)], {"lhs_axes": (axis,), "rhs_axes": (g.among([1, -2]),)}


@_maker("broadcast_axis")
def _broadcast_axis(g: Graph, x: Tensor) -> Call | None:
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if not ones:
        return None
    if g.coin():
        return [x], {"axis": ones[0], "size": g.size()}
    return [x], {"axis": tuple(ones), "size": tuple(g.size() for _ in ones)}


@_maker("broadcast_to")
def _broadcast_to(g: Graph, x: Tensor) -> Call | None:
    shape = (g.size() if size == 1 else g.among([0, size]) for size in x.shape)
    return [x], {"shape": tuple(shape)}


# ---- Choosing ------------------------------------------------------------------------------------


@_maker("take")
def _take(g: Graph, x: Tensor) -> Call | None:
    axis = g.axis(x.rank)
    index = g.index(*(g.size() for _ in range(g.size(1, 2))), low=-9, high=9)
    return [x, index], {"axis": axis, "mode": g.among(["clip", "wrap"])}


@_maker("pick")
def _pick(g: Graph, x: Tensor) -> Call | None:
    axis, keep = g.axis(x.rank), g.coin()
    shape = list(x.shape)
    shape[axis] = 1
    if not keep and x.rank > 1:
        del shape[axis]
    index = g.index(*shape, low=-9, high=9)
    return [x, index], {"axis": axis, "keepdims": keep, "mode": g.among(["clip", "wrap"])}


@_maker("Embedding")
def _embedding(g: Graph, x: Tensor) -> Call | None:
    rows, width = g.size(), g.size()
    index = g.index(*(g.size() for _ in range(g.size(1, 3))), low=-2, high=rows + 1)
    return [index, g.input(rows, width)], {"input_dim": rows, "output_dim": width}


@_maker("one_hot")
def _one_hot(g: Graph, x: Tensor) -> Call | None:
    return [x], {
        "depth": g.size(),
        "on_value": g.number(),
        "off_value": g.number(),
        "dtype": g.among(["float16", "float32", "int32"]),
    }


@_maker("gather_nd")
def _gather_nd(g: Graph, x: Tensor) -> Call | None:
    depth = g.size(1, x.rank)
    index = g.index(depth, *(g.size() for _ in range(g.size(1, 2))), low=0, high=0)
    value = [g.random.randint(size, size=index.shape[1:]) for size in x.shape[:depth]]
    index.value = mx.nd.array(np.stack(value))
    return [x, index], {}


@_maker("topk")
def _topk(g: Graph, x: Tensor) -> Call | None:
    axis = None if g.coin(0.2) else g.axis(x.rank)
    return [x], {
        "axis": axis,
        "k": g.size(0, x.value.size if axis is None else x.shape[axis]),
        "ret_typ": g.among(["indices", "value", "both"]),
        "is_ascend": g.coin(),
        "dtype": g.among(["float32", "int32", "int64"]),
    }


@_maker("argsort")
def _argsort(g: Graph, x: Tensor) -> Call | None:
    axis = None if g.coin(0.3) else g.axis(x.rank)
    return [x], {"axis": axis, "is_ascend": g.coin(), "dtype": g.among(["float32", "int32"])}


@_maker("sort")
def _sort(g: Graph, x: Tensor) -> Call | None:
    return [x], {"axis": None if g.coin(0.3) else g.axis(x.rank), "is_ascend": g.coin()}


@_maker("argmax", "argmin")
def _argmax(g: Graph, x: Tensor) -> Call | None:
    return [x], {"axis": None if g.coin(0.3) else g.axis(x.rank), "keepdims": g.coin()}


# ---- Sums and products ---------------------------------------------------------------------------


@_maker("sum", "mean", "max", "min", "prod")
def _reduction(g: Graph, x: Tensor) -> Call | None:
    if x.value.size > 100:
        return None  # the product may overflow in another order
    axis = g.among([None, (), g.axis(x.rank), g.axes(x.rank)])
    return [x], {"axis": axis, "keepdims": g.coin(), "exclude": g.coin(0.3)}


@_maker("norm")
def _norm(g: Graph, x: Tensor) -> Call | None:
    if not x.is_float:
        return None
    axis = g.among([None, (), g.axis(x.rank)])
    return [x], {"ord": g.among([1, 2]), "axis": axis, "keepdims": g.coin()}


@_maker("softmax", "log_softmax")
def _softmax(g: Graph, x: Tensor) -> Call | None:
    return [x], {"axis": g.axis(x.rank), "temperature": g.among([None, 1.0, 0.5, 3.0])}


@_maker("SoftmaxActivation")
def _softmax_activation(g: Graph, x: Tensor) -> Call | None:
    if x.dtype != "float32":
        return None  # MXNet takes the bytes for float32 all the same
    return [x], {"mode": g.among(["instance", "channel"]) if x.rank > 2 else "instance"}


@_maker("batch_dot")
def _batch_dot(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 3:
        return None
    batch, rows, columns = x.shape
    first, second = g.coin(), g.coin()
    inner, outer = (rows if first else columns), g.size()
    other = g.input(batch, *((outer, inner) if second else (inner, outer)), dtype=x.dtype)
    return [x, other], {"transpose_a": first, "transpose_b": second}


@_maker("dot")
def _dot(g: Graph, x: Tensor) -> Call | None:
    if not x.is_float:
        return None
    first, second = g.coin(), g.coin()
    size = x.shape[0 if first else -1]
    others = [g.size() for _ in range(g.size(0, 2))]
    other = g.input(*((*others, size) if second else (size, *others)), dtype=x.dtype)
    return [x, other], {"transpose_a": first, "transpose_b": second}


# ---- Layers --------------------------------------------------------------------------------------


@_maker("FullyConnected")
def _fully_connected(g: Graph, x: Tensor) -> Call | None:
    flatten, hidden, bias = g.coin(), g.size(), g.coin()
    width = int(np.prod(x.shape[1:])) if flatten else x.shape[-1]
    weights = [g.input(hidden, width, dtype=x.dtype), *[g.input(hidden, dtype=x.dtype)] * bias]
    return [x, *weights], {"num_hidden": hidden, "flatten": flatten, "no_bias": not bias}


def _windows(g: Graph, x: Tensor) -> dict | None:
    """Kernel, stride and padding for the spatial axes of x; those of 1 may be left out."""
    axes = x.rank - 2
    if axes not in (1, 2, 3):
        return None
    kernel = tuple(g.size(1, 3) for _ in range(axes))
    found = {"kernel": kernel}
    if g.coin():
        found["stride"] = tuple(g.size(1, 3) for _ in range(axes))
    if g.coin():
        found["pad"] = tuple(g.size(0, size - 1) for size in kernel)
    return found


@_maker("Convolution")
def _convolution(g: Graph, x: Tensor) -> Call | None:
    attributes = _windows(g, x)
    if attributes is None:
        return None
    channels, bias = x.shape[1], g.coin()
    groups = g.among(d for d in range(1, channels + 1) if channels % d == 0)
    filters = groups * g.size(1, 2)
    if g.coin(0.3):
        attributes["dilate"] = tuple(g.size(1, 2) for _ in attributes["kernel"])
    weight = g.input(filters, channels // groups, *attributes["kernel"], dtype=x.dtype)
    attributes.update(num_filter=filters, num_group=groups, no_bias=not bias)
    return [x, weight, *[g.input(filters, dtype=x.dtype)] * bias], attributes


@_maker("Deconvolution")
def _deconvolution(g: Graph, x: Tensor) -> Call | None:
    attributes = _windows(g, x)
    if attributes is None:
        return None
    channels, bias = x.shape[1], g.coin()
    groups = g.among(d for d in range(1, channels + 1) if channels % d == 0)
    each = g.size(1, 2)
    if g.coin(0.3):
        strides = attributes.get("stride", (1,) * len(attributes["kernel"]))
        attributes["adj"] = tuple(g.size(0, stride - 1) for stride in strides)
    weight = g.input(channels, each, *attributes["kernel"], dtype=x.dtype)
    attributes.update(num_filter=each * groups, num_group=groups, no_bias=not bias)
    return [x, weight, *[g.input(each * groups, dtype=x.dtype)] * bias], attributes


@_maker("BatchNorm", "_contrib_SyncBatchNorm")
def _batch_norm(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 2 or x.dtype != "float32":
        return None
    axis = g.among([1, 1, g.axis(x.rank)])
    size = x.shape[axis]
    states = [g.input(size, low=-24 if number < 3 else 1) for number in range(4)]
    return [x, *states], {
        "axis": axis,
        "eps": g.among([1e-3, 1e-5, 1e-7]),
        "fix_gamma": g.coin(),
        "use_global_stats": g.coin(),
    }


@_maker("GroupNorm")
def _group_norm(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 3 or x.dtype != "float32":
        return None
    groups = g.among(d for d in range(1, x.shape[1] + 1) if x.shape[1] % d == 0)
    return [x, g.input(groups), g.input(groups)], {
        "num_groups": groups,
        "eps": g.among([1e-3, 1e-1]),
    }


@_maker("InstanceNorm")
def _instance_norm(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 3 or x.dtype != "float32":
        return None
    return [x, g.input(x.shape[1]), g.input(x.shape[1])], {"eps": g.among([1e-3, 1e-1])}


@_maker("LayerNorm")
def _layer_norm(g: Graph, x: Tensor) -> Call | None:
    if x.dtype != "float32":
        return None
    axis = g.axis(x.rank)
    size = x.shape[axis]
    return [x, g.input(size), g.input(size)], {"axis": axis, "eps": g.among([1e-5, 1e-1])}


@_maker("L2Normalization")
def _l2_normalization(g: Graph, x: Tensor) -> Call | None:
    if x.rank < 3 or not x.is_float:
        return None
    mode = g.among(["instance", "channel", "spatial"])
    return [x], {"mode": mode, "eps": g.among([1e-10, 1e-2])}


@_maker("LRN")
def _local_response(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4 or x.dtype != "float32":
        return None
    return [x], {"nsize": g.among([1, 3, 5]), "alpha": 0.5, "beta": 0.75, "knorm": 2.0}


@_maker("Activation")
def _activation(g: Graph, x: Tensor) -> Call | None:
    return [x], {"act_type": g.among(["relu", "sigmoid", "tanh", "softrelu", "softsign"])}


@_maker("LeakyReLU")
def _leaky_relu(g: Graph, x: Tensor) -> Call | None:
    kind = g.among(["leaky", "elu", "prelu"])
    if kind == "prelu" and x.rank < 2:
        return None
    gamma = [g.input(g.among([1, x.shape[1]]))] if kind == "prelu" else []
    return [x, *gamma], {"act_type": kind, "slope": g.among([0.25, 0.5])}


@_maker("Pooling")
def _pooling(g: Graph, x: Tensor) -> Call | None:
    attributes = _windows(g, x)
    if attributes is None:
        return None
    attributes["pool_type"] = g.among(["max", "avg"])
    if g.coin(0.2):
        attributes["global_pool"] = True
    elif g.coin(0.2):
        attributes["pool_type"] = "sum"
    if g.coin():
        attributes["pooling_convention"] = "full"
    if x.rank == 3 and g.coin(0.3):
        attributes.update(pooling_convention="same", pad=(0, 0, 0))  # MXNet reads three
    if g.coin(0.3):
        attributes["count_include_pad"] = g.coin()
    return [x], attributes


def _offsets(g: Graph, x: Tensor, modulated: bool) -> Call | None:
    if x.rank != 4 or not x.exact or not x.is_float:
        return None
    attributes = _windows(g, x) or {}
    if g.coin(0.3):
        attributes["dilate"] = (g.size(1, 2), g.size(1, 2))
    channels, cells, bias = x.shape[1], int(np.prod(attributes["kernel"])), g.coin()
    divisors = [d for d in range(1, channels + 1) if channels % d == 0]
    groups, parts, each = g.among(divisors), g.among(divisors), g.size(1, 2)
    filters = groups * parts * each  # of both, as MXNet wants it of the modulated one
    made = [
        (size + 2 * pad - dilate * (kernel - 1) - 1) // stride + 1
        for size, kernel, pad, stride, dilate in zip(
            x.shape[2:],
            attributes["kernel"],
            attributes.get("pad", (0, 0)),
            attributes.get("stride", (1, 1)),
            attributes.get("dilate", (1, 1)),
        )
    ]
    if min(made) < 1:
        return None
    offsets = g.input(x.shape[0], 2 * parts * cells, *made, dtype=x.dtype)
    offsets.value = offsets.value / 4  # around the map, and on its cells and borders
    masks = [g.input(x.shape[0], parts * cells, *made, dtype=x.dtype)] * modulated
    weight = g.input(filters, channels // groups, *attributes["kernel"], dtype=x.dtype)
    attributes.update(
        num_filter=filters, num_group=groups, num_deformable_group=parts, no_bias=not bias
    )
    biases = [g.input(filters, dtype=x.dtype)] * bias
    return [x, offsets, *masks, weight, *biases], attributes


@_maker("_contrib_DeformableConvolution")
def _deformable(g: Graph, x: Tensor) -> Call | None:
    return _offsets(g, x, modulated=False)


@_maker("_contrib_ModulatedDeformableConvolution")
def _modulated(g: Graph, x: Tensor) -> Call | None:
    return _offsets(g, x, modulated=True)


@_maker("_contrib_AdaptiveAvgPooling2D")
def _adaptive(g: Graph, x: Tensor) -> Call | None:
    size = g.among([1, (1, 1), g.size(2, 7), (g.size(1, 7), g.size(1, 7))])
    return ([x], {"output_size": size}) if x.rank == 4 and x.is_float else None


@_maker("_contrib_BilinearResize2D")
def _bilinear_resize(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4 or not x.is_float:
        return None
    corners = {"align_corners": g.coin()}
    mode = g.among(["size", "scale", "like", "odd_scale", "to_even_up", "to_odd_down", "to_odd_up"])
    if mode == "like":
        like = g.input(1, 2, g.size(1, 7), g.size(1, 7), dtype=x.dtype)
        return [x, like], {"mode": mode, **corners}
    scales = {f"scale_{name}": g.among([0.5, 1.0, 1.5, 2.5]) for name in ("height", "width")}
    if mode == "size":
        return [x], {"height": g.size(1, 9), "width": g.size(1, 9), **corners}
    if mode == "scale":
        return [x], {**scales, **corners}
    return [x], {"mode": mode, **(scales if mode == "odd_scale" else {}), **corners}


@_maker("GridGenerator")
def _grid(g: Graph, x: Tensor) -> Call | None:
    if g.coin():
        flow = g.input(g.size(), 2, g.size(2), g.size(2), dtype=g.dtype)
        return [flow], {"transform_type": "warp"}
    affine = g.input(g.size(), 6, dtype=g.dtype)
    return [affine], {"transform_type": "affine", "target_shape": (g.size(2, 5), g.size(2, 5))}


@_maker("BilinearSampler")
def _sampler(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4 or not x.is_float:
        return None
    grid = g.input(x.shape[0], 2, g.size(), g.size(), dtype=x.dtype)
    grid.value = grid.value / 2  # inside of the map and around it
    return [x, grid], {}


@_maker("UpSampling")
def _upsampling(g: Graph, x: Tensor) -> Call | None:
    return ([x], {"scale": g.size(1, 3), "sample_type": "nearest"}) if x.rank == 4 else None


@_maker("_contrib_box_decode")
def _box_decode(g: Graph, x: Tensor) -> Call | None:
    batch, number = g.size(1, 2), g.size()
    attributes: dict = {f"std{n}": g.among([1.0, 0.125]) for n in range(4)}
    attributes.update(clip=g.among([-1.0, 0.5]), format=g.among(["corner", "center"]))
    return [g.input(batch, number, 4), g.input(1, number, 4)], attributes


@_maker("_contrib_box_nms")
def _box_nms(g: Graph, x: Tensor) -> Call | None:
    images, number = g.size(1, 2), g.size(1, 12)
    low = g.random.randint(0, 20, (images, number, 2))
    boxes = np.concatenate([low, low + g.random.randint(-2, 12, low.shape)], axis=-1)
    score = g.random.randint(-2, 9, (images, number, 1)) / 8  # some of them equal
    kind = g.random.randint(-1, 3, (images, number, 1))
    rows = g.input(images, number, 6, dtype="float32")
    rows.value = mx.nd.array(np.concatenate([kind, score, boxes], axis=-1))
    return [rows], {
        "overlap_thresh": g.among([0.0, 0.25, 0.5, 1.0]),
        "valid_thresh": g.among([0.0, 0.125]),
        "topk": g.among([-1, 0, 3, 100]),
        "id_index": g.among([-1, 0]),
        "background_id": g.among([-1, 1]),
        "force_suppress": g.coin(),
        "in_format": g.among(["corner", "center"]),
        "out_format": g.among(["corner", "center"]),
    }


@_maker("_contrib_MultiBoxPrior")
def _priors(g: Graph, x: Tensor) -> Call | None:
    if x.rank != 4 or not x.is_float:
        return None
    some = {
        name: tuple(g.among([0.25, 0.5, 1.0, 3.0]) for _ in range(g.size()))
        for name in ("sizes", "ratios")
    }
    if g.coin():
        some.update(steps=(0.25, 0.125), offsets=(g.number(), 0.5))
    return [x], {**some, "clip": g.coin()}


@_maker("_contrib_MultiBoxDetection")
def _multi_box(g: Graph, x: Tensor) -> Call | None:
    images, number, classes = g.size(1, 2), g.size(1, 12), g.size(2, 4)
    low = g.random.randint(0, 20, (1, number, 2)) / 32
    boxes = np.concatenate([low, low + g.random.randint(-2, 12, low.shape) / 32], axis=-1)
    scores = g.index(images, classes, number, low=-1, high=9)
    scores.value = scores.value / 8  # some of them equal
    moves = g.index(images, 4 * number, low=-1, high=1)
    moves.value = moves.value * g.among([0.0, 0.5])
    anchors = g.index(1, number, 4, low=0, high=1)
    anchors.value = mx.nd.array(boxes)
    return [scores, moves, anchors], {
        "clip": g.coin(),
        "threshold": g.among([0.0, 0.25]),
        "nms_threshold": g.among([-1.0, 0.25, 0.5, 1.0]),
        "force_suppress": g.coin(),
        "nms_topk": g.among([-1, 3, 100]),
        "background_id": g.among([0, -1]),
        "variances": g.among([(0.125, 0.125, 0.25, 0.25), (1.0, 1.0, 1.0, 1.0)]),
    }


@_maker("_contrib_MultiProposal")
def _multi_proposal(g: Graph, x: Tensor) -> Call | None:
    return _proposals(g, g.size(1, 3))


@_maker("_contrib_Proposal")
def _proposal(g: Graph, x: Tensor) -> Call | None:
    return _proposals(g, 1)


def _proposals(g: Graph, images: int) -> Call:
    scales = tuple(g.among([1.0, 2.0, 3.5]) for _ in range(g.size(1, 2)))
    ratios = tuple(g.among([0.5, 1.0, 3.0]) for _ in range(g.size(1, 2)))
    anchors, stride = len(scales) * len(ratios), g.among([4, 16])
    height, width = g.size(), g.size()
    scores = g.index(images, 2 * anchors, height, width, low=0, high=9)
    boxes = g.index(images, 4 * anchors, height, width, low=-1, high=1)
    boxes.value = boxes.value * g.among([0.0, 0.125])
    info = g.index(images, 3, low=1, high=1)
    sizes = [[g.size(1, height) * stride, g.size(1, width) * stride, 1] for _ in range(images)]
    info.value = mx.nd.array(sizes)
    return [scores, boxes, info], {
        "scales": scales,
        "ratios": ratios,
        "feature_stride": stride,
        "rpn_pre_nms_top_n": g.among([-1, 5, 6000]),
        "rpn_post_nms_top_n": g.size(1, 9),
        "threshold": g.among([0.0, 0.3, 0.7, 1.0]),
        "rpn_min_size": g.among([0, 4, 16]),
        "output_score": g.coin(),
        "iou_loss": g.coin(0.3),
    }


# ---- Runs ----------------------------------------------------------------------------------------


def check(seed: int, path: Path) -> str:
    """What differs in the graph of a number, one line, or nothing."""
    made = graph(seed)
    if not made.calls:
        return ""
    try:
        inputs = made.export(path)
        found = run(path, *(t.value.asnumpy() for t in inputs))
    except Exception as error:  # whatever it is, it is a difference
        if "NOT_IMPLEMENTED" in str(error):  # of onnxruntime, which has few operators in float64
            return ""
        return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return made.compare(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(arguments.seed, arguments.seed + arguments.graphs):
            difference = check(seed, Path(folder) / "model.onnx")
            if difference:
                failed += 1
                print(f"{seed}: {difference}", *graph(seed).calls, sep="\n    ", flush=True)
    print(f"{failed} of {arguments.graphs} graphs differ")


if __name__ == "__main__":
    main()
