# SPDX-License-Identifier: Apache-2.0
"""The source of an export: a symbol, its parameters, and shapes and types of its inputs."""

from __future__ import annotations

import json
import os
import reprlib
import warnings
from typing import Any, Iterator, Sequence

import mxnet as mx
import numpy as np

from ..bridge.guard import RANKS
from ..bridge.symbol_json import Nodes, parse_symbol, symbol_content
from ..checkpoint import by_name
from ..files import load_symbol, read_parameters, read_symbol
from ..switch.counting import count
from ..switch.models import optimize
from ..switch.symbols import Graph, load_content, replace_guards_with_zeros
from ..weights import values_of
from .cut import cut, label_variables
from .metadata import detector_metadata, is_detector, output_names
from .shape_inference import Source, call_inference

#: Types of MXNet's arrays.
_TYPES = {"float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"}
#: MXNet's sizes are 32-bit integers.
_MAX_SIZE = 2**31 - 1
#: Types of values that are quoted in error messages.
_PLAIN = (int, float, str, list, tuple, dict, set, range, type(None))


def source_of(
    model: Any,
    input_shapes: Sequence,
    params: Any,
    input_types: Sequence | None,
    dynamic: Sequence[Sequence[int]] | None,
    inputs: dict[str, Any] | None,
    outputs: Sequence[str] | None,
) -> Source:
    """Check the arguments of export."""
    _check_list_of_shapes(input_shapes)
    shapes = list(_leaves("input_shapes", _check_list("input_shapes", input_shapes)))
    inputs = _check_dict("inputs", inputs or {}, "names and shapes")
    cuts = {name: _shape(f"inputs: {name}", shape) for name, shape in inputs.items()}
    if isinstance(model, mx.gluon.HybridBlock):
        if params is not None:
            raise ValueError("onnx.export: params is for a Symbol; a block has its own")
        names = _input_names(model, len(shapes))
        symbol, values = _trace(model, input_shapes, iter(names))
        unused = set(names).difference(symbol.list_inputs())
        if unused:
            raise ValueError(f"onnx.export: the model does not use its input {min(unused)}")
        symbol = _part(symbol, list(cuts), outputs)
    else:
        symbol, values, names = named_inputs(model, params, list(cuts), outputs)
    if len(names) != len(shapes):
        listed = ", ".join(names if len(names) < 9 else [*names[:8], "..."])
        raise ValueError(
            f"onnx.export: the model has {len(names)} inputs without a value ({listed}), but "
            f"input_shapes has {len(shapes)} shapes"
        )
    names += cuts
    shapes += cuts.values()
    for argument, given in (("input_types", input_types), ("dynamic", dynamic)):
        if given is not None and len(_check_list(argument, given)) != len(shapes):
            raise ValueError(
                f"onnx.export: {argument} has {len(given)} entries, expected one for each of the "
                f"{len(shapes)} inputs"
            )
    symbol = _switch_operators(symbol)
    used = set(symbol.list_inputs()) - _labels(symbol)
    arrays = {
        name: _array(name, value)
        for name, value in values.items()
        if name in used and name not in cuts
    }
    types = {name: _type_of(name, given) for name, given in zip(names, input_types or ())}
    dynamic_axes = {
        name: _dynamic_axes(name, axes, shape)
        for name, axes, shape in zip(names, dynamic or (), shapes)
    }
    sizes = {name: shape for name, shape in zip(names, shapes) if name in used}
    return Source(symbol, arrays, sizes, types, dynamic_axes)


def output_names_of(model: Any, given: Any, symbol: Any, outputs: Any) -> list[str]:
    """Names of the outputs in the file: as given, of GluonCV's detectors, or MXNet's."""
    own = symbol.list_outputs()
    if given is None:
        names = own if outputs else output_names(model, own)
        duplicate = _duplicate(names)
        if duplicate is not None:
            raise ValueError(
                f"onnx.export: several outputs have the name {duplicate}; give each its own name "
                "with output_names"
            )
        return names
    is_list = isinstance(given, (list, tuple)) and all(isinstance(n, str) and n for n in given)
    if not is_list or len({*given}) != len(given) or len(given) != len(own):
        raise ValueError(
            f"onnx.export: output_names: expected {len(own)} different names, got {_short(given)}"
        )
    return list(given)


def _duplicate(names: Sequence[str]) -> str | None:
    """A name that occurs more than once in a list, or None."""
    return next((name for number, name in enumerate(names) if name in names[:number]), None)


