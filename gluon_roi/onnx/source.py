# SPDX-License-Identifier: Apache-2.0
"""The source of an export: a symbol, its parameters, and shapes and types of its inputs."""

from __future__ import annotations

import json
import os
import warnings
from typing import Any, Iterator, Sequence

import mxnet as mx
import numpy as np

from ..bridge.guard import RANK_INPUT
from ..bridge.symbol_json import Nodes, parse_symbol, symbol_content
from ..checkpoint import by_name
from ..files import load_symbol, read_parameters, read_symbol
from ..switch.counting import count
from ..switch.models import optimize
from ..switch.symbols import SymbolGraph, load_content, replace_zero_guards
from ..weights import values_of
from .arguments import (
    TYPES,
    check_dict,
    check_shapes,
    duplicate,
    dynamic_axes_of,
    leaves,
    shape,
    shapes_of,
    short,
    types_of,
)
from .cut import cut, label_variables
from .metadata import detector_metadata, is_detector, output_names
from .shape_inference import Source, call_inference


def source_of(
    model: Any,
    input_shapes: Any,
    params: Any,
    input_types: Any,
    dynamic: Any,
    inputs: dict[str, Any] | None,
    outputs: Sequence[str] | None,
) -> Source:
    """Trace a block or read a symbol, cut it, switch MXNet's RoI operators, and collect parameters.

    The arguments of export are checked on the way.
    """
    check_shapes(input_shapes)
    inputs = check_dict("inputs", inputs or {}, "names and shapes")
    cuts = {name: shape(f"inputs: {name}", given) for name, given in inputs.items()}
    if isinstance(model, mx.gluon.HybridBlock):
        if params is not None:
            raise ValueError("onnx.export: params is for a Symbol; a block has its own")
        shapes = _block_shapes(model, input_shapes)
        nested = input_shapes if isinstance(input_shapes, (list, tuple)) else [*shapes.values()]
        symbol, values = _trace(model, nested, iter(shapes))
        unused = set(shapes).difference(symbol.list_inputs())
        if unused:
            raise ValueError(f"onnx.export: the model does not use its input {min(unused)}")
        symbol = _part(symbol, list(cuts), outputs)
    else:
        symbol, values, names = _named_inputs(model, params, list(cuts), outputs)
        shapes = shapes_of(input_shapes, names)
    shapes = {**shapes, **cuts}
    types, axes = types_of(input_types, list(shapes)), dynamic_axes_of(dynamic, shapes)
    symbol = _switch_operators(symbol)
    used = set(symbol.list_inputs()) - _labels(symbol)
    arrays = {
        name: _array(name, value)
        for name, value in values.items()
        if name in used and name not in cuts
    }
    sizes = {name: given for name, given in shapes.items() if name in used}
    return Source(symbol, arrays, sizes, types, axes)


def output_names_of(model: Any, given: Any, symbol: Any, outputs: Any) -> list[str]:
    """Names of the outputs in the file: as given, of GluonCV's detectors, or MXNet's."""
    own = symbol.list_outputs()
    if given is None:
        names = own if outputs else output_names(model, own)
        twice = duplicate(names)
        if twice is not None:
            raise ValueError(
                f"onnx.export: several outputs have the name {twice}; give each its own name "
                "with output_names"
            )
        return names
    is_list = isinstance(given, (list, tuple)) and all(isinstance(n, str) and n for n in given)
    if not is_list or len({*given}) != len(given) or len(given) != len(own):
        raise ValueError(
            f"onnx.export: output_names: expected {len(own)} different names, got {short(given)}"
        )
    return list(given)


def metadata_of(model: Any, given: Any) -> dict[str, str]:
    """The metadata of a file with values as JSON; given values replace those of the detector."""
    own = detector_metadata(model) if is_detector(model) else {}
    metadata = {
        **own,
        **check_dict("metadata", {} if given is None else given, "names and values"),
    }
    try:
        return {name: json.dumps(value, allow_nan=False) for name, value in metadata.items()}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"onnx.export: metadata: expected values that JSON can hold: {error}"
        ) from None


def _named_inputs(
    model: Any, params: Any, cuts: Sequence[str], outputs: Sequence[str] | None
) -> tuple[Any, dict[str, Any], list[str]]:
    """The symbol of a model that is not a block, its parameters, and the names of its inputs.

    The names do not include `cuts`.
    """
    if isinstance(model, (str, os.PathLike)):
        model = read_symbol("onnx.export", model)
    elif not isinstance(model, mx.sym.Symbol):
        raise TypeError(
            "onnx.export: expected a gluon.HybridBlock, a Symbol or the path of a symbol file, "
            f"got {type(model).__name__}"
        )
    if isinstance(params, (str, os.PathLike)):
        params = read_parameters("onnx.export: params", params)
    order = _input_order(model)
    values = by_name("onnx.export: params", check_dict("params", params or {}, "names and arrays"))
    symbol = _part(model, cuts, outputs)
    without = {*values, *cuts, *_labels(symbol)}
    names = [name for name in symbol.list_inputs() if name not in without]
    names.sort(key=order.index)
    twice = duplicate(names)
    if twice is not None:
        raise ValueError(
            f"onnx.export: the model has several variables with the name {twice!r}, and each "
            "input needs its own"
        )
    return symbol, values, names


