# SPDX-License-Identifier: Apache-2.0
"""Runs an exported model in onnxruntime, and compares its outputs with MXNet's."""

from __future__ import annotations

import ast
import contextlib
import itertools
import warnings
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import mxnet as mx
import numpy as np
import onnx

from ..bridge.arguments import is_true
from ..files import sentence
from ..library import Declared, operators
from ..weights import values_of
from .arguments import by_input, conflicting_axes
from .passes.types import tensor_types
from .shape_inference import NodeOutput, Source, infer_shapes

#: Largest difference of floats of a dtype, relative to the largest number of a tensor, or to 1.
_TOLERANCES = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-4}
#: With one of these operators rounding may change the order of rows, and which of them are kept.
_REORDERING = {
    *("_gluon_roi_BoxNMS", "_gluon_roi_Proposal", "_contrib_MultiBoxDetection"),
    *("topk", "argsort", "sort"),
}
#: What masks may differ by, as a multiple: they are pooled from boxes that rounding has moved.
_OF_MASKS = 10
#: The part of the rows that have to be found again if rounding may change their order.
_ROWS = 0.95
#: Bytes of tensors that are compared at once to find the first node that differs.
_CHUNK = 1 << 28
#: Operators between an input and the operator that reads it as boxes.
_COPIES = {"_copy", "BlockGrad", "Cast", "amp_cast", "_identity_with_attr_like_rhs"}
_CALLER = "onnx.export: verify"
#: Another size of a dynamic axis of size n. The first that the network accepts for all such axes is
#: used: a smaller image takes less time, and has the same remainder modulo powers of two up to 64.
_OTHER_SIZES: tuple[Callable[[int], int], ...] = (
    lambda n: n - 64 if n > 128 else 2 * n,
    lambda n: 2 * n,
    lambda n: n + 1,
    lambda n: n - 1 if n > 1 else 3,
)
#: Shapes with this many times the elements of input_shapes, or more, are not tried.
_MAX_GROWTH = 8


class NodeTensors(NamedTuple):
    """The outputs of MXNet's nodes, and which tensor of the final graph each one is.

    Attributes
    ----------
    nodes : list of dict
        The nodes, as in a symbol file.
    entries : dict
        (index of a node, index of its output) -> shape and type, in the order of the nodes.
    names : dict
        The same index -> name of the tensor in the final graph, if it has one.
    """

    nodes: list[dict]
    entries: dict[tuple[int, int], NodeOutput]
    names: dict[tuple[int, int], str]


def verify(
    model: onnx.ModelProto,
    weights: dict[str, np.ndarray],
    source: Source,
    tensors: NodeTensors,
    given: Any,
) -> None:
    """Raise RuntimeError, which names a node, if the outputs of a model are not MXNet's.

    Parameters
    ----------
    model, weights
        As for :func:`.file.save`.
    given
        Arrays for the inputs, in their order or by name. True draws them, and draws them again with
        another size of each dynamic axis.
    """
    arrays = _drawn(source, tensors, source.shapes) if given is True else _given(model, given)
    expected = _run_mxnet(source.symbol, source, arrays)
    names = [output.name for output in model.graph.output]
    session = _session(model, weights, names)
    _compare(model, weights, session, source, tensors, arrays, expected)
    if given is not True:
        return
    for arrays, expected in _with_other_sizes(source, tensors):
        try:
            _compare(model, weights, session, source, tensors, arrays, expected)
        except RuntimeError as error:
            sizes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            reason = str(error).replace(f"{_CALLER}:", f"{_CALLER}: with {sizes}:", 1)
            raise RuntimeError(reason) from error


def _compare(
    model: onnx.ModelProto,
    weights: dict[str, np.ndarray],
    session: Any,
    source: Source,
    tensors: NodeTensors,
    arrays: dict[str, np.ndarray],
    expected: list[np.ndarray],
) -> None:
    """Raise RuntimeError if the outputs of a model are not the ones expected."""
    names = [output.name for output in model.graph.output]
    found = _run_onnx(session, names, arrays)
    rows_may_change = any(node["op"] in _REORDERING for node in tensors.nodes)
    difference = _difference(names, found, expected, rows_may_change)
    if difference:
        where = _first_difference(model, weights, source, tensors, arrays)
        raise RuntimeError(f"{_CALLER}: {difference}; {where}")


# ---- Inputs --------------------------------------------------------------------------------------


