"""From an MXNet model to an ONNX file."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
from typing import Any, Callable, Iterator, Sequence

import mxnet as mx
import numpy as np
import onnx

from .builtins import TRANSLATIONS as BUILTINS
from .graph import Graph, Node
from .operators import TRANSLATIONS as OPERATORS

_TRANSLATIONS = {**BUILTINS, **OPERATORS}

_FLOAT32 = np.dtype("float32")
#: So many combinations of types of inputs are tried.
_TYPE_TRIES = 64


def export_model(
    model: Any,
    input_shapes: Sequence,
    path: Any,
    params: dict[str, Any] | None,
    input_types: Sequence | None,
    dynamic: Sequence[Sequence[int]] | None,
) -> None:
    """See :func:`gluon_roi.onnx.export`."""
    shapes = list(_leaves(input_shapes))
    if isinstance(model, mx.sym.Symbol):
        symbol = model
        values = {
            name.split(":", 1)[-1] if name.startswith(("arg:", "aux:")) else name: value
            for name, value in (params or {}).items()
        }
        names = [name for name in symbol.list_inputs() if name not in values]
    elif isinstance(model, mx.gluon.HybridBlock):
        if params is not None:
            raise ValueError("onnx.export: params is for a Symbol; a block has its own")
        names = ["data"] if len(shapes) == 1 else [f"data{i}" for i in range(len(shapes))]
        symbol, values = _trace(model, input_shapes, iter(names))
        unused = [name for name in names if name not in symbol.list_inputs()]
        if unused:
            raise ValueError(f"onnx.export: the model does not use its input {unused[0]}")
    else:
        raise TypeError(
            f"onnx.export: expected a gluon.HybridBlock or a Symbol, got {type(model).__name__}"
        )
    if len(names) != len(shapes):
        raise ValueError(
            f"onnx.export: the model has {len(names)} inputs without a value "
            f"({', '.join(names)}), but input_shapes has {len(shapes)} shapes"
        )
    arrays = {
        name: value.asnumpy() if isinstance(value, mx.nd.NDArray) else np.asarray(value)
        for name, value in values.items()
        if name in set(symbol.list_inputs())
    }
    for argument, given in (("input_types", input_types), ("dynamic", dynamic)):
        if given is not None and len(given) != len(shapes):
            raise ValueError(
                f"onnx.export: {argument} has {len(given)} entries, expected one for each of the "
                f"{len(shapes)} inputs"
            )
    inputs = dict(zip(names, shapes))
    types = {name: _type_of(name, given) for name, given in zip(names, input_types or ())}
    free = {name: _free_axes(name, axes, inputs[name]) for name, axes in zip(names, dynamic or ())}
    made, known = _translate(symbol, arrays, inputs, types, free)
    _check(made, known)
    onnx.save(made, os.fspath(path))


def _leaves(shapes: Any) -> Iterator[tuple[int, ...]]:
    """The shapes in a nest of lists."""
    for shape in shapes:
        if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (list, tuple)):
            yield from _leaves(shape)
        elif isinstance(shape, (list, tuple)) and all(
            isinstance(size, (int, np.integer)) and size >= 0 for size in shape
        ):
            yield tuple(int(size) for size in shape)
        else:
            raise ValueError(
                f"onnx.export: input_shapes: expected a shape of whole numbers for each input, "
                f"got {shape}"
            )


def _type_of(name: str, given: Any) -> np.dtype:
    try:
        return np.dtype(given)
    except TypeError:
        raise ValueError(f"onnx.export: input_types: {given} is no type of input {name}") from None


def _free_axes(name: str, axes: Any, shape: tuple) -> tuple[int, ...]:
    """The axes of an input whose sizes may change."""
    if isinstance(axes, (int, np.integer)) or not all(axis in range(len(shape)) for axis in axes):
        raise ValueError(
            f"onnx.export: dynamic={axes} for input {name} of shape {shape}: expected a list of "
            f"axes from 0 to {len(shape) - 1}"
        )
    return tuple(axes)


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
        outputs = block(*variables(shapes))
    except TypeError as error:
        raise ValueError(
            f"onnx.export: {block.name} cannot be called with {len(shapes)} inputs: {error}"
        ) from error
    symbol = mx.sym.Group(list(_flat(outputs)))
    used = set(symbol.list_inputs())
    parameters = [p for p in block.collect_params().values() if p.name in used]
    _settle(symbol, [p for p in parameters if p._deferred_init])
    for parameter in parameters:
        if parameter._data is None:
            raise ValueError(
                f"onnx.export: parameter {parameter.name} has no value; initialize the block"
            )
    return symbol, {p.name: p.data(p.list_ctx()[0]) for p in parameters}


def _settle(symbol: Any, parameters: list) -> None:
    """Give parameters the shapes that follow from those of the inputs."""
    if not parameters:
        return
    arguments, _, states = _inferred(symbol.infer_shape, "shapes")
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    shapes = dict(zip(names, (arguments or []) + (states or [])))
    for parameter in parameters:
        if parameter.name in shapes:
            parameter.shape = shapes[parameter.name]
            parameter._finish_deferred_init()


def _flat(outputs: Any) -> Iterator[Any]:
    if isinstance(outputs, (list, tuple)):
        for one in outputs:
            yield from _flat(one)
    else:
        yield outputs.as_nd_ndarray() if isinstance(outputs, mx.sym.numpy._Symbol) else outputs


class _Entry:
    """An output of an MXNet node: its shape and type, and the tensor it has become."""

    def __init__(self, shape: tuple, dtype: Any) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.tensor = ""


def _translate(
    symbol: Any,
    arrays: dict[str, np.ndarray],
    inputs: dict[str, tuple],
    types: dict[str, np.dtype],
    free: dict[str, tuple],
) -> tuple[onnx.ModelProto, dict[str, _Entry]]:
    """The model, and what MXNet says of each of its tensors (without that of free sizes)."""
    # One graph with every output of every node among its heads, those of the model at the end.
    internals = symbol.get_internals()
    described = json.loads(mx.sym.Group([internals, symbol]).tojson(remove_amp_cast=False))
    nodes, heads = described["nodes"], [tuple(head[:2]) for head in described["heads"]]
    entries = _infer(internals, nodes, arrays, inputs, types)
    by_place = dict(zip(heads, entries))
    graph = Graph()
    listed = []
    for number, node in enumerate(nodes):
        name = node["name"]
        if node["op"] == "null":
            entry = by_place[number, 0]
            if name in arrays:
                entry.tensor = graph.constant(arrays[name], name)
            else:
                entry.tensor = graph.unique(name)
                shape = [
                    f"{name}_{axis}" if axis in free.get(name, ()) else size
                    for axis, size in enumerate(entry.shape)
                ]
                listed.append((entry.tensor, entry.dtype, shape))
            continue
        translation = _TRANSLATIONS.get(node["op"])
        if translation is None:
            raise NotImplementedError(
                f"onnx.export: node {name} ({node['op']}): this operator has no translation"
            )
        sources = [by_place[source[0], source[1]] for source in node["inputs"]]
        results: list[_Entry] = []
        while (number, len(results)) in by_place:
            results.append(by_place[number, len(results)])
        here = Node(
            node["op"],
            name,
            node.get("attrs", {}),
            [(entry.tensor, entry.shape, entry.dtype) for entry in sources],
            [(entry.shape, entry.dtype) for entry in results],
            not any(free.values()),
        )
        graph.prefix = name
        tensors = translation(graph, here)
        here.check_all_read()
        tensors = [tensors] if isinstance(tensors, str) else tensors
        for entry, tensor in zip(results, tensors):
            entry.tensor = tensor
    outputs = []
    for name, head in zip(symbol.list_outputs(), heads[len(entries) :]):
        entry = by_place[head]
        shape = [None] * len(entry.shape) if any(free.values()) else list(entry.shape)
        outputs.append(((entry.tensor, graph.unique(name)), entry.dtype, shape))
    known = {} if any(free.values()) else {entry.tensor: entry for entry in entries}
    return graph.model(listed, outputs), known


def _inferred(infer: Callable, what: str, **known: Any) -> Any:
    """What MXNet infers, without what it prints."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return infer(**known)
    except mx.MXNetError as error:
        reason = str(error).strip().splitlines()[-1].replace("MXNetError: ", "")
        raise ValueError(f"onnx.export: the {what} do not fit the model: {reason}") from None


