# SPDX-License-Identifier: Apache-2.0
"""An ONNX graph under construction, and an MXNet node to be translated into it."""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..bridge.symbol_json import without_longs

OPSET = 16  # the version of ONNX's operators
PRODUCER = "gluon_roi"  # the name of this package in the files that it writes
#: Attributes that any node may have and that have no effect in ONNX.
_IRRELEVANT = {"workspace", "cudnn_off", "cudnn_tune", "num_args", "rois_grad"}
END = int(np.iinfo(np.int64).max)  # of an axis, for Slice
#: Constants of more bytes are kept out of the ModelProto until it is saved, and onnx infers shapes
#: without their values. Smaller ones may be shapes and axes, of up to 128 numbers of int64, whose
#: values the inference needs. gluon_roi_torch/convert.py has the same limit.
_INLINE_BYTES = 1024
#: The dtypes of tensors by their names in ONNX's schemas.
_NUMBERS = {f"tensor({name.lower()})": number for name, number in onnx.TensorProto.DataType.items()}
#: Operators whose output dtype does not depend on the dtype of the inputs.
_TYPES = {
    **dict.fromkeys(("And", "Equal", "Less", "LessOrEqual", "Not", "Or", "Xor"), np.bool_),
    **dict.fromkeys(("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape"), np.int64),
}