def _given(model: onnx.ModelProto, given: Any) -> dict[str, np.ndarray]:
    """Arrays of a user by the names of the inputs."""
    inputs = [value.name for value in model.graph.input]
    types = tensor_types(model)
    flat = list(_flat(given)) if isinstance(given, (list, tuple)) else given
    by_name = by_input("verify", flat, inputs)
    arrays = {}
    for name in inputs:
        if name not in by_name:
            raise ValueError(f"{_CALLER}: expected an array for input {name}, got none")
        value = by_name[name]
        array = values_of(value) if isinstance(value, mx.nd.NDArray) else np.asarray(value)
        dtype, sizes = types[name]
        fits = len(sizes) == array.ndim and all(
            expected in (None, size) for expected, size in zip(sizes, array.shape)
        )
        if not fits or not np.can_cast(array.dtype, dtype, "same_kind"):
            raise ValueError(
                f"{_CALLER}: input {name}: expected {dtype} {sizes}, got {array.dtype} "
                f"{array.shape}"
            )
        arrays[name] = array.astype(dtype)
    return arrays


def _flat(given: Any) -> Iterator[Any]:
    for each in given:
        if isinstance(each, (list, tuple)):
            yield from _flat(each)
        else:
            yield each


def _with_other_sizes(
    source: Source, tensors: NodeTensors
) -> Iterator[tuple[dict[str, np.ndarray], list[np.ndarray]]]:
    """Random inputs with another size of each dynamic axis, and MXNet's outputs for them.

    All axes change at once if MXNet accepts that; otherwise as the inference of shapes changed
    them.
    """
    axes = [(name, axis) for name in source.shapes for axis in source.dynamic.get(name, ())]
    untried, refused = {*axes}, []
    for shapes in itertools.chain(_all_changed(source), _trials(source, tensors)):
        changed = {
            (name, axis)
            for name, axis in untried
            if shapes[name][axis] != source.shapes[name][axis]
        }
        if not changed or shapes in refused:
            continue
        try:
            arrays = _drawn(source, tensors, shapes)
            expected = _run_mxnet(source.symbol, source, arrays)
        except ValueError:
            refused.append(shapes)
            continue
        yield arrays, expected
        untried -= changed
        if not untried:
            return
    if untried:
        listed = ", ".join(f"{axis} of {name}" for name, axis in axes if (name, axis) in untried)
        warnings.warn(
            f"{_CALLER}: only the sizes of input_shapes are compared along axis {listed}, because "
            "MXNet accepts no other size that was tried",
            stacklevel=5,  # the caller of export
        )


def _all_changed(source: Source) -> Iterator[dict[str, tuple]]:
    """Shapes of the inputs in which all dynamic axes have another size."""
    for other in _OTHER_SIZES:
        yield {
            name: tuple(
                other(size) if axis in source.dynamic.get(name, ()) else size
                for axis, size in enumerate(shape)
            )
            for name, shape in source.shapes.items()
        }


def _trials(source: Source, tensors: NodeTensors) -> list[dict[str, tuple]]:
    """Shapes of the inputs that MXNet's inference accepts, the most similar ones first."""
    trials = {
        tensors.nodes[number]["name"]: entry.trials
        for (number, _), entry in tensors.entries.items()
        if tensors.nodes[number]["name"] in source.shapes
    }
    shapes = [dict(zip(trials, shapes)) for shapes in zip(*trials.values())]
    elements = [sum(map(np.prod, each.values())) for each in shapes]
    order = sorted(range(len(shapes)), key=lambda n: abs(elements[n] - elements[0]))
    return [
        shapes[n]
        for n in order
        if elements[n] < _MAX_GROWTH * elements[0]
        and conflicting_axes(source.dynamic, shapes[n]) is None
    ]


def _drawn(source: Source, tensors: NodeTensors, given: dict[str, tuple]) -> dict[str, np.ndarray]:
    """Random inputs: boxes on the map, the size of the image, and normal values for others.

    Raises
    ------
    ValueError
        The model does not accept these shapes.
    """
    random = np.random.RandomState(0)
    sizes = {**given, **{name: array.shape for name, array in source.arrays.items()}}
    inferred = infer_shapes(source.symbol.get_internals(), sizes)
    if inferred is None:
        raise ValueError(f"{_CALLER}: the shapes of the model cannot be inferred from {given}")
    shapes = dict(zip(tensors.entries, inferred))
    arrays = {}
    for (number, _), entry in tensors.entries.items():
        name = tensors.nodes[number]["name"]
        if tensors.nodes[number]["op"] != "null" or name not in given:
            continue
        values: Any = random.randn(*given[name])
        if entry.dtype.kind != "f":
            values = random.randint(256 if entry.dtype == np.uint8 else 2, size=given[name])
        arrays[name] = np.asarray(values, entry.dtype)
    for node in tensors.nodes:
        declared = operators().get(node["op"][len("_gluon_roi_") :])
        if node["op"].startswith("_gluon_roi_") and declared is not None:
            _draw_rois(arrays, shapes, tensors.nodes, node, declared, random)
    return arrays