def metadata_of(model: Any, given: Any) -> dict[str, str]:
    """The metadata of a file with values as JSON; given values replace those of the detector."""
    own = detector_metadata(model) if is_detector(model) else {}
    metadata = {
        **own,
        **_check_dict("metadata", {} if given is None else given, "names and values"),
    }
    try:
        return {name: json.dumps(value, allow_nan=False) for name, value in metadata.items()}
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"onnx.export: metadata: expected values that JSON can hold: {error}"
        ) from None


def named_inputs(
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
    values = by_name("onnx.export: params", _check_dict("params", params or {}, "names and arrays"))
    symbol = _part(model, cuts, outputs)
    without = {*values, *cuts, *_labels(symbol)}
    names = [name for name in symbol.list_inputs() if name not in without]
    names.sort(key=order.index)
    duplicate = _duplicate(names)
    if duplicate is not None:
        raise ValueError(
            f"onnx.export: the model has several variables with the name {duplicate!r}, and each "
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
        return _without_zeros(symbol)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # about Custom operators, which export reports as errors
            return _without_zeros(optimize(symbol))
    except ValueError as error:
        raise ValueError(str(error).replace("optimize:", "onnx.export:")) from None


def _without_zeros(symbol: Any) -> Any:
    """The symbol with guards that are identities rather than subtractions of zeros."""
    content = symbol_content(symbol)
    if not any(
        node["op"] == "_zeros_without_dtype" or RANKS in node.get("attrs", {})
        for node in content["nodes"]
    ):
        return symbol
    graph = Graph(content)
    replace_guards_with_zeros(graph)
    return load_content(graph.content(), symbol)


def _check_dict(argument: str, given: Any, content: str) -> dict[str, Any]:
    if isinstance(given, dict) and all(isinstance(name, str) for name in given):
        return given
    raise ValueError(f"onnx.export: {argument}: expected a dict of {content}, got {_short(given)}")


def _check_list(argument: str, given: Any) -> Any:
    if isinstance(given, (list, tuple)):
        return given
    raise ValueError(
        f"onnx.export: {argument}: expected a list with an entry for each input, got "
        f"{_short(given)}"
    )


def _short(value: Any) -> str:
    """A value as quoted in an error message."""
    return reprlib.repr(value) if isinstance(value, _PLAIN) else type(value).__name__


def _array(name: str, value: Any) -> np.ndarray:
    if isinstance(value, mx.nd.NDArray):
        value = values_of(value)
    array = np.asarray(value)
    if array.dtype.name not in _TYPES:
        raise ValueError(f"onnx.export: params: {name}: expected an array, got {_short(value)}")
    return array


def _leaves(argument: str, shapes: Any) -> Iterator[tuple[int, ...]]:
    """The shapes in nested lists."""
    for shape in shapes:
        if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (list, tuple)):
            yield from _leaves(argument, shape)
        else:
            yield _shape(argument, shape)


def _check_list_of_shapes(given: Any) -> None:
    """Raise an error for a shape instead of a list of shapes, a common mistake."""
    is_list = isinstance(given, (list, tuple)) and len(given) > 0
    if is_list and all(isinstance(size, (int, np.integer)) for size in given):
        raise ValueError(
            "onnx.export: input_shapes: expected a list with a shape for each input, such as "
            f"[{tuple(int(size) for size in given)}], got {_short(given)}"
        )


def _shape(argument: str, shape: Any) -> tuple[int, ...]:
    if isinstance(shape, (list, tuple)) and all(
        isinstance(size, (int, np.integer)) and size >= 0 for size in shape
    ):
        if max(shape, default=0) > _MAX_SIZE:
            raise ValueError(
                f"onnx.export: {argument}: expected sizes up to {_MAX_SIZE}, got {_short(shape)}"
            )
        return tuple(int(size) for size in shape)
    raise ValueError(f"onnx.export: {argument}: expected a shape of integers, got {_short(shape)}")


def _type_of(name: str, given: Any) -> np.dtype:
    try:
        found = np.dtype(given)
    except TypeError:
        found = None
    if given is None or found is None or found.name not in _TYPES:
        raise ValueError(f"onnx.export: input_types: {given} is not a dtype for input {name}")
    return found


def _dynamic_axes(name: str, axes: Any, shape: tuple) -> tuple[int, ...]:
    """The dynamic axes of an input."""
    if not isinstance(axes, (list, tuple, set, range)) or not all(
        isinstance(axis, (int, np.integer)) and axis in range(len(shape)) for axis in axes
    ):
        raise ValueError(
            f"onnx.export: dynamic={_short(axes)} for input {name} of shape {shape}: expected a "
            f"list of axes from 0 to {len(shape) - 1}"
        )
    return tuple(axes)


def _input_names(block: Any, number: int) -> list[str]:
    """Names for the inputs of a block that no parameter has."""
    taken = {parameter.name for parameter in block.collect_params().values()}
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