def _input_order(model: Any) -> list[str]:
    """The variables of a symbol, or of the content of its file, in MXNet's order.

    In a part of the model they may be first read in another order.
    """
    content = parse_symbol(model) if isinstance(model, str) else symbol_content(model)
    return [node["name"] for node in content["nodes"] if node["op"] == "null"]


def _part(model: Any, inputs: Sequence[str], outputs: Sequence[str] | None) -> Any:
    """The symbol between these inputs and outputs."""
    part = cut(model, inputs, outputs)
    return load_symbol("onnx.export", part) if isinstance(part, str) else part


def _labels(symbol: Any) -> set[str]:
    """The inputs that only losses read, as labels."""
    nodes = Nodes(symbol_content(symbol))
    return {nodes.nodes[n]["name"] for n in label_variables(nodes, nodes.needed())}


def _switch_operators(symbol: Any) -> Any:
    """The symbol with MXNet's RoI operators switched to those of this package.

    Sums of ROIAligns are replaced with PyramidROIAlign, even in a symbol that is already switched.
    """
    used = count(symbol)
    others = (used[name] for name in used if not name.startswith(("_gluon_roi_", "Custom")))
    if not any(others) and used["_gluon_roi_ROIAlign"] < 2:
        return _without_zero_guards(symbol)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # about Custom operators, which export reports as errors
            return _without_zero_guards(optimize(symbol))
    except ValueError as error:
        raise ValueError(str(error).replace("optimize:", "onnx.export:")) from None


def _without_zero_guards(symbol: Any) -> Any:
    """The symbol with guards that are identities rather than subtractions of zeros."""
    content = symbol_content(symbol)
    if not any(
        node["op"] == "_zeros_without_dtype" or RANK_INPUT in node.get("attrs", {})
        for node in content["nodes"]
    ):
        return symbol
    graph = SymbolGraph(content)
    replace_zero_guards(graph)
    return load_content(graph.content(), symbol)


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, mx.nd.NDArray):
        value = values_of(value)
    array = np.asarray(value)
    if array.dtype.name not in TYPES:
        raise ValueError(f"onnx.export: params: {name}: expected an array, got {short(value)}")
    return array


def _block_shapes(block: Any, given: Any) -> dict[str, tuple]:
    """The shapes of a block's inputs by their names, in the order of its call."""
    parameters = {parameter.name for parameter in block.collect_params().values()}
    if not isinstance(given, dict):
        shapes = list(leaves(given))
        return dict(zip(_input_names(parameters, len(shapes)), shapes))
    check_dict("input_shapes", given, "names and shapes")
    for name in given:
        if name in parameters or not name:
            raise ValueError(
                f"onnx.export: input_shapes: expected names for inputs that no parameter has, got "
                f"{name!r}"
            )
    return {name: shape(f"input_shapes: {name}", sizes) for name, sizes in given.items()}


def _input_names(taken: set[str], number: int) -> list[str]:
    """Names for the inputs of a block that no parameter has."""
    prefix = "data"
    while True:
        names = [prefix] if number == 1 else [f"{prefix}{i}" for i in range(number)]
        if taken.isdisjoint(names):
            return names
        prefix += "_"


def _trace(block: Any, shapes: Sequence, names: Iterator[str]) -> tuple[Any, dict[str, Any]]:
    """The symbol of a block, and its parameters."""

    def variables(shapes: Sequence) -> list:
        return [
            variables(shape)
            if shape and isinstance(shape[0], (list, tuple))
            else mx.sym.var(next(names), shape=shape)
            for shape in shapes
        ]

    try:
        with mx.autograd.pause():  # blocks may depend on whether they are in training
            outputs = block(*variables(shapes))
    except TypeError as error:
        raise ValueError(
            f"onnx.export: {block.name} cannot be called with {len(shapes)} inputs: {error}"
        ) from error
    symbol = mx.sym.Group(list(_flatten(outputs)))
    used = set(symbol.list_inputs())
    parameters = [p for p in block.collect_params().values() if p.name in used]
    _infer_shapes(symbol, [p for p in parameters if p._deferred_init])
    for parameter in parameters:
        if parameter._data is None:
            raise ValueError(
                f"onnx.export: parameter {parameter.name} has no value; initialize the block"
            )
    return symbol, {p.name: p.data(p.list_ctx()[0]) for p in parameters}


def _infer_shapes(symbol: Any, parameters: list) -> None:
    """Infer the shapes of parameters from those of the inputs."""
    if not parameters:
        return
    arguments, _, states = call_inference(symbol.infer_shape, "shapes")
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    shapes = dict(zip(names, (arguments or []) + (states or [])))
    for parameter in parameters:
        if parameter.name in shapes:
            parameter.shape = shapes[parameter.name]
            parameter._finish_deferred_init()


def _flatten(outputs: Any) -> Iterator[Any]:
    if isinstance(outputs, (list, tuple)):
        for output in outputs:
            yield from _flatten(output)
    else:
        yield outputs.as_nd_ndarray() if isinstance(outputs, mx.sym.numpy._Symbol) else outputs
