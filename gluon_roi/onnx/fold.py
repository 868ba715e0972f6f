# SPDX-License-Identifier: Apache-2.0
"""Simplifies a graph without changing its results: constants, identities, batch normalisation."""

from __future__ import annotations

import collections
import re
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from .graph import Graph

#: Operators that are computed if all inputs are constants.
_COMPUTED = {
    *("Abs", "Add", "And", "Cast", "Concat", "Div", "Equal", "Expand", "Flatten", "Floor"),
    *("Gather", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg"),
    *("Not", "Or", "Range", "ReduceProd", "Reshape", "Slice", "Split", "Sqrt", "Squeeze"),
    *("Sub", "Tile", "Transpose", "Unsqueeze", "Where"),
}
#: Constants may replace smaller ones up to this number of bytes.
_GROWTH = 1 << 16
#: Operators that only change the shape, and keep the order of the numbers.
_RESHAPES = {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}
#: Operators with a weight and a bias, which can take up a BatchNormalization.
_LAYERS = {"Conv", "ConvTranspose", "Gemm"}


class Kind(NamedTuple):
    """Type and shape of a tensor, with None for sizes that may vary."""

    dtype: np.dtype
    shape: tuple


def kinds(model: onnx.ModelProto) -> dict[str, Kind]:
    """The tensors of a model whose shapes have been inferred."""
    graph, found = model.graph, {}
    for value in (*graph.input, *graph.value_info):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            shape = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            found[value.name] = Kind(np.dtype(dtype), tuple(shape))
    return found


def fold(graph: Graph, outputs: list, known: dict[str, Kind]) -> list:
    """Simplify a graph in place, and return its outputs, as for :meth:`Graph.model`."""
    folding = _Folding(graph, known)
    for node in graph.nodes:
        folding.add(node)
    outputs = [((folding.same(tensor), name), *kind) for (tensor, name), *kind in outputs]
    graph.nodes = folding.nodes
    graph.prune(tensor for (tensor, _), *_ in outputs)
    _fold_batch_norms(graph, [tensor for (tensor, _), *_ in outputs])
    return _named(graph, outputs)


class _Folding:
    """One walk through the nodes of a graph, in their order."""

    def __init__(self, graph: Graph, known: dict[str, Kind]) -> None:
        self.graph, self.known = graph, known
        self.nodes: list[onnx.NodeProto] = []
        self._same: dict[str, str] = {}  # tensors that are others
        self._makers: dict[str, onnx.NodeProto] = {}
        self._seen: dict[tuple, onnx.NodeProto] = {}

    def same(self, tensor: str) -> str:
        """The tensor that replaces this one."""
        return self._same.get(tensor, tensor)

    def add(self, node: onnx.NodeProto) -> None:
        node.input[:] = map(self.same, node.input)
        self._skip_makers(node)
        values = self._computed(node)
        if values is not None:
            for name, value in zip(node.output, values):
                self._same[name] = self.graph.folded(name, value)
            return
        original = self._original(node)
        if original is not None:
            self._same[node.output[0]] = original
            return
        attributes = sorted(a.SerializeToString() for a in node.attribute)
        key = (node.op_type, *node.input, None, *attributes)
        if key in self._seen:
            self._same.update(zip(node.output, self._seen[key].output))
            return
        self._seen[key] = node
        self._makers.update((name, node) for name in node.output)
        self.nodes.append(node)

    def _constant(self, tensor: str) -> np.ndarray | None:
        return self.graph.constants.get(tensor)

    def _kind(self, tensor: str) -> Kind | None:
        value = self._constant(tensor)
        return self.known.get(tensor) if value is None else Kind(value.dtype, value.shape)

    def _skip_makers(self, node: onnx.NodeProto) -> None:
        """Read the input of the node before, if what that does has no effect on this one."""
        while node.op_type in ("Cast", "Reshape", "Transpose") and node.input[0] in self._makers:
            before = self._makers[node.input[0]]
            if node.op_type == "Reshape":
                sizes = self._constant(node.input[1])
                if before.op_type not in _RESHAPES or sizes is None or 0 in sizes:
                    return
            elif node.op_type != before.op_type:
                return
            elif node.op_type == "Transpose":
                first, then = (helper.get_node_attr_value(n, "perm") for n in (before, node))
                node.attribute[0].CopyFrom(helper.make_attribute("perm", [first[n] for n in then]))
            elif not self._is_exact(before):
                return
            node.input[0] = before.input[0]

    def _is_exact(self, cast: onnx.NodeProto) -> bool:
        """Whether a Cast keeps every number of its input."""
        given = self._kind(cast.input[0])
        if given is None:
            return False
        wider = _target(cast)
        plain = given.dtype.kind == "b" or given.dtype.kind == wider.kind
        return plain and np.can_cast(given.dtype, wider, "safe")

    def _original(self, node: onnx.NodeProto) -> str | None:
        """The tensor that the output of a node equals, if there is one."""
        source = node.input[0] if node.input else ""
        if node.op_type == "Identity":
            return source
        if node.op_type == "Transpose":
            order = helper.get_node_attr_value(node, "perm")
            return source if list(order) == sorted(order) else None
        given = self._kind(source)
        if node.op_type == "Cast":
            return source if given is not None and given.dtype == _target(node) else None
        made = self.known.get(node.output[0])
        if made is None:
            return None
        if node.op_type == "Expand":
            return source if given == made and None not in made.shape else None
        while node.op_type in _RESHAPES and made.shape.count(None) <= 1:
            if self._kind(source) == made:
                return source
            before = self._makers.get(source)
            if before is None or before.op_type not in _RESHAPES:
                break
            source = before.input[0]
        return None

    def _computed(self, node: onnx.NodeProto) -> list[np.ndarray] | None:
        """The outputs of a node if they are constants."""
        if node.op_type == "Shape":
            given = self._kind(node.input[0])
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            sizes = given and given.shape[attributes.get("start", 0) : attributes.get("end")]
            return None if sizes is None or None in sizes else [np.array(sizes, np.int64)]
        found = {name: self._constant(name) for name in node.input}
        inputs = {name: value for name, value in found.items() if value is not None}
        if node.op_type not in _COMPUTED or len(inputs) < len(found):
            return None
        if node.op_type == "Div" and any((value < 0).any() for value in inputs.values()):
            return None  # quotients of integers are rounded to 0, here and not there
        values = _run(self.graph.opset, node, inputs)
        limit = max(_GROWTH, sum(value.nbytes for value in inputs.values()))
        return values if sum(value.nbytes for value in values) <= limit else None


def _run(opset: int, node: onnx.NodeProto, inputs: dict[str, Any]) -> list[np.ndarray]:
    """The outputs of a node whose inputs are constants."""
    opsets = [helper.make_opsetid("", opset)]
    whole = helper.make_function("", "fold", list(inputs), node.output, [node], opsets)
    return [np.asarray(value) for value in ReferenceEvaluator(whole).run(None, inputs, {})]


def _target(cast: onnx.NodeProto) -> np.dtype:
    return np.dtype(helper.tensor_dtype_to_np_dtype(helper.get_node_attr_value(cast, "to")))


# ---- Batch normalisation -------------------------------------------------------------------------


def _fold_batch_norms(graph: Graph, outputs: list[str]) -> None:
    """Multiply weights by the scales of the BatchNormalization that alone reads their layer."""
    users = collections.Counter(outputs)
    for node in graph.nodes:
        users.update(node.input)
    makers = {name: node for node in graph.nodes for name in node.output}
    kept = []
    for node in graph.nodes:
        layer = makers.get(node.input[0]) if node.op_type == "BatchNormalization" else None
        parts = _parts(graph, layer, node) if layer and users[layer.output[0]] == 1 else None
        if layer is None or parts is None:
            kept.append(node)
            continue
        if len(layer.input) == 2:
            bias = re.sub("(_weight)?$", "_bias", layer.input[1], count=1)
            layer.input.append(graph.constant(parts[1], bias).name)
            users[layer.input[2]] = 1
        layer.input[1:] = [
            _replaced(graph, name, value, users) for name, value in zip(layer.input[1:], parts)
        ]
        layer.output[0] = node.output[0]
        makers[node.output[0]] = layer
    graph.nodes = kept


def _replaced(graph: Graph, name: str, value: np.ndarray, users: collections.Counter) -> str:
    """The name of a constant with a new value: the old one, if nothing else reads it."""
    if users[name] != 1:
        name = graph.constant(value, name).name
        users[name] = 1
    graph.constants[name] = value
    return name


def _parts(graph: Graph, layer: onnx.NodeProto, norm: onnx.NodeProto) -> list[np.ndarray] | None:
    """Weight and bias of a layer with its normalisation; None if they are not as accurate."""
    names = [*layer.input[1:], *norm.input[1:]]
    if layer.op_type not in _LAYERS or not graph.constants.keys() >= set(names):
        return None
    weight, *bias = (graph.constants[name] for name in layer.input[1:])
    gamma, beta, mean, variance = (
        graph.constants[name].astype(np.float64) for name in norm.input[1:]
    )
    # As (groups, inputs, outputs of a group, kernel cells), with one output in each group but for
    # ConvTranspose.
    apart = (len(gamma), 1, 1, weight[0].size)
    if layer.op_type == "ConvTranspose":
        groups = helper.get_node_attr_value(layer, "group")
        apart = (groups, len(weight) // groups, weight.shape[1], weight[0, 0].size)
    with np.errstate(all="ignore"):
        scale = gamma / np.sqrt(variance + helper.get_node_attr_value(norm, "epsilon"))
        shift = (beta + ((bias[0] if bias else 0) - mean) * scale).astype(weight.dtype)
        scaled = weight.reshape(apart) * scale.reshape(apart[0], 1, apart[2], 1)
        scaled = scaled.astype(weight.dtype)
    largest = np.abs(scaled).max(axis=(1, 3), initial=0)
    # Below the smallest normal number, weights have fewer digits.
    accurate = (largest == 0) | (largest >= np.finfo(weight.dtype).tiny)
    if not (accurate.all() and np.isfinite(largest).all() and np.isfinite(shift).all()):
        return None
    return [scaled.reshape(weight.shape), shift]


# ---- Outputs -------------------------------------------------------------------------------------


def _named(graph: Graph, outputs: list) -> list:
    """Give the tensors of the outputs the names of these, where nothing else has a claim."""
    makers = {name for node in graph.nodes for name in node.output}
    named: dict[str, str] = {}
    for (tensor, name), *_ in outputs:
        if tensor in makers:
            named.setdefault(tensor, name)
    for node in graph.nodes:
        node.input[:] = [named.get(name, name) for name in node.input]
        node.output[:] = [named.get(name, name) for name in node.output]
    return [((named.get(tensor, tensor), name), *kind) for (tensor, name), *kind in outputs]
