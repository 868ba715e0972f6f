# SPDX-License-Identifier: Apache-2.0
"""Translates an MXNet model to an ONNX file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Callable, NamedTuple

import mxnet as mx
import numpy as np
import onnx

from ..bridge.symbol_json import symbol_content
from . import roi, rules, verification  # noqa: F401  (roi and rules register rules)
from .creation_sizes import CREATIONS, creation_sizes, creations_last
from .file import save
from .float64_support import warn_of_missing_float64_kernels
from .graph import Node, OnnxGraph, Tensor, onnx_type
from .metadata import CONSTANTS, gluon_constants
from .passes import simplify
from .passes.types import tensor_types
from .registry import RULES
from .shape_inference import NodeOutput, Source, infer


class _Translation(NamedTuple):
    """A graph, its inputs and outputs, and the nodes of MXNet.

    `entries` has the shape, type and tensor of each output of a node, by the indices of both.
    """

    graph: OnnxGraph
    inputs: list
    outputs: list
    nodes: list[dict]
    entries: dict[tuple[int, int], NodeOutput]


def export_model(
    file: Path,
    source: Source,
    names: list[str],
    metadata: dict[str, str],
    verify: Any,
    fold: bool,
) -> None:
    """Write a file.

    `names` are the names of its outputs; `verify` and `fold` are as for `export`.
    """
    translation = _translate(source, names)
    graph, inputs, outputs, _, entries = translation
    # With dynamic axes MXNet infers the shapes of one example, so nothing is compared.
    translated = [] if any(source.dynamic.values()) else [e for e in entries.values() if e.tensor]
    expected = {entry.tensor.name: entry for entry in translated}
    inferred = _check_model(*graph.model(inputs, outputs), expected)
    fixed = gluon_constants(source.symbol)
    simple = simplify(graph, outputs, tensor_types(inferred), fold, {*source.arrays} - fixed)
    model, large = graph.model(inputs, simple)
    stored = [*large, *(tensor.name for tensor in model.graph.initializer)]
    constants = sorted(fixed.intersection(stored))
    if constants:
        metadata = {**metadata, CONSTANTS: json.dumps(constants)}
    onnx.helper.set_model_props(model, metadata)
    warn_of_missing_float64_kernels(_check_model(model, large, expected))
    if verify is not False:
        verification.verify(model, large, source, _tensors(translation), verify)
    save(model, large, file)


def _tensors(translation: _Translation) -> verification.NodeTensors:
    """The outputs of MXNet's nodes, and their names in the graph after it has been simplified."""
    graph, _, outputs, nodes, entries = translation
    produced = {name for node in graph.nodes for name in node.output}
    renamed = {tensor: name for (tensor, name), *_ in outputs[::-1] if name in produced}
    names = {place: entry.tensor.name for place, entry in entries.items() if entry.tensor}
    names = {place: renamed.get(name, name) for place, name in names.items()}
    kept = {place: name for place, name in names.items() if name in produced}
    return verification.NodeTensors(nodes, entries, kept)


