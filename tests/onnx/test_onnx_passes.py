# SPDX-License-Identifier: Apache-2.0
"""The passes that simplify exported graphs.

Batch normalisation is folded into layers, constants are evaluated, nodes that change nothing are
removed, and nothing else: equal nodes stay.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from support.onnx_evaluator import run

import gluon_roi

onnx = pytest.importorskip("onnx")
S = mx.sym
X = S.var("x")


@pytest.fixture(autouse=True)
def _plain_mxnet(monkeypatch: Any) -> None:
    """MXNet's own folding is wrong if something else reads the output of a layer, too."""
    monkeypatch.setenv("MXNET_SUBGRAPH_BACKEND", "NONE")


def _parameters(symbol: Any, shape: tuple, dtype: str = "float32", **given: Any) -> dict:
    random = np.random.RandomState(0)
    arguments, _, states = symbol.infer_shape(x=shape)
    names = symbol.list_arguments() + symbol.list_auxiliary_states()
    shapes = zip(names, arguments + states)
    made = {
        name: random.uniform(0.5, 2, size) * random.choice([-1, 1], size) for name, size in shapes
    }
    made = {
        name: np.abs(v) if name.endswith("var") else v for name, v in made.items() if name != "x"
    }
    return {name: given.get(name, value).astype(dtype) for name, value in made.items()}


def _export(symbol: Any, path: Any, shape: tuple, parameters: dict, **options: Any) -> tuple:
    """The nodes and constants of the file, its output, and MXNet's."""
    gluon_roi.onnx.export(symbol, [shape], path, parameters, **options)
    graph = onnx.load(str(path)).graph
    x = np.random.RandomState(1).randn(*shape).astype(options.get("input_types", ["float32"])[0])
    arrays = {name: mx.nd.array(value, dtype=value.dtype) for name, value in parameters.items()}
    arrays["x"] = mx.nd.array(x, dtype=x.dtype)
    bound = symbol.bind(
        mx.cpu(),
        {name: arrays[name] for name in symbol.list_arguments()},
        aux_states={name: arrays[name] for name in symbol.list_auxiliary_states()},
    )
    constants = {value.name for value in graph.initializer}
    used = {name for node in graph.node for name in node.input}
    assert constants <= used
    return graph.node, constants, run(path, x)[0], bound.forward(is_train=False)[0].asnumpy()


def _norm(data: Any, name: str = "norm", **attributes: Any) -> Any:
    return S.BatchNorm(data, name=name, fix_gamma=False, **attributes)


def _layer(operator: str, bias: bool, **attributes: Any) -> Any:
    return getattr(S, operator)(X, name="layer", no_bias=not bias, **attributes)


