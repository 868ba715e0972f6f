# SPDX-License-Identifier: Apache-2.0
"""Graphs of MXNet's operators that grow call by call; MXNet runs each call as it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Optional, Tuple

import mxnet as mx
import numpy as np

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

#: MXNet 1.9.1 ends the process if an axis of these has size 0.
CRASHES = {
    *("BatchNorm", "InstanceNorm", "SoftmaxActivation", "UpSampling", "dot", "mean", "pick"),
    *("_contrib_SyncBatchNorm", "Reshape", "Pad", "Deconvolution", "take"),
    "GroupNorm",
}
#: onnxruntime refuses to sample or to pool a map without cells.
NEEDS_CELLS = {
    *("BilinearSampler", "_contrib_BilinearResize2D", "Pooling", "_contrib_AdaptiveAvgPooling2D"),
    *("_contrib_DeformableConvolution", "_contrib_ModulatedDeformableConvolution"),
}
#: At times a normalisation follows, which may become part of them.
LAYERS = {"Convolution", "Deconvolution", "FullyConnected"}

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
    smallest: int = 1  # size of an axis; 0 only where MXNet has zero sizes
    inputs: list[Tensor] = field(default_factory=list)
    results: list[Tensor] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)  # results that the model returns
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
        """A further input: eighths or integers, none twice as long as there are enough."""
        dtype = dtype or self.dtype
        count = int(np.prod(shape))
        if count <= 25 - low:
            values = low + self.random.permutation(49 if low < 0 else 25)[:count]
        else:
            values = self.random.permutation(count) - (count // 2 if low < 0 else -low)
        scale = 8 if dtype.startswith("float") else 1
        value = mx.nd.array(np.asarray(values).reshape(shape) / scale, dtype=dtype)
        symbol = mx.sym.var(f"x{len(self.inputs)}", shape=shape)
        tensor = Tensor(symbol, value, True, TOLERANCE.get(np.dtype(value.dtype).name, 0))
        self.inputs.append(tensor)
        return tensor

    def index(self, *shape: int, low: int, high: int, dtype: str = "float32") -> Tensor:
        """A further input of whole numbers in [low, high]."""
        tensor = self.input(*shape, dtype=dtype)
        tensor.value = mx.nd.array(self.random.randint(low, high + 1, shape), dtype=dtype)
        return tensor

    def index_type(self) -> str:
        return self.among(["float32", "float32", "int32", "int64"])

    def partner(self, x: Tensor) -> Tensor:
        """A tensor of the same shape and type, made before or not."""
        same = [t for t in self.tensors() if (t.shape, t.dtype) == (x.shape, x.dtype)]
        return self.among(same) if self.coin() else self.input(*x.shape, dtype=x.dtype)

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
        if not all(np.isfinite(a).all() and np.abs(a).max(initial=0) < 1e3 for a in arrays):
            return False
        if self.smallest and not all(a.size for a in arrays):
            return False
        self.calls.append(f"{op}({', '.join(str(t.shape) for t in tensors)}, {attributes})")
        for number, (value, array) in enumerate(zip(values, arrays)):
            steps = 64 if array.dtype == np.float16 else 4096  # rounded numbers have smaller ones
            same = exact and not (array.astype(np.float64) * steps % 1).any()
            tolerance = max([t.tolerance for t in tensors] + [TOLERANCE.get(array.dtype.name, 0)])
            self.results.append(Tensor(symbol[number], value, same, tolerance))
        return True

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
        free = [tuple(range(t.rank)) if self.coin(0.2) else () for t in inputs]
        with mx.util.np_shape(not self.smallest):
            gluon_roi.onnx.export(
                symbol,
                [t.shape for t in inputs],
                path,
                params,
                input_types=[t.dtype for t in inputs],
                dynamic=free if self.coin(0.3) else None,
            )
        return inputs

    def compare(self, found: list) -> str:
        """What differs, one line, or nothing."""
        if len(found) != len(self.outputs):
            return f"{len(found)} outputs, not {len(self.outputs)}"
        for number, (ours, theirs) in enumerate(zip(found, self.outputs)):
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
        made.dtype = made.among(["float64", "float16", "int32"])
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
    if op.startswith("_contrib_"):
        return getattr(namespace.contrib, op[len("_contrib_") :])
    return getattr(namespace._internal if op.startswith("_") else namespace, op)


def maker(*names: str) -> Callable[[Maker], Maker]:
    def register(function: Maker) -> Maker:
        MAKERS.update((name, function) for name in names)
        return function

    return register