def _translate(source: Source, names: list[str]) -> _Translation:
    # A graph whose heads are all outputs of all nodes, followed by the outputs of the model.
    symbol, arrays, dynamic = source.symbol, source.arrays, source.dynamic
    internals = symbol.get_internals()
    content = symbol_content(mx.sym.Group([internals, symbol]))
    nodes, heads = content["nodes"], [tuple(head[:2]) for head in content["heads"]]
    entries = infer(internals, nodes, source)
    by_place = dict(zip(heads, entries))
    graph = OnnxGraph()
    graph.reserve([*source.shapes, *names])
    listed: dict[str, tuple] = {}
    for number in creations_last(nodes):
        node = nodes[number]
        name = node["name"]
        if node["op"] == "null":
            entry = by_place[number, 0]
            if name in arrays:
                entry.tensor = graph.constant(arrays[name], name)
            elif name in source.shapes:
                entry.tensor = Tensor(graph, name, entry.dtype)
                shape = [
                    dynamic.get(name, {}).get(axis, size) for axis, size in enumerate(entry.shape)
                ]
                listed[name] = (name, entry.dtype, shape)
            continue
        rule = RULES.get(node["op"])
        if rule is None:
            raise NotImplementedError(
                f"onnx.export: node {name} ({node['op']}): {_reason(node['op'])}"
            )
        sources = [by_place[place[0], place[1]] for place in node["inputs"]]
        results: list[NodeOutput] = []
        while (number, len(results)) in by_place:
            results.append(by_place[number, len(results)])
        mxnet_node = Node(node["op"], name, node.get("attrs", {}), sources, results)
        with graph.translating(mxnet_node):
            if mxnet_node.op in CREATIONS:
                given = mxnet_node.sizes("shape")
                mxnet_node.out_sizes = creation_sizes(given, by_place[number, 0], entries)
            tensors = _translate_node(rule, graph, mxnet_node)
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        for entry, tensor in zip(results, tensors):
            entry.tensor = tensor
    outputs = []
    for name, head in zip(names, heads[len(entries) :]):
        entry = by_place[head]
        shape = [None] * len(entry.shape) if any(dynamic.values()) else list(entry.shape)
        if name in source.shapes and entry.tensor.name != name:
            raise ValueError(
                f"onnx.export: output_names: another tensor has the name {name}, an input of the "
                "model; give the output a different one"
            )
        outputs.append(((entry.tensor.name, name), entry.dtype, shape))
    return _Translation(graph, [listed[name] for name in source.shapes], outputs, nodes, by_place)


def _translate_node(rule: Callable, graph: OnnxGraph, node: Node) -> Any:
    """The outputs of a node. If the rule fails, the error names the node."""
    try:
        tensors = rule(graph, node)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if str(error).startswith("onnx.export: "):
            raise
        reason = " ".join(str(error).split())
        raise node.refusal(f"its attributes or shapes have no translation: {reason}") from error
    node.check_all_read()
    return tensors


def _reason(op: str) -> str:
    """The reason why an operator has no translation, and what to export instead."""
    if re.match(r"_contrib_(quantize|requantize|dequantize|quantized_)", op):
        return "quantized models have no translation; export the float model"
    if op.startswith("_sg_mkldnn_"):
        return "nodes of MKLDNN have no translation; export the model before optimize_for"
    return "this operator has no translation"


def _check_model(
    model: onnx.ModelProto, weights: dict[str, np.ndarray], expected: dict[str, NodeOutput]
) -> onnx.ModelProto:
    """Raise RuntimeError unless onnx accepts the model and infers MXNet's shapes and types.

    Returns the model with inferred shapes and dtypes.

    Because onnx copies the model several times, the weights are replaced with inputs, which have
    shapes but no values.
    """
    original, model = model, onnx.ModelProto()
    model.CopyFrom(original)
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, onnx_type(value.dtype), value.shape)
        for name, value in weights.items()
    )
    try:
        onnx.checker.check_model(model)
        inferred = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        # onnx names the node that it rejects, and nodes are named after those of MXNet.
        reason = " ".join(str(error).split())
        raise RuntimeError(f"onnx.export: the exported graph is invalid: {reason}") from error
    for tensor in inferred.graph.value_info:
        entry = expected.get(tensor.name)
        if entry is None:
            continue
        tensor_type = tensor.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor_type.shape.dim]
        found = onnx.helper.tensor_dtype_to_np_dtype(tensor_type.elem_type)
        fits = len(dims) == len(entry.shape) and all(
            d is None or d == size for d, size in zip(dims, entry.shape)
        )
        if found != entry.dtype or not fits:
            raise RuntimeError(
                f"onnx.export: tensor {tensor.name} is {found} {dims} in the exported graph, "
                f"but {entry.dtype} {list(entry.shape)} in MXNet"
            )
    return inferred
