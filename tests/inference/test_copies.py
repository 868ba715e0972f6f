# SPDX-License-Identifier: Apache-2.0
"""Concat, Transpose and Repeat give the bytes of MXNet's operators, alone and in networks."""

from __future__ import annotations

import contextlib
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import nn

import gluon_roi
from gluon_roi.bridge.symbol_json import symbol_content
from gluon_roi.inference import convert, copies, gemm_layers
from testing.inference_operators import function_for

#: Bits of numbers, half of which are NaN of any payload, subnormal, infinite or a zero.
SPECIAL = np.array(
    [
        0x7FC00000,
        0x7F800001,
        0xFFC12345,
        0x7FFFFFFF,
        0x00000001,
        0x80000000,
        0x7F800000,
        0xFF800000,
    ],
    np.uint32,
)


def numbers(random: np.random.RandomState, shape: tuple[int, ...]) -> mx.nd.NDArray:
    size = int(np.prod(shape))
    bits = np.frombuffer(random.bytes(4 * size), np.uint32).reshape(shape)
    chosen = random.randint(0, 2 * len(SPECIAL), shape)
    bits = np.where(chosen < len(SPECIAL), SPECIAL[chosen % len(SPECIAL)], bits).astype(np.uint32)
    return mx.nd.array(bits.view(np.float32), dtype="float32")


def bytes_of(array: mx.nd.NDArray) -> tuple[Any, ...]:
    return array.shape, array.dtype, array.asnumpy().tobytes()


def random_shape(random: np.random.RandomState, rank: int, most: int) -> tuple[int, ...]:
    """Sizes with about `most` numbers, many of which are 1."""
    sizes = [1] * rank
    for axis in random.permutation(rank):
        room = most // int(np.prod(sizes))
        sizes[axis] = int(random.choice([1, 2, 3, 4, 5, 8, random.randint(1, room + 1)]))
        sizes[axis] = min(sizes[axis], max(room, 1))
    return tuple(sizes)


