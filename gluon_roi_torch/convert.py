# SPDX-License-Identifier: Apache-2.0
"""Turns the graph of an ONNX file into a torch.fx graph."""

from __future__ import annotations

import inspect
import json
import operator
import os
import re
from pathlib import Path
from typing import Any, Callable

import numpy as np
import onnx
import torch
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from . import sizes
from .operators import OPERATORS, VALUES

OPSET = 16  # what gluon_roi.onnx.export writes
#: The entry of the metadata that lists the constants of Gluon, which are not weights.
CONSTANTS = "gluon_roi.constants"
_SMALL = 1024  # bytes; larger constants are no sizes
_INT64 = onnx.TensorProto.INT64


def to_torch(path: str | os.PathLike) -> torch.nn.Module:
    """Load a model that ``gluon_roi.onnx.export`` wrote, as a module of PyTorch.

    Parameters
    ----------
    path : str or os.PathLike
        The ONNX file.

    Returns
    -------
    torch.fx.GraphModule
        A module in evaluation mode, which takes the inputs of the file in its order, and returns
        its output, or a tuple of its outputs. ``print(module.code)`` shows the program. The weights
        are Parameters under their names in Gluon, the statistics of batch normalization are
        buffers, and both are the whole ``state_dict``. ``module.meta`` has the metadata of the
        file, such as the names of classes.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    ValueError
        It is not an ONNX model of opset 16.
    NotImplementedError
        A node, or one of its attributes, has no translation; the message names the node.

    Notes
    -----
    Of nodes that do not differentiate, such as suppression, no gradient comes back. ``BlockGrad``
    of MXNet is not in an exported file.
    """
    return to_module(load(Path(path)))


def to_module(model: onnx.ModelProto) -> torch.fx.GraphModule:
    """Convert a model that `load` has read."""
    return _Converter(model).module()


def load(path: Path) -> onnx.ModelProto:
    """Read a model, and check that it is one of this opset."""
    if not path.is_file():
        raise FileNotFoundError(f"onnx.to_torch: path: there is no file {path}")
    try:
        model = onnx.load(str(path))
    except DecodeError as error:
        raise ValueError(f"onnx.to_torch: path: {path} is not an ONNX model") from error
    found = {entry.domain: entry.version for entry in model.opset_import}
    if found.get("") != OPSET:
        raise ValueError(
            f"onnx.to_torch: path: {path}: expected opset {OPSET}, as gluon_roi.onnx.export "
            f"writes it, got {found.get('', 'none')}"
        )
    return model


class _Tracer(torch.fx.Tracer):
    """The tracer with which PyTorch rebuilds a pickled module.

    It records a call of an operator's function as one node, instead of tracing into it.
    """

    def __init__(self) -> None:
        functions = [sizes.shape, sizes.numbers, sizes.tensor, *sizes.OPERATORS.values()]
        functions += [function for function in VALUES if not isinstance(function, type)]
        super().__init__(autowrap_functions=tuple(functions))