def _infer(
    internals: Any,
    nodes: list[dict],
    arrays: dict[str, np.ndarray],
    inputs: dict[str, tuple],
    types: dict[str, np.dtype],
) -> list[_Entry]:
    """Shape and type of every output of every node, as MXNet infers them."""
    sizes = {**inputs, **{name: array.shape for name, array in arrays.items()}}
    _, shapes, _ = _inferred(internals.infer_shape, "shapes", **sizes)
    if shapes is None:
        raise ValueError("onnx.export: the shapes of the model do not follow from those given")
    known = {name: array.dtype for name, array in arrays.items()}
    known.update(types)
    for name in _counts(nodes):
        if name in inputs:
            known.setdefault(name, np.dtype("int32"))
    dtypes = _types(internals, known, [name for name in inputs if name not in known])
    return [_Entry(shape, dtype) for shape, dtype in zip(shapes, dtypes)]


def _types(internals: Any, known: dict[str, np.dtype], unknown: list[str]) -> list:
    """Types of all outputs; of inputs those that fit the parameters, float32 if it does."""
    try:
        arguments, _, _ = internals.infer_type_partial(**known)
    except mx.MXNetError:  # of an operator that wants to know the type of an input
        arguments = None
    for name, found in zip(internals.list_arguments(), arguments or ()):
        if name in unknown and found is not None:
            known.setdefault(name, np.dtype(found))
    unknown = [name for name in unknown if name not in known]
    others = sorted({dtype for dtype in known.values() if dtype.kind == "f"} - {_FLOAT32})
    refused = None
    for kinds in itertools.islice(
        itertools.product([_FLOAT32, *others], repeat=len(unknown)), _TYPE_TRIES
    ):
        tried = {**known, **dict(zip(unknown, kinds))}
        try:
            _, dtypes, _ = _inferred(internals.infer_type, "types", **tried)
        except ValueError as error:
            refused = refused or error
        else:
            if dtypes is not None:
                return dtypes
    raise refused or ValueError(
        "onnx.export: the types of the model do not follow from its parameters; give input_types"
    )


