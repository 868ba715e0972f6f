# SPDX-License-Identifier: Apache-2.0
"""Graphs of MXNet's operators that grow call by call; MXNet runs each call as it is made.

A graph can be run again with inputs of other sizes, as long as MXNet takes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Optional, Tuple

import mxnet as mx
import numpy as np

import gluon_roi

Call = Tuple[list, dict]  # tensors and attributes
Maker = Callable[["Graph", "Tensor"], Optional[Call]]
#: Name of an operator in graphs -> what draws a call of it on a tensor, or None if it takes none.
MAKERS: dict[str, Maker] = {}

#: Results of these jump, or change steeply, where their input is rounded otherwise: they get exact
#: inputs alone.
JUMPS = {
    *("ceil", "floor", "round", "rint", "fix", "trunc", "sign", "Cast"),
    *("tan", "sqrt", "log", "log2", "rsqrt", "reciprocal", "_power", "_power_scalar"),
    *("broadcast_power", "_rdiv_scalar", "arccos", "arcsin"),
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

#: MXNet 1.9.1 ends the process if an axis of these has size 0.
CRASHES = {
    *("BatchNorm", "InstanceNorm", "SoftmaxActivation", "UpSampling", "dot", "mean", "pick"),
    *("_contrib_SyncBatchNorm", "Reshape", "Pad", "Deconvolution", "take"),
    *("GroupNorm", "SequenceMask", "depth_to_space", "space_to_depth"),
}


def _is_in_data(attributes: dict, data: np.ndarray, index: np.ndarray) -> bool:
    sizes = np.array(data.shape[: len(index)]).reshape(-1, *[1] * (index.ndim - 1))
    return len(sizes) == len(index) and bool((index < sizes).all())


def _is_on_map(attributes: dict, scores: np.ndarray, deltas: Any, info: np.ndarray) -> bool:
    sides = np.array(scores.shape[2:]) * attributes["feature_stride"]
    return bool((info[:, :2] <= sides).all())


def _divides(attributes: dict, dividend: np.ndarray, divisor: np.ndarray) -> bool:
    return dividend.dtype.kind == "f" or bool((divisor != 0).all())


def _has_channels(attributes: dict, data: np.ndarray, *states: np.ndarray) -> bool:
    return all(state.shape == (data.shape[attributes.get("axis", 1)],) for state in states)


def _has_size(attributes: dict, data: np.ndarray) -> bool:
    reshaped = mx.sym.Reshape(mx.sym.var("x"), **attributes)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # MXNet prints what does not fit
            _, ((*shape,),), _ = reshaped.infer_shape(x=data.shape)
    except (mx.MXNetError, TypeError):
        return False
    return int(np.prod(shape)) == data.size


def _can_be_reflected(attributes: dict, data: np.ndarray) -> bool:
    widths = np.reshape(attributes["pad_width"], (-1, 2)).max(axis=1)
    return attributes["mode"] != "reflect" or bool((widths < data.shape).all())


def _is_small(attributes: dict, data: np.ndarray) -> bool:
    """Whether no product of some of the numbers, in any order, is out of range."""
    return bool(np.abs(np.log2(np.abs(data[data != 0]).astype(np.float64))).sum() < 15)


def _is_inside(attributes: dict, data: np.ndarray, like: Any = None) -> bool:
    sizes = attributes["h_w"] if like is None else like.shape[2:]
    offset = attributes.get("offset", (0, 0))
    return all(o + size <= n for o, size, n in zip(offset, sizes, data.shape[2:]))


#: Whether MXNet, which does not check them, is right with these attributes and values. Otherwise it
#: may read beyond arrays, or end the process.
SAFE: dict[str, Callable[..., bool]] = {
    "gather_nd": _is_in_data,
    "Reshape": _has_size,
    "Crop": _is_inside,
    "prod": _is_small,
    "norm": lambda attributes, data: data.size < 500,  # MXNet adds the squares in float32
    "tile": lambda attributes, data: sum(rep > 1 for rep in attributes["reps"]) < 4,
    "Pad": _can_be_reflected,
    "_contrib_Proposal": _is_on_map,
    "_contrib_MultiProposal": _is_on_map,
    **dict.fromkeys(("elemwise_div", "broadcast_div"), _divides),
    "_rdiv_scalar": lambda attributes, divisor: _divides(attributes, divisor, divisor),
    **dict.fromkeys(("BatchNorm", "_contrib_SyncBatchNorm", "InstanceNorm"), _has_channels),
    "softmax": lambda attributes, data, *lengths: all(
        (length <= data.shape[attributes["axis"]]).all() for length in lengths
    ),
    "SequenceMask": lambda attributes, data, *lengths: all(
        length.shape == (data.shape[1 - attributes["axis"]],) for length in lengths
    ),
    "_contrib_box_decode": lambda _, deltas, anchors: deltas.shape[1:] == anchors.shape[1:],
    "_contrib_MultiBoxDetection": lambda _, scores, deltas, anchors: len(scores) == len(deltas),
}
#: onnxruntime refuses to sample or to pool a map without cells.
NEEDS_CELLS = {
    *("BilinearSampler", "_contrib_BilinearResize2D", "Pooling", "_contrib_AdaptiveAvgPooling2D"),
    *("_contrib_DeformableConvolution", "_contrib_ModulatedDeformableConvolution"),
}
#: At times a normalisation follows, which may become part of them.
LAYERS = {"Convolution", "Deconvolution", "FullyConnected"}

#: Drawn integers of these are smaller in absolute value.
LIMITS = {"uint8": 49, "int8": 49, "bool": 2}

TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-6}


@dataclass(eq=False)
class Tensor:
    """A tensor of the graph, for MXNet's arrays and symbols."""

    symbol: Any
    value: Any
    exact: bool  # no runtime can round it otherwise
    tolerance: float  # relative to the greatest element, or to 1
    values: Callable | None = None  # of an input: its values as a function of the shape

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