LAYERS: dict[str, tuple[Any, tuple]] = {
    "Conv": (
        _layer("Convolution", False, kernel=(3, 3), pad=(1, 1), num_filter=6),
        (2, 4, 5, 6),
    ),
    "Conv, groups, bias": (
        _layer("Convolution", True, kernel=(2, 3), stride=(2, 1), num_filter=6, num_group=2),
        (2, 4, 5, 6),
    ),
    "ConvTranspose": (
        _layer("Deconvolution", False, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=6),
        (2, 4, 3, 4),
    ),
    "ConvTranspose, groups, bias": (
        _layer(
            "Deconvolution", True, kernel=(3, 2), stride=(2, 2), adj=(1, 0), num_filter=6,
            num_group=2,
        ),
        (2, 4, 3, 4),
    ),
    "Gemm": (_layer("FullyConnected", False, num_hidden=6), (2, 4, 3)),
    "Gemm, bias": (_layer("FullyConnected", True, num_hidden=6), (2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_a_norm_goes_into_the_layer_before(name, tmp_path):
    layer, shape = LAYERS[name]
    symbol = _norm(layer)
    parameters = _parameters(symbol, shape)
    nodes, constants, found, expected = _export(symbol, tmp_path / "m.onnx", shape, parameters)
    names = [node.name for node in nodes if node.op_type != "Flatten"]
    assert names == [f"layer/{name.split(',')[0]}"]
    assert constants == {"layer_weight", "layer_bias"}
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_without_folding_a_norm_and_its_layer_stay(name, tmp_path):
    layer, shape = LAYERS[name]
    symbol = S.relu(S.BatchNorm(_norm(layer), name="ones", momentum=0.75))
    parameters = _parameters(symbol, shape)
    path = tmp_path / "m.onnx"
    nodes, _, found, expected = _export(symbol, path, shape, parameters, fold=False)
    norms = [node for node in nodes if node.op_type == "BatchNormalization"]
    assert [node.name.split("/")[0] for node in norms] == ["norm", "ones"]
    attributes = [{a.name: onnx.helper.get_attribute_value(a) for a in n.attribute} for n in norms]
    assert ["momentum" in found for found in attributes] == [False, True]
    assert attributes[1]["momentum"] == 0.75
    weights = _constants(path)
    (fixed_gamma,) = {*weights} - {*parameters}
    np.testing.assert_array_equal(weights.pop(fixed_gamma), np.ones_like(parameters["ones_gamma"]))
    del parameters["ones_gamma"]
    assert {n: v.tobytes() for n, v in weights.items()} == {
        n: v.tobytes() for n, v in parameters.items()
    }
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def _constants(path: Any) -> dict[str, np.ndarray]:
    """The constants of a file, other than shapes."""
    values = {v.name: onnx.numpy_helper.to_array(v) for v in onnx.load(str(path)).graph.initializer}
    return {name: value for name, value in values.items() if value.dtype != np.int64}


def _conv(data: Any, name: str = "layer", **inputs: Any) -> Any:
    return S.Convolution(data, name=name, kernel=(1, 1), num_filter=4, no_bias=True, **inputs)


def _shared(x: Any) -> Any:
    weight = S.var("w")
    return _norm(_conv(x, "a", weight=weight)) + _norm(_conv(x + 1, "b", weight=weight), "other")


#: Each: a function of the input, parameters, and how many norms stay.
OTHERS: dict[str, tuple[Callable, dict, int]] = {
    "before a layer": (lambda x: _conv(_norm(x)), {}, 1),
    "after another function": (lambda x: _norm(S.relu(_conv(x))), {}, 1),
    "output of a layer used twice": (lambda x: (lambda y: _norm(y) + y)(_conv(x)), {}, 1),
    "weights that would vanish": (
        lambda x: _norm(_norm(_conv(x)), "second", eps=1e-30),
        {"norm_gamma": np.full(4, 1e-40), "second_moving_var": np.full(4, 1e-30)},
        2,
    ),
    "two layers of one weight": (_shared, {}, 0),
    "two layers of equal constants": (
        lambda x: (
            _norm(_conv(x, "a", weight=S.ones((4, 4, 1, 1))))
            + _norm(_conv(x, "b", weight=S.ones((4, 4, 1, 1))), "other")
            + _conv(x, "c", weight=S.ones((4, 4, 1, 1)))
        ),
        {},
        0,
    ),
    "a norm of zeros": (lambda x: _norm(_conv(x)), {"norm_gamma": np.zeros(4)}, 0),
    "two norms": (lambda x: _norm(_norm(_conv(x)), "second"), {}, 0),
}


@pytest.mark.parametrize("name", OTHERS)
def test_norms_that_stay(name, tmp_path):
    make, given, norms = OTHERS[name]
    symbol, shape = make(X), (2, 4, 3, 3)
    parameters = _parameters(symbol, shape, **given)
    nodes, _, found, expected = _export(symbol, tmp_path / "m.onnx", shape, parameters)
    assert sum(node.op_type == "BatchNormalization" for node in nodes) == norms
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


#: Each: a function of the input (2, 4, 6), and the operators that are left.
DEBRIS: dict[str, tuple[Callable, list]] = {
    "identity": (lambda x: S.identity(S.exp(S.identity(x))), ["Exp"]),
    "output without a name of its own": (lambda x: S.identity(x), ["Identity"]),
    "reshapes": (lambda x: S.exp(S.reshape(S.reshape(x, (8, 6)), (3, 16))), ["Exp", "Reshape"]),
    "a reshape and back": (lambda x: S.exp(S.reshape(S.reshape(x, (8, 6)), (2, 4, 6))), ["Exp"]),
    "axes and back": (lambda x: S.exp(S.squeeze(S.expand_dims(x, 1), 1)), ["Exp"]),
    "transposes": (
        lambda x: S.exp(S.transpose(S.transpose(x, (1, 2, 0)), (1, 2, 0))),
        ["Exp", "Transpose"],
    ),
    "transposes that cancel": (
        lambda x: S.exp(S.transpose(S.transpose(x, (1, 2, 0)), (2, 0, 1))),
        ["Exp"],
    ),
    "casts that keep every number": (
        lambda x: S.exp(S.cast(S.cast(x, "float64"), "float32")),
        ["Exp"],
    ),
    "casts that round": (
        lambda x: S.exp(S.cast(S.cast(x, "float16"), "float32")),
        ["Cast", "Cast", "Exp"],
    ),
    "to whole numbers and back": (
        lambda x: S.exp(S.cast(S.cast(x, "int32"), "float32")),
        ["Cast", "Cast", "Exp"],
    ),
    "equal nodes, which runtimes merge": (lambda x: S.exp(x) * S.exp(x), ["Exp", "Exp", "Mul"]),
    "constants": (
        lambda x: S.broadcast_add(
            x, S.transpose(S.broadcast_sub(S.ones((6, 4)) * 3, S.arange(4, 5).reshape((1, 1))))
        ),
        ["Add"],
    ),
    "transposes around casts that cancel": (
        lambda x: S.exp(
            S.cast(S.transpose(S.transpose(S.cast(x, "float64"), (1, 2, 0)), (2, 0, 1)), "float32")
        ),
        ["Exp"],
    ),
    "sizes": (lambda x: S.broadcast_like(S.sum(x, 1, keepdims=True), x), ["Expand", "ReduceSum"]),
}


@pytest.mark.parametrize("name", DEBRIS)
def test_debris(name, tmp_path):
    make, left = DEBRIS[name]
    nodes, _, found, expected = _export(make(X), tmp_path / "m.onnx", (2, 4, 6), {})
    assert sorted(node.op_type for node in nodes) == left
    np.testing.assert_allclose(found, expected, rtol=1e-6)


#: Nodes of one operator and one input that differ in one attribute, or only in their outputs:
#: two functions of x (1, 8, 4, 4), and the mean of each for x = 0, 1, 2, ...
ALIKE: dict[str, tuple[Callable, list]] = {
    "number of outputs": (
        lambda x: [S.split(x, num_outputs=4, axis=1)[0], S.split(x, num_outputs=2, axis=1)[0]],
        [15.5, 31.5],
    ),
    "output": (
        lambda x: [S.split(x, num_outputs=2, axis=1)[1], S.split(x, num_outputs=2, axis=1)[0]],
        [95.5, 31.5],
    ),
    "axis": (
        lambda x: [S.split(x, num_outputs=4, axis=2)[0], S.split(x, num_outputs=4, axis=3)[0]],
        [57.5, 62],
    ),
    "k": (
        lambda x: [S.topk(x, k=1, ret_typ="value"), S.topk(x, k=3, ret_typ="value")],
        [65, 64],
    ),
    "value": (lambda x: [x * 0.0 + 3, x * 0.0 + 3.0000002], [3, 3.0000002]),
    "sign of zero": (
        lambda x: [S.clip(1 / (x * 0.0 + 0.0), -5, 5), S.clip(1 / (x * -0.0 - 0.0), -5, 5)],
        [5, -5],
    ),
    "type": (
        lambda x: [S.cast(S.cast(x / 4, dtype="int32"), dtype="float32"),
                   S.cast(S.cast(x / 4, dtype="float64"), dtype="float32")],
        [15.5, 15.875],
    ),
    "exclusive": (lambda x: [S.sum(x, axis=1), S.sum(x, axis=1, exclude=True)], [508, 1016]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_nodes_that_are_alike_stay_apart(name, is_dynamic, tmp_path):
    make, means = ALIKE[name]
    symbol = S.Group([S.mean(one) for one in make(X)])
    path, x = tmp_path / "m.onnx", np.arange(128, dtype="float32").reshape(1, 8, 4, 4)
    gluon_roi.onnx.export(symbol, [x.shape], path, dynamic=[range(4) if is_dynamic else ()])
    expected = [out.asnumpy() for out in symbol.bind(mx.cpu(), {"x": mx.nd.array(x)}).forward()]
    for ours, theirs, mean in zip(run(path, x), expected, means):
        assert np.isclose(theirs, mean, rtol=1e-7)
        assert np.isclose(ours, mean, rtol=1e-7)


def test_constants_are_reused_only_if_they_are_equal_bytes_of_one_type_and_shape():
    from gluon_roi.onnx.graph import OnnxGraph

    values = [
        *(np.zeros(2, kind) for kind in ("float16", "float32", "float64", "int8", "uint8")),
        *(np.zeros(2, kind) for kind in ("int32", "int64", "bool")),
        *(np.zeros(shape, "float32") for shape in ((), 1, (1, 1), (2, 1), (1, 2), 0, (0, 3))),
        np.array([0.0, -0.0], "float32"),
        np.array([0, np.nan], "float32"),
        np.array([0, 1], "float32"),
    ]
    graph = OnnxGraph()
    names = [graph.constant(value).name for value in values]
    assert len({*names}) == len(values)
    assert [graph.constant(value.copy()).name for value in values] == names
    for name, value in zip(names, values):
        assert graph.constants[name].dtype == value.dtype
        assert graph.constants[name].tobytes() == value.tobytes()


@pytest.mark.parametrize("sizes, is_identity", [((None, 3), True), ((None, 0), False)])
def test_a_reshape_to_the_shape_that_was(sizes, is_identity):
    """(n, 0) and (m, 0) have as many elements, so a reshape between them is no identity."""
    from gluon_roi.onnx.graph import OnnxGraph, Tensor
    from gluon_roi.onnx.passes import simplify
    from gluon_roi.onnx.passes.types import TensorType

    graph, kind = OnnxGraph(), np.dtype("float32")
    x = Tensor(graph, graph.unique("x"), kind)
    shape = Tensor(graph, graph.unique("shape"), np.int64)
    out = graph("Exp", graph("Reshape", x, shape))
    types = {"x": TensorType(kind, sizes), "/Reshape": TensorType(kind, sizes)}
    simplify(graph, [((out.name, "out"), kind, sizes)], types)
    assert [node.op_type for node in graph.nodes] == ["Reshape", "Exp"][is_identity:]


@pytest.mark.parametrize("name", ["a reshape and back", "sizes", "axes and back"])
def test_free_sizes_stay_free(name, tmp_path):
    make, _ = DEBRIS[name]
    path = tmp_path / "m.onnx"
    if name == "a reshape and back":
        symbol = S.exp(S.reshape(S.reshape(X, (-3, 0)), (-4, -1, 4, 0)))
    else:
        symbol = make(X)
    gluon_roi.onnx.export(symbol, [(2, 4, 6)], path, dynamic=[(0,)])
    x = np.random.RandomState(2).randn(5, 4, 6).astype("float32")
    expected = symbol.bind(mx.cpu(), {"x": mx.nd.array(x)}).forward()[0].asnumpy()
    np.testing.assert_allclose(run(path, x)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("fold", [True, False])
def test_a_network_reads_as_its_source(fold, tmp_path):
    """Every layer of a ResNet is one node, named after MXNet's, and every constant has its name."""
    vision = pytest.importorskip("gluoncv.model_zoo")
    net = vision.get_model("resnet18_v1b", pretrained=False, pretrained_base=False)
    net.initialize()
    image = mx.nd.random.normal(shape=(1, 3, 64, 64))
    expected = net(image).asnumpy()
    path = tmp_path / "m.onnx"
    gluon_roi.onnx.export(net, [image.shape], path, dynamic=[(0, 2, 3)], fold=fold)
    graph = onnx.load(str(path)).graph
    operators = Counter(node.op_type for node in graph.node)
    assert set(operators) == {
        "Conv",
        "Relu",
        "Add",
        "MaxPool",
        "GlobalAveragePool",
        "Flatten",
        "Gemm",
        *["BatchNormalization"] * (not fold),
    }
    assert operators["Conv"] == 20
    assert operators["BatchNormalization"] == (0 if fold else 20)
    layers = {name[: -len("_output")] for name in net(X).get_internals().list_outputs()}
    assert {node.name.split("/")[0] for node in graph.node} <= layers
    parameters = {name.rsplit("_", 1)[0] for name in net.collect_params()}
    assert {value.name.rsplit("_", 1)[0] for value in graph.initializer} <= parameters
    if not fold:
        weights = {name: value.data().asnumpy() for name, value in net.collect_params().items()}
        for name, value in _constants(path).items():
            assert value.tobytes() == weights[name].tobytes()
    np.testing.assert_allclose(run(path, image.asnumpy())[0], expected, rtol=1e-4, atol=1e-4)