def _draw_rois(
    arrays: dict[str, np.ndarray],
    shapes: dict[tuple[int, int], tuple],
    nodes: list[dict],
    node: dict,
    declared: Declared,
    random: np.random.RandomState,
) -> None:
    """Draw the inputs of an operator that are boxes, their numbers, or sizes of images."""
    attributes = node.get("attrs", {})
    given = [
        each for each in declared.inputs if not each.optional or is_true(attributes.get(each.name))
    ]
    images, _, *sides = shapes[tuple(node["inputs"][0][:2])][:4]
    for each, place in zip(given[::-1], node["inputs"][::-1]):
        number = place[0]
        while nodes[number]["op"] in _COPIES:
            number = nodes[number]["inputs"][0][0]
        name = nodes[number]["name"]
        if name not in arrays or nodes[number]["op"] != "null":
            continue
        array = arrays[name]
        if each.name == "im_info":
            stride = ast.literal_eval(attributes["feature_stride"])
            array[:] = [*(side * stride for side in sides), 1]
        elif each.role == "counts":
            total = shapes[tuple(node["inputs"][-2][:2])][0]
            array[:] = total // len(array)
            array[: total % len(array)] += 1
        elif each.role == "rois":
            scale = np.ravel(ast.literal_eval(attributes.get("spatial_scale", "1")))[0]
            extent = [side / scale for side in sides[::-1]] * 2
            corners = random.uniform(0, extent, (*array.shape[:-1], 4))
            low = np.minimum(corners[..., :2], corners[..., 2:])
            high = np.maximum(corners[..., :2], corners[..., 2:])
            boxes = [low, high]
            if declared.coordinates == 5:
                angles = random.uniform(-90, 90, (*array.shape[:-1], 1))
                boxes = [(low + high) / 2, high - low, angles]
            if array.shape[-1] > declared.coordinates:
                boxes.insert(0, random.randint(0, images, (*array.shape[:-1], 1)))
            array[:] = np.concatenate(boxes, axis=-1)


# ---- Both models ---------------------------------------------------------------------------------