def _counts(nodes: list[dict]) -> Iterator[str]:
    """The variables that are the rois_num of one of our operators."""
    for node in nodes:
        if node["op"] in OPERATORS and node.get("attrs", {}).get("rois_num") == "True":
            source = nodes[node["inputs"][-1][0]]
            while source["inputs"]:
                source = nodes[source["inputs"][0][0]]
            yield source["name"]


def _check(model: onnx.ModelProto, known: dict[str, _Entry]) -> None:
    """Raise RuntimeError unless onnx finds the model valid, and MXNet's shapes and types in it."""
    try:
        onnx.checker.check_model(model)
        inferred = onnx.shape_inference.infer_shapes(
            model, check_type=True, strict_mode=True, data_prop=True
        )
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        # Nodes are named after those of MXNet, and onnx names the one that it refuses.
        reason = " ".join(str(error).split())
        raise RuntimeError(f"onnx.export: the exported graph is invalid: {reason}") from error
    for tensor in inferred.graph.value_info:
        entry = known.get(tensor.name)
        if entry is None:
            continue
        kind = tensor.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        found = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        fits = len(dims) == len(entry.shape) and all(
            d is None or d == size for d, size in zip(dims, entry.shape)
        )
        if found != entry.dtype or not fits:
            raise RuntimeError(
                f"onnx.export: tensor {tensor.name} is {found} {dims} in the exported graph, "
                f"but {entry.dtype} {list(entry.shape)} in MXNet"
            )