class Step(NamedTuple):
    """A call of an operator, and its results."""

    op: str
    tensors: list[Tensor]
    attributes: dict
    results: list[Tensor]


class Resized:
    """Tensors of a graph with other sizes, by those of the graph; the others are the same."""

    def __init__(self, replaced: dict[Tensor, Tensor]) -> None:
        self._replaced = replaced

    def all(self, tensors: list[Tensor]) -> list[Tensor]:
        return [self._replaced.get(tensor, tensor) for tensor in tensors]


@dataclass
class Graph:
    """A graph in the making."""

    random: np.random.RandomState
    dtype: str = "float32"
    smallest: int = 1  # size of an axis; 0 only where MXNet has zero sizes
    inputs: list[Tensor] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)  # results that the model returns
    dynamic: list[tuple[int, ...]] = field(default_factory=list)  # axes of each input of the model
    readers: list[tuple[str, Tensor]] = field(default_factory=list)  # operators and first inputs

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
        return int(self.random.randint(-rank, rank)) if rank else 0

    def axes(self, rank: int) -> tuple[int, ...]:
        """Some axes, each counted from either end."""
        chosen = self.random.permutation(rank)[: self.size(1, max(rank, 1))]
        return tuple(int(axis) - rank * self.coin(0.3) for axis in chosen)

    def number(self) -> float:
        """A number that float16 has."""
        return float(self.random.randint(-24, 25)) / 8

    # ---- Tensors ----

    def input(self, *shape: int, dtype: str | None = None, low: int = -24) -> Tensor:
        """A further input: eighths or finer, or integers; none twice if there are enough."""
        dtype = dtype or self.dtype
        is_float = dtype.startswith("float")
        low = 0 if dtype in ("uint8", "bool") else low

        def values(shape: tuple) -> np.ndarray:
            count = int(np.prod(shape))
            if count <= 25 - low:
                drawn = low + self.random.permutation(49 if low < 0 else 25)[:count]
            else:
                drawn = self.random.permutation(count) - (count // 2 if low < 0 else -low)
            drawn = np.asarray(drawn).reshape(shape)
            if not is_float:
                return np.fmod(drawn, LIMITS.get(dtype, count + 49))
            return drawn / 2 ** (3 + max(count // 50, 1).bit_length() - 1)  # small if many

        return self.made(values, *shape, dtype=dtype)

    def scaled(self, factor: float, *shape: int, dtype: str) -> Tensor:
        """A further input, whose values are those of `input` times a factor."""
        tensor = self.input(*shape, dtype=dtype)
        values = tensor.values
        assert values is not None
        tensor.values = lambda shape: values(shape) * factor
        tensor.value = tensor.value * factor
        return tensor

    def index(self, *shape: int, low: int, high: int, dtype: str = "float32") -> Tensor:
        """A further input of whole numbers in [low, high]."""
        return self.made(
            lambda shape: self.random.randint(low, high + 1, shape), *shape, dtype=dtype
        )

    def made(self, values: Callable, *shape: int, dtype: str = "float32") -> Tensor:
        """A further input, whose values are a function of its shape."""
        symbol = mx.sym.var(f"x{len(self.inputs)}", shape=shape)
        value = mx.nd.array(np.asarray(values(shape)), dtype=dtype)
        tensor = Tensor(symbol, value, True, TOLERANCE.get(dtype, 0), values)
        self.inputs.append(tensor)
        return tensor

    def index_type(self) -> str:
        return self.among(["float32", "float32", "int32", "int64"])

    def partner(self, x: Tensor) -> Tensor:
        """A tensor of the same shape and type, made before or not."""
        same = [t for t in self.tensors() if (t.shape, t.dtype) == (x.shape, x.dtype)]
        return self.among(same) if self.coin() else self.input(*x.shape, dtype=x.dtype)

    def has_small_integers(self) -> bool:
        """Whether a type has less than 32 bits, and is not a float."""
        return any(t.dtype in LIMITS for t in self.tensors())

    def tensors(self) -> list[Tensor]:
        return self.inputs + self.results

    # ---- Growth ----

    def grow(self, op: str, x: Tensor | None = None) -> bool:
        """Add a call of an operator, if one is found that MXNet takes.

        At times its first input is that of an earlier call of the operator, so that nodes differ
        by their attributes only.
        """
        if op in {*CRASHES, *NEEDS_CELLS} and not self.smallest:
            return False
        candidates = [t for t in self.tensors() if t.exact or op not in {*JUMPS, *ORDERS}]
        inputs = list(self.inputs)
        read = [tensor for name, tensor in self.readers if name == op]
        x = x or self.among(read if read and self.coin() else candidates)
        try:
            call = MAKERS[op](self, x)
        except (ValueError, IndexError):  # no attributes fit a scalar or a size of 0
            call = None
        if call is not None and self._call(op, *call):
            self.readers.append((op, x))
            return True
        self.inputs = inputs
        return False

    def _call(self, op: str, tensors: list, attributes: dict) -> bool:
        with mx.name.Prefix(f"n{len(self.calls)}_"):
            try:
                symbol = _function(mx.sym, op)(*(t.symbol for t in tensors), **attributes)
            except (mx.MXNetError, ValueError, TypeError):
                return False
        results = self._results(op, tensors, attributes, symbol)
        if results is None:
            return False
        self.calls.append(f"{op}({', '.join(str(t.shape) for t in tensors)}, {attributes})")
        self.steps.append(Step(op, tensors, attributes, results))
        self.results += results
        return True

    def _results(
        self, op: str, tensors: list, attributes: dict, symbol: Any
    ) -> list[Tensor] | None:
        """The results of a call; None if MXNet rejects it, or they cannot be compared."""
        exact = all(tensor.exact for tensor in tensors)
        if op in JUMPS and not exact:
            return None
        if op in ORDERS and len(np.unique(tensors[0].value.asnumpy())) < tensors[0].value.size:
            return None
        is_safe = SAFE.get(op, lambda attributes, *values: True)
        try:  # earlier calls may fail now
            if not is_safe(attributes, *(t.value.asnumpy() for t in tensors)):
                return None
            values = _function(mx.nd, op)(*(t.value for t in tensors), **attributes)
            values = values if isinstance(values, list) else [values]
            values = values[: len(symbol.list_outputs())]
            arrays = [value.asnumpy() for value in values]
        except (mx.MXNetError, ValueError, TypeError):
            with contextlib.suppress(mx.MXNetError):  # nothing of it is raised later
                mx.nd.waitall()
            return None
        if not all(np.isfinite(a).all() and np.abs(a).max(initial=0) < 1e3 for a in arrays):
            return None
        if self.smallest and not all(a.size for a in arrays):
            return None
        results = []
        for number, (value, array) in enumerate(zip(values, arrays)):
            steps = 64 if array.dtype == np.float16 else 4096  # rounded numbers have smaller ones
            same = exact and not (array.astype(np.float64) * steps % 1).any()
            tolerance = max([t.tolerance for t in tensors] + [TOLERANCE.get(array.dtype.name, 0)])
            results.append(Tensor(symbol[number], value, same, tolerance))
        return results

    # ---- Other sizes ----

    def resized(self, shapes: dict[str, tuple]) -> Resized | None:
        """The same calls with inputs of these shapes, by name; None if MXNet rejects one."""
        replaced: dict[Tensor, Tensor] = {}
        for tensor in self.inputs:
            shape = shapes.get(tensor.symbol.name, tensor.shape)
            if shape != tensor.shape:
                assert tensor.values is not None
                try:
                    values = mx.nd.array(np.asarray(tensor.values(shape)), dtype=tensor.dtype)
                except (ValueError, IndexError):  # such as a row of a box with three columns
                    return None
                if values.shape != shape:
                    return None
                replaced[tensor] = dataclasses.replace(tensor, value=values)
        for step in self.steps:
            tensors = [replaced.get(tensor, tensor) for tensor in step.tensors]
            if tensors == step.tensors:
                continue
            symbol = mx.sym.Group([result.symbol for result in step.results])
            results = self._results(step.op, tensors, step.attributes, symbol)
            if results is None:
                return None
            replaced.update(zip(step.results, results))
        return Resized(replaced)

    def _dynamic_axes(self, inputs: list[Tensor]) -> list[tuple[int, ...]]:
        """Axes of the inputs along which MXNet takes other sizes, alone or with equal sizes."""
        axes = [(t, axis) for t in inputs for axis in range(t.rank)]
        dynamic: set[tuple[Tensor, int]] = set()
        for number in self.random.permutation(len(axes))[: self.size(1, 3)]:
            tensor, axis = axes[number]
            equal = {(t, n) for t, n in axes if t.shape[n] == tensor.shape[axis]}
            for group in ({(tensor, axis)}, equal):
                if self.resized(self._shapes(dynamic | group, lambda size: size + 2)) is not None:
                    dynamic |= group
                    break
        return [tuple(axis for axis in range(t.rank) if (t, axis) in dynamic) for t in inputs]

    def _shapes(self, dynamic: set[tuple[Tensor, int]], change: Callable) -> dict[str, tuple]:
        """Shapes of the inputs by name, with other sizes along the dynamic axes."""
        return {
            t.symbol.name: tuple(
                change(size) if (t, axis) in dynamic else size for axis, size in enumerate(t.shape)
            )
            for t, _ in dynamic
        }

    # ---- The export ----

    def export(self, path: Path) -> list[Tensor]:
        """Write a model that returns most results; gives the inputs that it has.

        At times the inputs behind the first two are parameters. Then constants are computed, and
        normalisations become part of layers.
        """
        self.outputs = [r for r in self.results if self.coin(0.8)] or self.results[-1:]
        symbol = mx.sym.Group([result.symbol for result in self.outputs])
        stored = self.inputs[2:] if self.coin(0.4) else []
        params = {t.symbol.name: t.value for t in stored}
        used = {t.symbol.name: t for t in self.inputs}
        inputs = [used[name] for name in symbol.list_inputs() if name not in params]
        with mx.util.np_shape(not self.smallest):
            if self.coin(0.7):
                self.dynamic = self._dynamic_axes(inputs)
            elif self.coin(0.3):
                self.dynamic = [tuple(range(t.rank)) if self.coin(0.2) else () for t in inputs]
            gluon_roi.onnx.export(
                symbol,
                [t.shape for t in inputs],
                path,
                params,
                input_types=[t.dtype for t in inputs],
                dynamic=self.dynamic or None,
            )
        return inputs

    def other_sizes(self, inputs: list[Tensor]) -> Iterator[Resized]:
        """The graph with other sizes along the dynamic axes."""
        dynamic = {(t, axis) for t, axes in zip(inputs, self.dynamic) for axis in axes}
        sizes = sorted({t.shape[axis] for t, axis in dynamic})
        changes: list[Callable] = [lambda size: 2 * size + 3, lambda size: max(size - 1, 1)]
        drawn = {size: self.size(1, 9) for size in sizes}
        changes.append(lambda size: drawn[size])
        for change in changes:
            if dynamic:
                with mx.util.np_shape(not self.smallest):
                    found = self.resized(self._shapes(dynamic, change))
                if found is not None:
                    yield found

    def compare(self, found: list, resized: Resized | None = None) -> str:
        """What differs, one line, or nothing."""
        if len(found) != len(self.outputs):
            return f"{len(found)} outputs, not {len(self.outputs)}"
        expected_outputs = resized.all(self.outputs) if resized else self.outputs
        for number, (ours, theirs) in enumerate(zip(found, expected_outputs)):
            expected = theirs.value.asnumpy()
            ours = np.asarray(ours)
            if (ours.dtype, ours.shape) != (expected.dtype, expected.shape):
                return f"{number}: {ours.dtype} {ours.shape}, not {expected.dtype} {expected.shape}"
            a, b = ours.astype(np.float64), expected.astype(np.float64)
            off = np.abs(a - b)
            if not (off <= theirs.tolerance * max(1, np.abs(b).max(initial=0))).all():
                return f"{number}: off by {off.max():.3g}"
        return ""


def graph(seed: int, nodes: int = 6, zero_sizes: bool = True) -> Graph:
    """The graph of a number, at times with sizes of 0."""
    random = np.random.RandomState(seed)
    made = Graph(random, smallest=int(random.rand() >= 0.1 or not zero_sizes))
    if made.coin(0.3):
        made.dtype = made.among(["float64", "float16", "int32", "uint8", "int8", "bool"])
    with mx.util.np_shape(not made.smallest):
        _grow(made, seed, nodes)
    return made


def _grow(made: Graph, seed: int, nodes: int) -> None:
    # The first operator goes by the number, so that each has its turn.
    names = sorted(MAKERS)
    tries, wanted = 0, names[seed % len(names)]
    for _ in range(30):
        made.inputs.clear()
        for _ in range(2):
            rank = made.among([1, 2, 2, 3, 3, 4, 4, 4, 5, *[0] * (not made.smallest)])
            made.input(*(made.size(made.smallest, 5) for _ in range(rank)))
        if made.grow(wanted):
            break
    if wanted in LAYERS and made.results and made.coin():
        made.grow("BatchNorm", made.results[0])
    while len(made.calls) < nodes and tries < 50:
        if made.grow(wanted) or made.coin(0.2):
            readers = [name for name, _ in made.readers]
            wanted = made.among(readers if readers and made.coin(0.25) else names)
        tries += 1


def _function(namespace: Any, op: str) -> Callable:
    """The function of an operator by its name in graphs."""
    for prefix in ("contrib", "linalg"):
        if op.startswith(f"_{prefix}_"):
            return getattr(getattr(namespace, prefix), op[len(prefix) + 2 :])
    return getattr(namespace._internal if op.startswith("_") else namespace, op)


def maker(*names: str) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        MAKERS.update((name, function) for name in names)
        return function

    return register