def onnx_type(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@functools.lru_cache(maxsize=None)
def _accepted_types(op: str, number: int) -> list[set[int]]:
    """The dtypes that an operator accepts for each of `number` inputs."""
    inputs = onnx.defs.get_schema(op, OPSET).inputs
    of_each = [inputs[min(place, len(inputs) - 1)].types for place in range(number)]
    return [{_NUMBERS[name] for name in names if name in _NUMBERS} for names in of_each]


def _unary(op: str) -> Callable[[Tensor], Tensor]:
    return lambda self: self.graph(op, self)


def _binary(op: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: self.graph(op, self, self.like(other))


def _reflected(op: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda self, other: self.graph(op, self.like(other), self)


class Tensor:
    """A tensor of a graph: its methods, and Python's operators, add nodes to the graph.

    A number or an array as the other operand becomes a constant of the tensor's dtype.
    """

    __array_ufunc__ = None  # so that ``array + tensor`` is an operator of the tensor

    def __init__(self, graph: OnnxGraph, name: str, dtype: Any) -> None:
        self.graph, self.name, self.dtype = graph, name, np.dtype(dtype)

    def like(self, value: Any) -> Any:
        return value if isinstance(value, Tensor) else np.asarray(value, self.dtype)

    __add__, __matmul__ = _binary("Add"), _binary("MatMul")
    __sub__, __rsub__ = _binary("Sub"), _reflected("Sub")
    __mul__, __rmul__ = _binary("Mul"), _reflected("Mul")
    __truediv__, __rtruediv__ = _binary("Div"), _reflected("Div")
    __mod__, __rmod__ = _binary("Mod"), _reflected("Mod")
    __lt__, __le__ = _binary("Less"), _binary("LessOrEqual")
    # OpenVINO's Greater and GreaterOrEqual are true for NaN, its Less and LessOrEqual are not.
    __gt__, __ge__ = _reflected("Less"), _reflected("LessOrEqual")
    __and__, __or__, __invert__ = _binary("And"), _binary("Or"), _unary("Not")
    __neg__, abs, sign, floor, ceil = (_unary(op) for op in ("Neg", "Abs", "Sign", "Floor", "Ceil"))
    exp, log, sqrt, nonzero = (_unary(op) for op in ("Exp", "Log", "Sqrt", "NonZero"))
    equal, min, max = (_binary(op) for op in ("Equal", "Min", "Max"))

    def where(self, yes: Any, no: Any) -> Tensor:
        """`yes` where this tensor is true, `no` elsewhere; at least one of them is a tensor."""
        tensor = yes if isinstance(yes, Tensor) else no
        return self.graph("Where", self, tensor.like(yes), tensor.like(no))

    def clip(self, low: Any, high: Any) -> Tensor:
        return self.graph("Clip", self, self.like(low), self.like(high))

    def cast(self, dtype: Any) -> Tensor:
        return self.graph("Cast", self, to=onnx_type(dtype))

    def sum(self, *axes: int) -> Tensor:
        """Sum over these axes, which are removed."""
        return self.graph("ReduceSum", self, np.array(axes), keepdims=0)

    # ---- Sizes and shapes ----

    def shape(self, begin: int = 0, end: int | None = None) -> Tensor:
        """Sizes of the axes [begin, end), a vector of int64."""
        attributes = {} if end is None else {"end": end}
        return self.graph("Shape", self, start=begin, **attributes)

    def size(self, axis: int) -> Tensor:
        """The size of an axis, a vector of one element."""
        return self.shape(axis, axis + 1)

    def reshape(self, *sizes: Any) -> Tensor:
        """Reshape to sizes as in :func:`concat_sizes`."""
        return self.graph("Reshape", self, concat_sizes(*sizes))

    def reshape_exactly(self, sizes: Any) -> Tensor:
        """Reshape to a vector of sizes without -1, in which 0 is a size."""
        return self.graph("Reshape", self, sizes, allowzero=1)

    def expand(self, *sizes: Any) -> Tensor:
        """Broadcast to sizes as in :func:`concat_sizes`, or to one vector of them."""
        return self.graph("Expand", self, concat_sizes(*sizes) if len(sizes) > 1 else sizes[0])

    def flatten(self, **axis: int) -> Tensor:
        return self.graph("Flatten", self, **axis)

    def squeeze(self, *axes: int) -> Tensor:
        return self.graph("Squeeze", self, np.array(axes))

    def unsqueeze(self, *axes: int) -> Tensor:
        return self.graph("Unsqueeze", self, np.array(axes))

    def scalar(self) -> Tensor:
        """Turn a vector of one element into a scalar."""
        return self.squeeze(0)

    def numbers(self) -> Tensor:
        """0, 1, ... up to but not including this vector of one element."""
        return self.graph("Range", np.array(0), self.scalar(), np.array(1))

    def transpose(self, *order: int) -> Tensor:
        return self.graph("Transpose", self, perm=order)

    # ---- Parts ----

    def gather(self, index: Any, **axis: int) -> Tensor:
        return self.graph("Gather", self, index, **axis)

    def split(self, number: int, axis: int) -> list[Tensor]:
        """Split an axis into parts of size 1."""
        return self.graph("Split", self, np.ones(number, np.int64), axis=axis, outputs=number)

    def columns(self, begin: int, end: int, axis: int = -1) -> Tensor:
        return self.graph("Slice", self, np.array([begin]), np.array([end]), np.array([axis]))

    def column(self, index: int, axis: int = -1) -> Tensor:
        return self.columns(index, index + 1, axis)


def concat(*parts: Any, axis: int) -> Tensor:
    """Concatenate tensors and arrays; at least one of them is a tensor."""
    graph = next(part.graph for part in parts if isinstance(part, Tensor))
    return graph("Concat", *parts, axis=axis)


def concat_sizes(*sizes: Any) -> Any:
    """Concatenate vectors and numbers to a vector of int64; without tensors, an array."""
    if all(isinstance(size, int) for size in sizes):
        return np.array(sizes, np.int64)
    return concat(*(np.array([s]) if isinstance(s, int) else s for s in sizes), axis=0)


class OnnxGraph:
    """Collects nodes and constants.

    ``graph("Add", a, b)`` adds a node and returns its output. An input is a tensor, an array (which
    becomes a constant), or None for an optional input that is not given.
    """

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}
        self._node = Node("", "", {}, [], [])  # the node that is being translated
        self._names: set[str] = {""}
        self._unnamed: dict[tuple, Tensor] = {}  # constants by their type, shape and bytes

    @contextlib.contextmanager
    def translating(self, node: Node) -> Iterator[None]:
        """Context manager: new nodes are named after a node of MXNet, and errors contain its name.

        Python's operators add nodes as well, and ``a + b`` has no argument for the node.
        """
        before, self._node = self._node, node
        try:
            yield
        finally:
            self._node = before

    def unique(self, name: str) -> str:
        """A unique name for a tensor: `name` itself if it is not used."""
        unused, number = name, 0
        while unused in self._names:
            number += 1
            unused = f"{name}_{number}"
        self._names.add(unused)
        return unused

    def reserve(self, names: Iterable[str]) -> None:
        """Reserve names for inputs and outputs, so that no other tensor gets them."""
        self._names.update(names)

    def constant(self, value: Any, name: str | None = None) -> Tensor:
        array = np.asarray(value)
        if name is not None:
            name = self.unique(name)
            self.constants[name] = array
            return Tensor(self, name, array.dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._unnamed:
            self._unnamed[key] = self.constant(array, "constant")
        return self._unnamed[key]

    def constant_for(self, name: str, value: np.ndarray) -> str:
        """The name of a constant that replaces a tensor; a weight keeps the tensor's name."""
        if value.nbytes <= _INLINE_BYTES:
            return self.constant(value).name
        self.constants[name] = value
        return name

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node, and return its output, or a list of outputs if `outputs` is above 1."""
        tensors: list[Any] = [
            value if value is None or isinstance(value, Tensor) else self.constant(value)
            for value in inputs
        ]
        names = ["" if tensor is None else tensor.name for tensor in tensors]
        for tensor, accepted in zip(tensors, _accepted_types(op, len(tensors))):
            if tensor is not None and onnx_type(tensor.dtype) not in accepted:
                raise self._node.refusal(f"{tensor.dtype} data have no translation")
        made = [self.unique(f"{self._node.name}/{op}") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, names, made, name=made[0], **attributes))
        if op == "Cast":
            types: list[Any] = [helper.tensor_dtype_to_np_dtype(attributes["to"])]
        else:
            types = [_TYPES.get(op) or tensors[op == "Where"].dtype]
        types = [*types, np.int64] if op == "TopK" else types * outputs
        found = [Tensor(self, name, dtype) for name, dtype in zip(made, types)]
        return found if outputs > 1 else found[0]

    # ---- The model ----

    def prune(self, outputs: Iterable[str]) -> set[str]:
        """Remove nodes that these tensors do not depend on; return the remaining tensors."""
        needed = set(outputs)
        kept = []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(node.input)
                kept.append(node)
        self.nodes = kept[::-1]
        return needed

    def model(
        self, inputs: Sequence, outputs: Sequence
    ) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """A model without its large constants, and these; nodes that no output needs are removed.

        Parameters
        ----------
        inputs, outputs : sequence of (name, dtype, shape)
            For outputs, the name is a pair: the tensor's name, and the output's.
        """
        ends = [
            helper.make_node("Identity", [tensor], [name], name=name)
            for (tensor, name), *_ in outputs
            if tensor != name
        ]
        needed = self.prune(tensor for (tensor, _), *_ in outputs)
        constants = {name: value for name, value in self.constants.items() if name in needed}
        large = {name: value for name, value in constants.items() if value.nbytes > _INLINE_BYTES}
        tensors = [
            numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
            for name, value in constants.items()
            if name not in large
        ]
        graph = helper.make_graph(
            self.nodes + ends,
            PRODUCER,
            [helper.make_tensor_value_info(n, onnx_type(t), s) for n, t, s in inputs],
            [helper.make_tensor_value_info(n, onnx_type(t), s) for (_, n), t, s in outputs],
            tensors,
        )
        model = helper.make_model(
            graph,
            producer_name=PRODUCER,
            opset_imports=[helper.make_opsetid("", OPSET)],
        )
        model.ir_version = 8  # the version of opset 16; older runtimes reject newer versions
        return model, large


class Node:
    """A node of an MXNet graph.

    Attributes
    ----------
    op, name : str
    inputs : list of Tensor
    shapes, dtypes : list
        Shapes and types of the inputs.
    static_shapes : list
        Shapes of the inputs, with None for dynamic sizes.
    trials, out_trials : list
        For each input and output, its shapes for several sizes of the dynamic axes of the model.
    out_shapes, out_dtypes : list
        Shapes and types of the visible outputs.
    out_sizes : list
        Sizes of the output of a node without inputs: int, Tensor, or None if it has no translation.
    """

    def __init__(self, op: str, name: str, attributes: dict, inputs: list, outputs: list) -> None:
        self.op, self.name = op, name
        self.inputs = [entry.tensor for entry in inputs]
        self.shapes = [entry.shape for entry in inputs]
        self.static_shapes = [entry.static_shape for entry in inputs]
        self.trials = [entry.trials for entry in inputs]
        self.dtypes = [entry.dtype for entry in inputs]
        self.out_shapes = [entry.shape for entry in outputs]
        self.out_trials = [entry.trials for entry in outputs]
        self.out_dtypes = [entry.dtype for entry in outputs]
        self.out_sizes: list[Any] = []
        self._attributes = {k: v for k, v in attributes.items() if not k.startswith("__")}
        self._unread = set(self._attributes) - _IRRELEVANT

    @property
    def dtype(self) -> np.dtype:
        return self.dtypes[0]

    @property
    def rank(self) -> int:
        """Rank of the first input."""
        return len(self.shapes[0])

    def static_size(self, axis: int, place: int = 0) -> int:
        """The size of an axis of an input as a number; reject the node if it is dynamic.

        A size that no trial changes is static here. (NodeOutput.static_shape is more careful where
        a dynamic axis has no other size in any trial.)
        """
        return self._static_size(
            self.trials[place], axis, "data" if place == 0 else f"input {place}"
        )

    def static_out_size(self, axis: int) -> int:
        """The same of the first output."""
        return self._static_size(self.out_trials[0], axis, "output")

    def _static_size(self, trials: Sequence[tuple], axis: int, what: str) -> int:
        if len({shape[axis] for shape in trials}) > 1:
            raise self.refusal(
                f"axis {axis % len(trials[0])} of the {what} is dynamic, expected a static one"
            )
        return int(trials[0][axis])

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute as a Python value, or a string if it is not a literal."""
        self._unread.discard(name)
        if name not in self._attributes:
            return default
        text = self._attributes[name]
        try:
            return ast.literal_eval(without_longs(text))
        except (ValueError, SyntaxError):
            return {"true": True, "false": False}.get(text.lower(), text)

    def sizes(self, name: str, default: tuple = ()) -> tuple:
        """An attribute, a number or a tuple, as a tuple; `default` if it is None or not given."""
        value = self.get(name)
        if value is None:
            return default
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def axis(self, name: str = "axis", default: Any = None, rank: int | None = None) -> int:
        """An axis, counted from the first."""
        return self._normalize_axis(
            name, self.get(name, default), self.rank if rank is None else rank
        )

    def axes(self, name: str = "axis") -> list[int]:
        """Axes of the first input, counted from the first; empty if the attribute is not given."""
        return [self._normalize_axis(name, axis, self.rank) for axis in self.sizes(name)]

    def _normalize_axis(self, name: str, axis: Any, rank: int) -> int:
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise self.refusal(f"{name}={axis}: expected an axis of {rank}")
        return axis % rank

    def ignore(self, *names: str) -> None:
        """Ignore attributes that have no effect in ONNX; `check_all_read` would reject them."""
        self._unread.difference_update(names)

    def expect(self, name: str, *allowed: Any) -> None:
        """Reject an attribute unless it has one of these values; the first is the default."""
        value = self.get(name, allowed[0])
        if value not in allowed:
            raise self.refusal(f"{name}={value} has no translation")

    def expect_floats(self) -> None:
        """Reject a node whose first input is not floating point."""
        if self.dtype.kind != "f":
            raise self.refusal(f"{self.dtype} data have no translation")

    def expect_equal_sizes(self, axis: int, *places: int, other_axis: int = 0) -> None:
        """Reject a node unless an axis of the first input has the size of an axis of other inputs.

        For operators that do not compare them in MXNet, and read beyond the smaller array.
        """
        for place in places:
            name, needed = self.inputs[place].name, self.shapes[place][other_axis]
            if self.shapes[0][axis] != needed:
                raise self.refusal(
                    f"axis {axis} of the data has size {self.shapes[0][axis]}, expected {needed}, "
                    f"the size of {name}"
                )
            word, other = (
                "dynamic" if len({shape[n] for shape in self.trials[m]}) > 1 else "static"
                for m, n in ((0, axis), (place, other_axis))
            )
            if word != other:
                raise self.refusal(
                    f"axis {axis} of the data is {word}, but {name}, which must have its size, is "
                    f"{other}"
                )

    def with_inputs(self, *places: int) -> Node:
        """The same node with some of its inputs."""
        part = copy.copy(self)
        for field in ("inputs", "shapes", "static_shapes", "trials", "dtypes"):
            setattr(part, field, [getattr(self, field)[place] for place in places])
        return part

    def check_all_read(self) -> None:
        """Reject attributes that the translation has not read."""
        if self._unread:
            name = min(self._unread)
            raise self.refusal(f"attribute {name}={self._attributes[name]} has no translation")

    def refusal(self, reason: str) -> NotImplementedError:
        return NotImplementedError(f"onnx.export: node {self.name} ({self.op}): {reason}")