class Concat:
    """Arrays, and the axis along which they are joined."""

    operator = copies.CONCAT

    @staticmethod
    def draw(random: np.random.RandomState, rank: int) -> tuple[list, dict[str, Any]]:
        count = int(random.choice([1, 2, 3, 3, 5, 80]))
        shape = random_shape(random, rank, 20000 // count + 1)
        axis = random.randint(rank)
        several = [
            (*shape[:axis], int(random.choice([shape[axis], 1, 2, 4])), *shape[axis + 1 :])
            for _ in range(count)
        ]
        dim = axis - rank if random.rand() < 0.5 else axis
        return [numbers(random, one) for one in several], {"num_args": count, "dim": dim}

    @staticmethod
    def wanted(arrays: list, attributes: dict[str, Any]) -> mx.nd.NDArray:
        return mx.nd.Concat(*arrays, dim=attributes["dim"])


class Transpose:
    """An array, and the order of its axes."""

    operator = copies.TRANSPOSE

    @staticmethod
    def draw(random: np.random.RandomState, rank: int) -> tuple[list, dict[str, Any]]:
        axes = tuple(int(axis) for axis in random.permutation(rank))
        return [numbers(random, random_shape(random, rank, 30000))], {"axes": axes}

    @staticmethod
    def wanted(arrays: list, attributes: dict[str, Any]) -> mx.nd.NDArray:
        return mx.nd.transpose(*arrays, **attributes)


class Repeat:
    """An array, how often its parts are repeated, and the axis."""

    operator = copies.REPEAT

    @staticmethod
    def draw(random: np.random.RandomState, rank: int) -> tuple[list, dict[str, Any]]:
        shape = random_shape(random, rank, 10000)
        repeats = int(random.choice([1, 2, 2, 3, 9]))
        return [numbers(random, shape)], {"repeats": repeats, "axis": random.randint(-rank, rank)}

    @staticmethod
    def wanted(arrays: list, attributes: dict[str, Any]) -> mx.nd.NDArray:
        return mx.nd.repeat(*arrays, **attributes)


KINDS = pytest.mark.parametrize("kind", [Concat, Transpose, Repeat], ids=lambda kind: kind.__name__)


@pytest.mark.parametrize("first, second", [(0, 0), (0, 23), (23, 0)])
@KINDS
def test_output_that_shares_memory_with_an_input(kind, first, second):
    attributes: dict[Any, dict[str, Any]] = {
        Concat: {"num_args": 1, "dim": 0},
        Transpose: {"axes": (2, 1, 0)},
        Repeat: {"repeats": 1, "axis": 0},
    }
    buffer = mx.nd.arange(47)
    data, out = (buffer[begin : begin + 24].reshape((2, 3, 4)) for begin in (first, second))
    shaped = out.reshape((4, 3, 2)) if kind is Transpose else out
    with pytest.raises(mx.MXNetError, match="output: expected memory of its own"):
        function_for(kind.operator, data)(data, **attributes[kind], out=shaped).wait_to_read()
    assert (buffer == mx.nd.arange(47)).asnumpy().all()


def call(kind: Any, *arrays: Any, **attributes: Any) -> Any:
    return function_for(kind.operator, arrays[0])(*arrays, **attributes)


# ---- Values --------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("rank", range(1, 7))
def test_bytes_of_mxnet(kind, rank):
    random = np.random.RandomState(rank)
    for _ in range(40):
        arrays, attributes = kind.draw(random, rank)
        got = bytes_of(call(kind, *arrays, **attributes))
        assert got == bytes_of(kind.wanted(arrays, attributes)), (attributes, arrays[0].shape)


@pytest.mark.parametrize("rank", [7, 8])
def test_more_axes_than_mxnet_has(rank):
    """MXNet's transpose has at most 6 axes."""
    random = np.random.RandomState(0)
    (array,), attributes = Transpose.draw(random, rank)
    got = call(Transpose, array, **attributes)
    assert bytes_of(got)[2] == array.asnumpy().transpose(attributes["axes"]).tobytes()


@pytest.mark.parametrize(
    "shapes, dim",
    [
        ([(2, 0, 3), (2, 4, 3)], 1),
        ([(2, 0, 3), (2, 0, 3)], 1),
        ([(0, 4), (0, 2)], 1),
        ([(3, 0), (2, 0)], 0),
        ([(0,), (5,), (0,)], 0),
    ],
)
def test_empty_arrays(shapes, dim):
    with mx.util.np_shape():
        arrays = [numbers(np.random.RandomState(0), shape) for shape in shapes]
        got = call(Concat, *arrays, num_args=len(arrays), dim=dim)
        wanted = np.concatenate([array.asnumpy() for array in arrays], dim)
        assert bytes_of(got) == (wanted.shape, np.float32, wanted.tobytes())
        rank = len(shapes[0])
        for array in arrays:
            axes = tuple(range(rank))[::-1]
            assert call(Transpose, array, axes=axes).shape == array.shape[::-1]
            assert call(Repeat, array, repeats=2, axis=0).shape[0] == 2 * array.shape[0]


def test_worked_numbers():
    one, two = mx.nd.array([[1], [2]]), mx.nd.array([[3, 4], [5, 6]])
    assert call(Concat, one, two, num_args=2, dim=1).asnumpy().tolist() == [[1, 3, 4], [2, 5, 6]]
    assert call(Transpose, mx.nd.array([[1, 2, 3]]), axes=(1, 0)).asnumpy().tolist() == [
        [1],
        [2],
        [3],
    ]
    assert call(Repeat, mx.nd.array([1, 2]), repeats=2, axis=0).asnumpy().tolist() == [1, 1, 2, 2]


# ---- Shapes, types and refusals ------------------------------------------------------------------


def test_symbols():
    names = [f"data{i}" for i in range(80)]
    symbol = call(Concat, *map(mx.sym.var, names), num_args=80, dim=-2)
    symbol = mx.sym.load_json(symbol.tojson())
    shapes = {name: (2, 3, 1, i + 1, 5) for i, name in enumerate(names)}
    assert symbol.infer_shape(**shapes)[1] == [(2, 3, 1, 80 * 81 // 2, 5)]
    assert symbol.infer_type(data0="float32")[1] == [np.float32]
    symbol = call(Transpose, mx.sym.var("data"), axes=(4, 0, 3, 1, 2))
    assert symbol.infer_shape(data=(2, 3, 4, 5, 6))[1] == [(6, 2, 5, 3, 4)]
    symbol = call(Repeat, mx.sym.var("data"), repeats=3, axis=-2)
    assert symbol.infer_shape(data=(2, 3, 4, 5, 6))[1] == [(2, 3, 4, 15, 6)]


def test_sizes_that_follow_from_other_inputs():
    """As in MXNet, an input may have unknown sizes, 0, where another one has known ones."""
    for concat in (mx.sym.Concat, lambda *two, dim: call(Concat, *two, num_args=2, dim=dim)):
        symbol = concat(mx.sym.var("data"), mx.sym.zeros((0, 4, 0)), dim=1)
        assert symbol.infer_shape(data=(2, 3, 5))[1] == [(2, 7, 5)]


def test_partial_shapes():
    symbol = call(Concat, mx.sym.var("a"), mx.sym.var("b"), num_args=2, dim=1)
    assert symbol.infer_shape_partial(a=(2, 3, 4))[1] == [()]
    assert symbol.infer_shape_partial(a=(2, 0, 4), b=(2, 3, 4))[1] == [(2, 0, 4)]
    with pytest.raises(mx.MXNetError, match="Concat: data has no shape"):
        symbol.infer_shape(a=(2, 3, 4))


@pytest.mark.parametrize(
    "kind, shapes, attributes, expected",
    [
        (
            Concat,
            [(2, 3), (3, 3)],
            {"dim": 1},
            r"data has shapes \(2, 3\) and \(3, 3\), expected eq",
        ),
        (Concat, [(2, 3), (2, 3, 1)], {"dim": 1}, r"data has shapes \(2, 3\) and \(2, 3, 1\)"),
        (
            Concat,
            [(2, 3)] * 2,
            {"dim": 2},
            "argument dim: expected an axis of data of shape .*, got 2",
        ),
        (Concat, [(2, 3)] * 2, {"dim": -3}, "argument dim: expected an axis of data"),
        (
            Transpose,
            [(2, 3)],
            {"axes": (0, 1, 2)},
            r"data has shape \(2, 3\), expected 3 dimensions",
        ),
        (
            Transpose,
            [(2, 3)],
            {"axes": (0, 0)},
            "argument axes: expected each of the axes 0 to n - 1",
        ),
        (Transpose, [(2, 3)], {"axes": (0, -1)}, "argument axes: expected each of the axes"),
        (Transpose, [(2, 3)], {}, "argument axes: expected each of the axes .*, got nothing"),
        (Repeat, [(2, 3)], {"repeats": 0}, "argument repeats: expected an int from 1"),
        (Repeat, [(2, 3)], {"axis": 2}, "argument axis: expected an axis of data"),
        (Repeat, [(1 << 20,)], {"repeats": 1 << 20}, "output is too large"),
    ],
)
def test_refusals(kind, shapes, attributes, expected):
    if kind is Concat:
        attributes = {"num_args": len(shapes), **attributes}
    with pytest.raises(mx.MXNetError, match=f"{kind.__name__}: {expected}"):
        call(kind, *map(mx.nd.zeros, shapes), **attributes)


@KINDS
def test_wrong_type(kind):
    (array, *_), attributes = kind.draw(np.random.RandomState(0), 2)
    attributes.pop("num_args", None)
    with pytest.raises(mx.MXNetError, match="data has dtype float64, expected float32"):
        call(kind, array.astype("float64"), **attributes)


@KINDS
def test_no_gradient(kind):
    (data, *_), attributes = kind.draw(np.random.RandomState(0), 2)
    attributes.pop("num_args", None)
    data.attach_grad()
    with mx.autograd.record():
        out = call(kind, data, **attributes)
    with pytest.raises(mx.MXNetError, match=f"{kind.__name__}: has no gradient, because it is for"):
        out.backward()
        data.grad.wait_to_read()


def test_output_that_is_an_input():
    data = mx.nd.zeros((3, 3))
    with pytest.raises(mx.MXNetError, match="Transpose: output: .* is shared with data"):
        call(Transpose, data, axes=(1, 0), out=data).wait_to_read()


# ---- Networks ------------------------------------------------------------------------------------


class Decoder(mx.gluon.HybridBlock):
    """What GluonCV's YOLOv3 and SSD do with their maps: rows of a class, a score and a box."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.classes = classes
        self.features = nn.Conv2D(24, 3, padding=1, in_channels=8)
        self.scores = nn.Conv2D(3 * classes, 1, in_channels=24)
        self.boxes = nn.Conv2D(12, 1, in_channels=24)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        features = self.features(x)
        large = features.repeat(axis=-1, repeats=2).repeat(axis=-2, repeats=2)
        features = F.concat(F.slice_like(large, x * 0, axes=(2, 3)), features, dim=1)
        features = F.slice_axis(features, axis=1, begin=0, end=24)
        scores = self.scores(features).reshape((0, 3, self.classes, -1)).transpose((0, 3, 1, 2))
        boxes = self.boxes(features).reshape((0, 3, 4, -1)).transpose((0, 3, 1, 2))
        # YOLOv3
        all_boxes = F.tile(boxes.expand_dims(0), reps=(self.classes, 1, 1, 1, 1))
        all_scores = F.transpose(scores.expand_dims(axis=-1), axes=(3, 0, 1, 2, 4))
        ids = F.broadcast_add(all_scores * 0, F.arange(0, self.classes).reshape((0, 1, 1, 1, 1)))
        rows = F.concat(ids, all_scores, all_boxes, dim=-1)
        yolo = F.reshape(rows.transpose(axes=(1, 0, 2, 3, 4)), (0, -1, 6))
        # SSD
        flat_scores, flat_boxes = scores.reshape((0, -1, self.classes)), boxes.reshape((0, -1, 4))
        results = []
        for number in range(self.classes):
            score = flat_scores.slice_axis(axis=-1, begin=number, end=number + 1)
            results.append(F.concat(score * 0 + number, score, flat_boxes, dim=-1))
        return yolo, F.concat(*results, dim=1)


def operators(network: Any) -> list[str]:
    (graph,) = network._call_cached_op._converted.values()
    return [node["op"] for node in symbol_content(graph.compiled._symbol)["nodes"]]


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(copies, "SMALL", 0)


def decoder() -> tuple[Any, list[mx.nd.NDArray]]:
    """A network, and maps of several sizes and batches."""
    mx.random.seed(0)
    network = Decoder()
    network.initialize(mx.init.Uniform(0.5))
    network.hybridize()
    shapes = [(1, 8, 20, 24), (1, 8, 20, 24), (3, 8, 9, 7), (2, 8, 1, 1), (1, 8, 20, 24)]
    return network, [mx.nd.random.uniform(-1, 1, shape) for shape in shapes]


def results(network: Any, maps: list[mx.nd.NDArray]) -> list[tuple]:
    gluon_roi.optimize(network, maps[0], inference=True)
    return [bytes_of(one) for data in maps for one in network(data)]


def differences(network: Any, maps: list[mx.nd.NDArray], monkeypatch: Any) -> int:
    """How many outputs have other bytes with this package's copies than with MXNet's."""
    with monkeypatch.context() as patch:
        others = [one for one in convert.PASSES if one.change is not copies.use_copies]
        patch.setattr(convert, "PASSES", others)
        wanted = results(network, maps)
        assert copies.CONCAT not in operators(network)
    got = results(network, maps)
    assert {copies.CONCAT, copies.TRANSPOSE, copies.REPEAT} <= {*operators(network)}
    return sum(one != other for one, other in zip(got, wanted))


def test_detector(any_size, monkeypatch):
    network, maps = decoder()
    assert differences(network, maps, monkeypatch) == 0
    found = operators(network)
    assert not {"Concat", "repeat"} & {*found}
    assert found.count("_mul_scalar") == 6  # not x * 0, of which only the shape is read


def _wrong_axis(monkeypatch):
    """Arrays are joined along the axis before."""
    copy = copies._copy

    def moved(graph: Any, number: int) -> Any:
        found = copy(graph, number)
        if found is not None and found[0] == copies.REPEAT:
            found[1]["axis"] = -1
        return found

    monkeypatch.setattr(copies, "_copy", moved)


def _axes_inverted(monkeypatch):
    copy = copies._copy

    def inverted(graph: Any, number: int) -> Any:
        found = copy(graph, number)
        if found is not None and found[0] == copies.TRANSPOSE:
            found[1]["axes"] = tuple(int(axis) for axis in np.argsort(found[1]["axes"]))
        return found

    monkeypatch.setattr(copies, "_copy", inverted)


def _inputs_exchanged(monkeypatch):
    node = copies.InferenceGraph.node

    def exchanged(graph: Any, operator: str, name: str, inputs: Any, **attributes: Any) -> Any:
        inputs = inputs[::-1] if operator == copies.CONCAT else inputs
        return node(graph, operator, name, inputs, **attributes)

    monkeypatch.setattr(copies.InferenceGraph, "node", exchanged)


@pytest.mark.parametrize(
    "fault", [_wrong_axis, _axes_inverted, _inputs_exchanged], ids=lambda fault: fault.__name__[1:]
)
def test_planted_faults_are_found(any_size, monkeypatch, fault):
    fault(monkeypatch)
    network, maps = decoder()
    with contextlib.suppress(mx.MXNetError):  # shapes that do not fit
        assert differences(network, maps, monkeypatch) > 0


def converted(symbol: Any, **inputs: Any) -> list[str]:
    made = convert.convert(symbol, {}, inputs)
    return [node["op"] for node in symbol_content(made.symbol)["nodes"] if node["op"] != "null"]


LARGE = (1, 4, 16, 16, 4)


@pytest.mark.parametrize(
    "make, operator",
    [
        (lambda data: mx.sym.Concat(data, data), copies.CONCAT),
        (lambda data: mx.sym.Concat(data), "Concat"),
        (lambda data: mx.sym.transpose(data, axes=(0, 2, 3, 1, 4)), copies.TRANSPOSE),
        (lambda data: mx.sym.transpose(data), "transpose"),
        (lambda data: mx.sym.repeat(data, repeats=2, axis=1), copies.REPEAT),
        (lambda data: mx.sym.repeat(data, repeats=2), "repeat"),
    ],
)
def test_what_is_replaced(make, operator):
    symbol, data = make(mx.sym.var("data")), mx.nd.zeros(LARGE)
    assert converted(symbol, data=data) == [operator]
    # Not of another type, of few numbers, or of a file, of which the types are not known.
    kept = symbol_content(symbol)["nodes"][-1]["op"]
    assert converted(symbol, data=data.astype("float64")) == [kept]
    assert converted(symbol, data=data[:, :, :4, :4, :1]) == [kept]
    assert converted(symbol, data=LARGE) == [kept]


def test_transpose_of_few_axes():
    """It is oneDNN's in MXNet, and stays."""
    symbol = mx.sym.transpose(mx.sym.var("data"), axes=(0, 2, 3, 1))
    assert converted(symbol, data=mx.nd.zeros((1, 4, 64, 64))) == ["transpose"]


@pytest.mark.parametrize("in_mxnets", [True, False])
def test_layouts_of_onednn(any_size, monkeypatch, in_mxnets):
    """A Concat of maps that oneDNN has laid out stays."""
    monkeypatch.setattr(gemm_layers, "mxnets_layout_pays", lambda *_: in_mxnets)
    conv = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=16, name="conv")
    joined = mx.sym.Concat(conv, mx.sym.Activation(conv, act_type="relu"), dim=1)
    params = {"conv_weight": mx.nd.ones((16, 16, 1, 1)), "conv_bias": mx.nd.zeros(16)}
    made = convert.convert(joined, params, {"data": mx.nd.zeros((1, 16, 16, 16))})
    found = [node["op"] for node in symbol_content(made.symbol)["nodes"]]
    assert (copies.CONCAT in found, "Concat" in found) == (in_mxnets, not in_mxnets)