def _run_mxnet(symbol: Any, source: Source, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a symbol of MXNet at inference."""
    values = {**source.arrays, **arrays}
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    try:
        inferred, _, states = symbol.infer_shape(
            **{name: value.shape for name, value in values.items() if name in names}
        )
        shapes = dict(zip(names, inferred + states))
        given = [
            mx.nd.array(values[name], dtype=values[name].dtype)
            if name in values
            else mx.nd.zeros(shapes[name])  # a label, which has no value
            for name in symbol.list_inputs()
        ]
        with mx.autograd.pause():
            outputs = mx.nd.CachedOp(symbol)(*given)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [output.asnumpy() for output in outputs]
    except mx.MXNetError as error:
        raise ValueError(
            f"{_CALLER}: MXNet rejects the inputs, give arrays that the model accepts: "
            f"{sentence(str(error).strip().splitlines()[-1])}"
        ) from None


def _session(model: onnx.ModelProto, weights: dict[str, np.ndarray], outputs: Sequence[str]) -> Any:
    """A model in onnxruntime, with these tensors as outputs."""
    import onnxruntime

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    own = {output.name for output in model.graph.output}
    copy.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(name) for name in outputs if name not in own
    )
    for name, value in weights.items():
        tensor = copy.graph.initializer.add(name=name, dims=value.shape)
        tensor.data_type = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="given below")
    values = [
        onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value))
        for value in weights.values()
    ]
    options.add_external_initializers(list(weights), values)
    with _errors_of_onnxruntime():
        return onnxruntime.InferenceSession(
            copy.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )


def _run_onnx(
    session: Any, outputs: Sequence[str], arrays: dict[str, np.ndarray]
) -> list[np.ndarray]:
    with _errors_of_onnxruntime():
        return session.run(list(outputs), arrays)


@contextlib.contextmanager
def _errors_of_onnxruntime() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # onnxruntime has no common class of errors
        reason = " ".join(str(error).split())
        raise RuntimeError(f"{_CALLER}: onnxruntime does not run the model: {reason}") from error


# ---- Comparison ----------------------------------------------------------------------------------


def _allowed(expected: np.ndarray) -> float:
    """The largest allowed difference of an element."""
    if expected.dtype.kind != "f":
        return 0
    return _TOLERANCES[expected.dtype.name] * np.abs(expected[np.isfinite(expected)]).max(initial=1)


def _are_close(found: np.ndarray, expected: np.ndarray, allowed: float) -> np.ndarray:
    """Whether elements are equal, both NaN, or differ by no more than is allowed."""
    a, b = found.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed)


def _difference(
    names: Sequence[str],
    found: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    rows_may_change: bool,
) -> str | None:
    """What differs, or None."""
    groups: dict[tuple, list[int]] = {}
    images_and_rows = {theirs.shape[:2] for theirs in expected if theirs.ndim > 2}
    for number, (name, ours, theirs) in enumerate(zip(names, found, expected)):
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return (
                f"output {name} is {ours.dtype} {ours.shape}, but {theirs.dtype} {theirs.shape} in "
                "MXNet"
            )
        # Rows of detections: (rows, ...), or (images, rows, ...); CenterNet's scores have no more.
        rows = theirs.shape[: 2 if theirs.ndim > 2 or theirs.shape in images_and_rows else 1]
        groups.setdefault(rows if theirs.ndim > 1 else (number,), []).append(number)
    for rows, numbers in groups.items():
        for number in numbers:
            theirs = expected[number]
            if _are_close(found[number], theirs, _allowed(theirs)).all():
                continue
            if not rows_may_change or theirs.ndim < 2:
                return f"output {names[number]} differs by {_size(found, expected, number)}"
            are_detections = len(numbers) > 1
            limits = [
                _allowed(expected[n])
                * (_OF_MASKS if are_detections and expected[n].ndim > 3 else 1)
                for n in numbers
            ]
            count = _found_rows(
                [found[n].reshape(*rows, -1) for n in numbers],
                [expected[n].reshape(*rows, -1) for n in numbers],
                limits,
            )
            total = int(np.prod(rows))
            if count < _ROWS * total:
                listed = ", ".join(names[n] for n in numbers)
                return f"only {count} of {total} rows of {listed} are those of MXNet"
            break
    return None


def _size(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], number: int) -> str:
    a, b = (np.asarray(each[number], np.float64) for each in (found, expected))
    if (np.isfinite(a) != np.isfinite(b)).any():
        return "numbers that are finite in one of them only"
    finite = np.isfinite(b)
    if not finite.any():
        return "its infinite numbers"
    off, largest = np.abs(a - b)[finite].max(), np.abs(b[finite]).max()
    return f"up to {off:.3g}, where the largest number is {largest:.3g}"


def _found_rows(found: list[np.ndarray], expected: list[np.ndarray], limits: list[float]) -> int:
    """The number of rows that are found again, in any order, each once, in the same image."""
    images = [each.reshape(-1, *each.shape[-2:]) for each in (*found, *expected)]
    width = sum(each.shape[-1] for each in expected)
    count = 0
    for parts in zip(*images):
        ours, theirs = parts[: len(found)], parts[len(found) :]
        keys, wanted = _row_sums(ours, limits), _row_sums(theirs, limits)
        order = np.argsort(keys)
        # No number of an equal row differs by more than its limit, so their sums are near.
        begins = np.searchsorted(keys[order], wanted - width - 1)
        ends = np.searchsorted(keys[order], wanted + width + 1)
        unused = np.ones(len(order), bool)
        for row, (begin, end) in enumerate(zip(begins, ends)):
            places = order[begin:end]
            places = places[unused[places]]
            for a, b, limit in zip(ours, theirs, limits):
                places = places[_are_close(a[places], b[row], limit).all(axis=1)]
            count += places.size > 0
            unused[places[:1]] = False
    return int(count)


def _row_sums(parts: Sequence[np.ndarray], limits: Sequence[float]) -> np.ndarray:
    """The sum of each row, in which numbers are divided by their limits."""
    sums = [
        np.where(np.isfinite(part), part, 0).astype(np.float64).sum(axis=1) / (limit or 1)
        for part, limit in zip(parts, limits)
    ]
    return np.sum(sums, axis=0)


def _first_difference(
    model: onnx.ModelProto,
    weights: dict[str, np.ndarray],
    source: Source,
    tensors: NodeTensors,
    arrays: dict[str, np.ndarray],
) -> str:
    """The first node of MXNet whose output differs."""
    internals = source.symbol.get_internals()
    indices = {place: number for number, place in enumerate(tensors.entries)}
    for places in _chunks(tensors):
        symbol = mx.sym.Group([internals[indices[place]] for place in places])
        expected = _run_mxnet(symbol, source, arrays)
        names = [tensors.names[place] for place in places]
        found = _run_onnx(_session(model, weights, names), names, arrays)
        for place, ours, theirs in zip(places, found, expected):
            same = (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            if not same or not _are_close(ours, theirs, _allowed(theirs)).all():
                node = tensors.nodes[place[0]]
                return f"the first node that differs is {node['name']} ({node['op']})"
    return "no other node differs"


def _chunks(tensors: NodeTensors) -> Iterator[list[tuple[int, int]]]:
    """The tensors of the final graph, in groups that need little memory at once."""
    chunk: list[tuple[int, int]] = []
    size = 0
    for place in tensors.names:
        entry = tensors.entries[place]
        chunk.append(place)
        size += int(np.prod(entry.shape)) * entry.dtype.itemsize
        if size > _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