class _Converter:
    """Walks the nodes of a model, and adds one node of torch.fx for each."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._constants = {t.name: t for t in model.graph.initializer}
        self._statistics = {
            name
            for node in model.graph.node
            if node.op_type == "BatchNormalization"
            for name in node.input[3:5]
        }
        self._metadata = metadata_of(model)
        #: Constants of the file that are not weights.
        self._fixed = self._statistics.union(self._metadata.pop(CONSTANTS, ()))
        self._root = torch.nn.Module()
        self._graph = torch.fx.Graph(tracer_cls=_Tracer)
        self._tensors: dict[str, torch.fx.Node] = {}  # by the names of the file
        self._sizes: dict[str, torch.fx.Node] = {}
        self._first: torch.fx.Node | None = None

    def module(self) -> torch.fx.GraphModule:
        graph = self._model.graph
        for entry in graph.input:
            self._tensors[entry.name] = self._graph.placeholder(entry.name)
        self._first = next(iter(self._tensors.values()), None)
        for node in graph.node:
            self._add(node)
        outputs = [self._tensor(entry.name) for entry in graph.output]
        self._graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        module = torch.fx.GraphModule(self._root, self._graph, "Model")
        for name, value in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, value, persistent=name in self._statistics)
        module.meta.update(self._metadata)
        return module.eval()

    # ---- Values ----

    def _tensor(self, name: str) -> torch.fx.Node | None:
        """A value as a tensor; None for an optional input that is not given."""
        if not name:
            return None
        if name not in self._tensors:
            if name in self._sizes:
                arguments = self._sizes[name], self._first
                self._tensors[name] = self._graph.call_function(sizes.tensor, arguments)
            else:
                self._tensors[name] = self._stored(name)
        return self._tensors[name]

    def _stored(self, name: str) -> torch.fx.Node:
        """A constant of the file as a Parameter or a buffer."""
        value = torch.from_numpy(np.array(numpy_helper.to_array(self._constants[name])))
        attribute = self._attribute_name(name)
        if self._is_parameter(name) and value.is_floating_point():
            self._root.register_parameter(attribute, torch.nn.Parameter(value))
        else:
            self._root.register_buffer(attribute, value)
        return self._graph.get_attr(attribute)

    def _is_parameter(self, name: str) -> bool:
        """Whether a constant is a weight; constants of the exporter have names that MXNet lacks."""
        is_added = "/" in name or re.match(r"constant(_\d+)?$", name)
        return not is_added and name not in self._fixed

    def _attribute_name(self, name: str) -> str:
        name = name.replace(".", "_")
        while hasattr(self._root, name):
            name += "_"
        return name

    def _size(self, name: str) -> Any:
        """A value that is a size, or a small constant."""
        return self._sizes[name] if name in self._sizes else self._literal(name)

    def _numbers(self, name: str) -> Any:
        """A value as numbers of Python; None for an optional input that is not given."""
        if not name:
            return None
        if name in self._constants:
            return self._literal(name)
        value = self._sizes.get(name) or self._tensors[name]
        return self._graph.call_function(sizes.numbers, (value,))

    def _input(self, name: str, annotation: str) -> Any:
        """An input of an operator, as the annotation of its function says."""
        is_bound = annotation == "Bound" and name in self._constants
        return self._numbers(name) if annotation == "Numbers" or is_bound else self._tensor(name)

    def _literal(self, name: str) -> Any:
        return numpy_helper.to_array(self._constants[name]).tolist()

    def _is_small(self, name: str) -> bool:
        tensor = self._constants.get(name)
        return (
            tensor is not None
            and tensor.data_type == _INT64
            and np.prod(tensor.dims, dtype=int) * 8 <= _SMALL
        )

    # ---- Nodes ----

    def _add(self, node: onnx.NodeProto) -> None:
        attributes = {a.name: _attribute_value(a) for a in node.attribute}
        if node.domain:
            raise _refusal(node, f"operators of {node.domain} have no translation")
        if node.op_type == "Shape":
            data = self._tensor(node.input[0])
            self._sizes[node.output[0]] = self._call(sizes.shape, node, [data], attributes)
        elif self._gives_size(node):
            inputs = [self._size(name) for name in node.input]
            function = sizes.OPERATORS[node.op_type]
            self._sizes[node.output[0]] = self._call(function, node, inputs, attributes)
        elif len(node.output) == 1:
            self._tensors[node.output[0]] = self._translate(node, attributes)
        else:
            made = self._translate(node, attributes)
            for place, name in enumerate(node.output):
                self._tensors[name] = self._graph.call_function(operator.getitem, (made, place))

    def _gives_size(self, node: onnx.NodeProto) -> bool:
        """Whether the inputs are sizes and small constants, and the operator has a function."""
        return (
            node.op_type in sizes.OPERATORS
            and any(name in self._sizes for name in node.input)
            and all(name in self._sizes or self._is_small(name) for name in node.input)
        )

    def _translate(self, node: onnx.NodeProto, attributes: dict) -> torch.fx.Node:
        function = OPERATORS.get(node.op_type)
        if function is None:
            raise _refusal(node, "this operator has no translation")
        if function not in VALUES:  # a function of PyTorch, without attributes
            return self._call(function, node, [self._tensor(name) for name in node.input], {})
        signature = inspect.signature(function)
        _check_attributes(node, attributes, signature, VALUES[function])
        if isinstance(function, type):
            layer = self._attribute_name(re.sub(r"\W", "_", node.name))
            self._root.add_module(layer, function(**attributes))
            return self._graph.call_module(layer, tuple(self._tensor(n) for n in node.input))
        parameters = signature.parameters.values()
        places = [each for each in parameters if each.kind != each.KEYWORD_ONLY]
        places += places[-1:] * (len(node.input) - len(places))  # of a variadic input
        inputs = [self._input(name, place.annotation) for name, place in zip(node.input, places)]
        if "like" in signature.parameters:
            attributes = {**attributes, "like": self._first}
        return self._call(function, node, inputs, attributes)

    def _call(
        self, function: Callable, node: onnx.NodeProto, inputs: list, attributes: dict
    ) -> torch.fx.Node:
        return self._graph.create_node(
            "call_function", function, tuple(inputs), attributes, name=node.name
        )


def _check_attributes(
    node: onnx.NodeProto, attributes: dict, signature: inspect.Signature, values: dict
) -> None:
    """Reject attributes and outputs that the function of an operator does not have."""
    for name, value in attributes.items():
        if name not in signature.parameters:
            raise _refusal(node, f"attribute {name} has no translation")
        if value not in values.get(name, (value,)):
            raise _refusal(node, f"{name}={value} has no translation")
    if len(node.output) > 1 and not str(signature.return_annotation).startswith("tuple"):
        raise _refusal(node, f"{len(node.output)} outputs have no translation")


def _attribute_value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value


def metadata_of(model: onnx.ModelProto) -> dict[str, Any]:
    """The metadata of a file; a text that is not JSON stays as it is."""
    found: dict[str, Any] = {}
    for entry in model.metadata_props:
        try:
            found[entry.key] = json.loads(entry.value)
        except json.JSONDecodeError:
            found[entry.key] = entry.value
    return found


def _refusal(node: onnx.NodeProto, reason: str) -> NotImplementedError:
    return NotImplementedError(f"onnx.to_torch: node {node.name} ({node.op_type}): {reason}")
