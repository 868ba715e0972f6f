# SPDX-License-Identifier: Apache-2.0
"""The pass that evaluates nodes whose outputs are constants."""

from __future__ import annotations

from typing import Collection

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from ..graph import OPSET, OnnxGraph
from .types import TensorType, type_of

#: Operators that are evaluated if all inputs are constants.
_EVALUATED = {
    *("Abs", "Add", "And", "Cast", "Concat", "Div", "Equal", "Expand", "Flatten", "Floor"),
    *("Gather", "Less", "LessOrEqual", "Max", "Min", "Mul", "Neg"),
    *("Not", "Or", "Range", "ReduceProd", "Reshape", "Slice", "Split", "Sqrt", "Squeeze"),
    *("Sub", "Tile", "Transpose", "Unsqueeze", "Where"),
}
#: A constant of up to this number of bytes may replace smaller constants.
_MAX_GROWTH = 1 << 16


def evaluate_constants(
    graph: OnnxGraph, types: dict[str, TensorType], trained: Collection[str]
) -> dict[str, str]:
    """Evaluate nodes of constants, and fixed shapes; return the replacements of tensors.

    Nodes that read `trained`, the names of weights, are not evaluated.
    """
    replaced: dict[str, str] = {}
    kept = []
    for node in graph.nodes:
        node.input[:] = [replaced.get(name, name) for name in node.input]
        values = _evaluate(graph, types, trained, node)
        if values is None:
            kept.append(node)
            continue
        for name, value in zip(node.output, values):
            replaced[name] = graph.constant_for(name, value)
    graph.nodes = kept
    return replaced


def _evaluate(
    graph: OnnxGraph, types: dict[str, TensorType], trained: Collection[str], node: onnx.NodeProto
) -> list[np.ndarray] | None:
    """The outputs of a node if they are constants."""
    if node.op_type == "Shape":
        given = type_of(graph, types, node.input[0])
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        sizes = given and given.shape[attributes.get("start", 0) : attributes.get("end")]
        return None if sizes is None or None in sizes else [np.array(sizes, np.int64)]
    found = {name: graph.constants.get(name) for name in node.input}
    inputs = {name: value for name, value in found.items() if value is not None}
    if (
        node.op_type not in _EVALUATED
        or len(inputs) < len(found)
        or any(name in trained for name in inputs)
    ):
        return None
    if node.op_type == "Div":
        values = _quotient(*(inputs[name] for name in node.input))
    else:
        values = _run(node, inputs)
    limit = max(_MAX_GROWTH, sum(value.nbytes for value in inputs.values()))
    if values is None:
        return None
    return values if sum(value.nbytes for value in values) <= limit else None


def _quotient(dividend: np.ndarray, divisor: np.ndarray) -> list[np.ndarray] | None:
    """The quotient of a Div; None if integers are divided by 0.

    Quotients of integers are truncated, as in MXNet. OpenVINO and the evaluator of onnx round
    quotients of constants down.
    """
    if dividend.dtype.kind == "f":
        with np.errstate(all="ignore"):
            return [dividend / divisor]
    if (divisor == 0).any():
        return None
    remainder = np.fmod(dividend, divisor)  # with the sign of the dividend
    return [(dividend - remainder) // divisor]


def _run(node: onnx.NodeProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    opsets = [helper.make_opsetid("", OPSET)]
    function = helper.make_function("", "evaluate", list(inputs), node.output, [node], opsets)
    return [np.asarray(value) for value in ReferenceEvaluator(function).run(None, inputs, {})]
