# SPDX-License-Identifier: Apache-2.0
"""What a conversion for inference takes for certain holds in every call.

Whatever the batch, the sizes and the types of the example, whatever other calls have computed, and
however the network is called.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, Callable

import mxnet as mx
import numpy as np
import pytest
from inference_networks import NEAR, assert_same_calls, outputs_of, static_call
from mxnet import gluon

import gluon_roi
from gluon_roi.inference import convert, winograd
from gluon_roi.inference.deterministic import is_deterministic
from gluon_roi.inference.graph import InferenceGraph
from gluon_roi.inference.layers import is_plain_convolution

S = mx.sym
#: MXNet 1.8.0's fusion fails on most graphs.
fuses = pytest.mark.skipif(mx.__version__ < "1.9", reason="MXNet 1.8 fails to fuse these layers")
SUMS = "sums of maps that always have one shape"
DATA, FACTOR = S.var("data"), S.var("factor")
#: Shapes of the parameters below; other variables are inputs.
SHAPES = {
    "weight": (16, 16, 3, 3),
    "narrow": (3, 16, 1, 1),
    "side": (16, 16, 2, 2),
    "rows": (16, 16 * 5 * 6),
    "bias": (16,),
    "gamma": (16,),
    "beta": (16,),
    "mean": (16,),
    "var": (16,),
}


def parameters(symbol: Any, **others: tuple[int, ...]) -> dict[str, Any]:
    random, shapes = np.random.RandomState(0), {**SHAPES, **others}
    names = [name for name in symbol.list_inputs() if name in shapes]
    return {name: mx.nd.array(random.uniform(0.5, 1, shapes[name])) for name in names}


def array(*shape: int, seed: int = 0) -> Any:
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, shape))


# ---- Weights that are not the same in every call -------------------------------------------------


def layer(weight: Any = "weight", bias: Any = "bias", **attributes: Any) -> Any:
    weight, bias = (S.var(one) if isinstance(one, str) else one for one in (weight, bias))
    size = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 16, **attributes}
    return S.Convolution(DATA, weight, bias, **size)


def norm(data: Any, gamma: Any = None) -> Any:
    values = [S.var(name) for name in ("gamma", "beta", "mean", "var")]
    return S.BatchNorm(data, *([gamma] if gamma is not None else values[:1]), *values[1:])


def scaled(name: str) -> Any:
    return S.broadcast_mul(S.var(name), FACTOR)


COMPUTED = {
    "weights": lambda: layer(scaled("weight")),
    "bias": lambda: layer(bias=S.broadcast_mul(S.var("bias"), S.reshape(FACTOR, shape=(1,)))),
    "weights that are an input": lambda: layer(S.var("given")),
    "weights before a BatchNorm": lambda: norm(layer(scaled("weight"))),
    "a BatchNorm": lambda: norm(
        layer(), S.broadcast_mul(S.var("gamma"), S.reshape(FACTOR, shape=1))
    ),
    "weights and a sum": lambda: S.Activation(
        S.elemwise_add(layer(scaled("weight")), DATA * 2), act_type="relu"
    ),
    "weights of a dense layer": lambda: S.FullyConnected(
        DATA,
        S.broadcast_mul(S.var("rows"), S.reshape(FACTOR, shape=(1, 1))),
        num_hidden=16,
        no_bias=True,
    ),
}


@pytest.mark.parametrize("what", COMPUTED)
def test_computed_weights_are_those_of_each_call(what):
    symbol = COMPUTED[what]()
    shapes = {"data": (1, 16, 5, 6), "factor": (1, 1, 1, 1), "given": (16, 16, 3, 3)}
    calls = [
        {name: array(*shapes[name], seed=seed) for name in shapes if name in symbol.list_inputs()}
        for seed in range(3)
    ]
    assert_same_calls(symbol, parameters(symbol), calls)


class Template(gluon.HybridBlock):
    """Weights that are computed from an input, as those of siamese trackers are."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.weight = self.params.get("weight", shape=(16, 3, 3, 3))

    def hybrid_forward(self, F, x, template, weight):
        return F.Convolution(
            x, F.broadcast_mul(weight, template), kernel=(3, 3), num_filter=16, no_bias=True
        )


@pytest.mark.parametrize("flags", [{}, {"static_alloc": True, "static_shape": True}], ids=str)
def test_computed_weights_of_a_network(flags):
    net, x = Template(), array(1, 3, 8, 8)
    net.initialize()
    templates = [array(1, 3, 3, 3, seed=seed) for seed in range(3)]
    expected = [net(x, one).asnumpy() for one in templates]
    gluon_roi.optimize(net, x, templates[0], inference=True, **flags)
    for one, wanted in zip(templates, expected):
        np.testing.assert_allclose(net(x, one).asnumpy(), wanted, **NEAR)


@pytest.mark.parametrize("backend", ["MKLDNN", "NONE"])
def test_computed_weights_in_mxnets_executor(backend, monkeypatch):
    """It keeps them from the first call on, converted or not, unless it is told not to fuse."""
    monkeypatch.setenv("MXNET_SUBGRAPH_BACKEND", backend)
    symbol = COMPUTED["weights"]()
    params = parameters(symbol)
    calls = [
        {"data": array(1, 16, 5, 6, seed=seed), "factor": array(1, 1, 1, 1, seed=seed)}
        for seed in range(2)
    ]
    made = convert.convert(symbol, params, calls[0])
    expected = [outputs_of(symbol, params, inputs)[0] for inputs in calls]
    for one, values in ((symbol, params), (made.symbol, made.parameters)):
        given = {name: value.copy() for name, value in {**values, **calls[0]}.items()}
        executor = one.bind(mx.cpu(), given, grad_req="null")
        found = [executor.forward(**inputs)[0].asnumpy() for inputs in calls]
        np.testing.assert_allclose(found[0], expected[0], **NEAR)
        assert np.allclose(found[1], expected[1], **NEAR) == (backend == "NONE")


@fuses
def test_weights_that_the_graph_computes_from_parameters_are_computed_once():
    symbol = S.FullyConnected(
        DATA, S.reshape(S.var("flat"), shape=(16, 480)), no_bias=True, num_hidden=16
    )
    calls = [{"data": array(1, 16, 5, 6, seed=seed)} for seed in range(2)]
    made = assert_same_calls(symbol, parameters(symbol, flat=(480, 16)), calls)
    assert made.changes["weights computed in advance"] == 1
    assert made.changes["nodes fused by MXNet"] == 1
    assert "Reshape" not in made.symbol.tojson()


def test_weights_without_parameters():
    """A blur: its weights are ones."""
    symbol = norm(layer(S.ones((16, 16, 3, 3)) / 9))
    calls = [{"data": array(1, 16, 5, 6, seed=seed)} for seed in range(2)]
    made = assert_same_calls(symbol, parameters(symbol), calls)
    assert made.changes["BatchNorm folded into weights"] == 1


RANDOM = {
    "sampled": lambda like: S.random.normal(shape=SHAPES[like]),
    "sampled like a parameter": lambda like: S.random.normal_like(S.var(like)),
    "dropout": lambda like: S.Dropout(S.var(like), p=0.5, mode="always"),
    "shuffled": lambda like: S.BlockGrad(S.shuffle(S.var(like))),
    "behind other operators": lambda like: S.exp(
        S.var(like) + S.random.uniform(shape=SHAPES[like])
    ),
    "of an operator in Python": lambda like: S.Custom(S.var(like), op_type="count_calls", key="r"),
}
LAYERS = {
    "norm": lambda make: norm(layer(make("weight"))),
    "winograd": lambda make: layer(make("weight")),
    "narrow": lambda make: S.Convolution(
        DATA, make("narrow"), no_bias=True, kernel=(1, 1), num_filter=3
    ),
    "deconvolution": lambda make: S.Deconvolution(
        DATA, make("side"), kernel=(2, 2), stride=(2, 2), num_filter=16, no_bias=True
    ),
}


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("where", LAYERS)
def test_random_weights_are_drawn_in_each_call(where, kind, monkeypatch):
    monkeypatch.setattr(winograd, "pays", lambda *sizes: True)
    symbol, data = LAYERS[where](RANDOM[kind]), array(1, 16, 6, 6)
    made = convert.convert(symbol, parameters(symbol), {"data": data})
    call = static_call(made.symbol, made.parameters)
    first, second = (call(data=data)[0] for _ in range(2))
    assert not np.allclose(first, second)


@pytest.mark.night
def test_no_operator_that_is_computed_in_advance_is_random():
    """Of all operators of MXNet, those that change with the seed of random numbers."""
    script = Path(__file__).parents[1] / "scripts" / "random_operators.py"
    command = [sys.executable, "-W", "ignore", str(script), "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=True)
    found = set(done.stdout.split())
    assert {"Dropout", "_random_uniform", "_npi_choice", "_shuffle", "_sample_normal"} <= found
    assert not any(is_deterministic({"op": op, "attrs": {"mode": "always"}}) for op in found)


@pytest.mark.parametrize("layer", ["Convolution", "FullyConnected"])
def test_weights_that_are_computed_from_a_bias(layer):
    """One of the values that are computed in advance reads the other."""
    bias = S.square(S.var("p"), name="bias")
    kernel = (1, 1) if layer == "Convolution" else ()
    factors = S.reshape(bias, shape=(5, 1, *kernel))
    inputs = (DATA, S.broadcast_mul(S.var("w"), factors), bias)
    symbol = (
        S.Convolution(*inputs, kernel=kernel, num_filter=5)
        if kernel
        else S.FullyConnected(*inputs, num_hidden=5, flatten=False)
    )
    params = {"p": array(5), "w": array(5, 16, *kernel)}
    data = array(2, 16, 6, 6) if kernel else array(2, 16)
    made = convert.convert(symbol, params, {"data": data})
    assert made.changes["weights computed in advance"] == (0 if kernel else 2)
    expected, found = (
        static_call(*network)(data=data)[0]
        for network in ((symbol, params), (made.symbol, made.parameters))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_a_layer_that_is_folded_twice_in_one_place():
    """The weights that the first BatchNorm alone gives are dropped there, and needed elsewhere."""

    def block(data: Any, name: str) -> Any:
        return S.BatchNorm(
            data,
            *(S.var(f"{name}_{part}") for part in ("gamma", "beta", "mean", "var")),
            fix_gamma=False,
            use_global_stats=True,
        )

    def shared(data: Any) -> Any:
        return S.Convolution(data, S.var("w"), no_bias=True, num_filter=24, kernel=(1, 1))

    symbol = S.Group(
        [block(block(shared(S.var("x")), "first"), "second"), block(shared(S.var("y")), "first")]
    )
    params = {name: array(24) + 2 for name in symbol.list_inputs() if name not in "wxy"}
    params["w"] = array(24, 16, 1, 1)
    inputs = {"x": array(1, 16, 6, 6), "y": array(1, 16, 5, 5)}
    made = assert_same_calls(symbol, params, [inputs])
    assert made.changes["BatchNorm folded into weights"] == 3


# ---- Sums whose shapes are equal in the example alone --------------------------------------------


def square(data: Any, name: str, **attributes: Any) -> Any:
    size = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 128, **attributes}
    return S.Convolution(data, S.var(f"{name}_weight"), no_bias=True, name=name, **size)


def plus(one: Any, other: Any) -> Any:
    """The sum of mx.np, which broadcasts."""
    return (one.as_np_ndarray() + other.as_np_ndarray()).as_nd_ndarray()


def _positions(add: Callable) -> Any:
    return add(square(DATA, "one"), S.var("positions"))


def _mean(add: Callable) -> Any:
    maps = square(DATA, "one")
    return add(maps, S.mean(DATA, axis=(2, 3), keepdims=True))


def _other_input(add: Callable) -> Any:
    return add(square(DATA, "one"), S.var("other"))


def _level(add: Callable) -> Any:
    """A level of a pyramid and a map that has its size in the example."""
    large = S.UpSampling(square(DATA, "one"), scale=2, sample_type="nearest")
    return add(S.slice_like(large, S.var("other"), axes=(2, 3)), S.var("other"))


SOMETIMES_EQUAL: dict[str, tuple[Callable, dict[str, tuple], dict[str, tuple]]] = {
    "positions, another batch": (_positions, {"data": (1, 128, 8, 8)}, {"data": (4, 128, 8, 8)}),
    "a mean, another size": (_mean, {"data": (1, 128, 1, 1)}, {"data": (1, 128, 6, 5)}),
    "an input, another batch": (
        _other_input,
        {"data": (1, 128, 8, 8), "other": (1, 128, 8, 8)},
        {"data": (3, 128, 8, 8), "other": (1, 128, 8, 8)},
    ),
    "an input, other channels": (
        _other_input,
        {"data": (1, 128, 8, 8), "other": (1, 128, 8, 8)},
        {"data": (1, 128, 8, 8), "other": (1, 1, 8, 8)},
    ),
    "a level, another batch": (
        _level,
        {"data": (1, 128, 4, 4), "other": (1, 128, 8, 8)},
        {"data": (2, 128, 4, 4), "other": (1, 128, 8, 8)},
    ),
}


@pytest.mark.parametrize("add", [S.broadcast_add, plus])
@pytest.mark.parametrize("name", SOMETIMES_EQUAL)
def test_shapes_that_are_equal_in_the_example_alone(name, add, monkeypatch):
    monkeypatch.setattr(winograd, "pays", lambda *sizes: True)
    make, *examples = SOMETIMES_EQUAL[name]
    symbol = make(add)
    params = parameters(symbol, one_weight=(128, 128, 3, 3), positions=(1, 128, 8, 8))
    calls = [{key: array(*shape) for key, shape in shapes.items()} for shapes in examples]
    made = assert_same_calls(symbol, params, calls)
    assert made.changes[SUMS] == 0


def _residual(add: Callable) -> Any:
    """Layers of a residual network: one keeps the size of its map, one halves it."""
    maps = S.relu(square(DATA, "one"))
    maps = S.relu(add(square(S.relu(square(maps, "two")), "three"), maps))
    side = square(maps, "side", kernel=(1, 1), pad=(0, 0), stride=(2, 2))
    return S.relu(add(square(S.relu(square(maps, "four", stride=(2, 2))), "five"), side))


@pytest.mark.parametrize("add, count", [(S.broadcast_add, 2), (plus, 2), (S.elemwise_add, 0)])
def test_shapes_that_are_always_equal(add, count, monkeypatch):
    monkeypatch.setattr(winograd, "pays", lambda *sizes: True)
    symbol = _residual(add)
    shapes = dict.fromkeys(
        (f"{n}_weight" for n in ("one", "two", "three", "four", "five")), (128, 128, 3, 3)
    )
    params = parameters(symbol, **shapes, side_weight=(128, 128, 1, 1))
    params = {name: 0.01 * value for name, value in params.items()}
    calls = [{"data": array(*shape)} for shape in [(1, 128, 8, 9), (2, 128, 7, 4), (1, 128, 1, 1)]]
    made = assert_same_calls(symbol, params, calls)
    assert made.changes[SUMS] == count
    assert made.symbol.tojson().count('"residual": "True"') == 2


@pytest.mark.parametrize("add", [S.elemwise_add, S.broadcast_add, plus])
def test_a_pyramid_of_one_network(add):
    fine = square(DATA, "one", pad=(0, 0), kernel=(1, 1))
    coarse = S.Pooling(fine, kernel=(2, 2), stride=(2, 2), pool_type="max")
    low, high = (
        square(maps, name, pad=(0, 0), kernel=(1, 1))
        for maps, name in ((coarse, "two"), (fine, "three"))
    )
    cut = S.slice_like(S.UpSampling(low, scale=2, sample_type="nearest"), high, axes=(2, 3))
    symbol = add(cut, high)
    params = parameters(
        symbol, **{f"{n}_weight": (128, 128, 1, 1) for n in ("one", "two", "three")}
    )
    calls = [{"data": array(*shape)} for shape in [(1, 128, 8, 8), (2, 128, 6, 4)]]
    made = assert_same_calls(symbol, params, calls)
    assert made.changes["upsampling and addition as one operator"] == 1


# ---- Types ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "float16", "float64"])
def test_doubling_keeps_the_type(dtype):
    """x + x of bool is x in NumPy, where 2 * x is an integer."""
    x = S.var("data").as_np_ndarray()
    values = mx.np.array([0, 1, 1, 100]).astype(dtype)
    with mx.util.np_shape(True), mx.util.np_array(True):
        made = convert.convert(x + x, {}, {"data": values})
        (found,) = outputs_of(made.symbol, made.parameters, {"data": values})
        (expected,) = outputs_of(x + x, {}, {"data": values})
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


class Sum(gluon.HybridBlock):
    """A layer plus an input of any type."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.layer = gluon.nn.Conv2D(128, 3, padding=1, in_channels=128, use_bias=False)

    def hybrid_forward(self, F, x, other):
        return self.layer(x) + other


def test_inputs_of_another_type_than_the_examples():
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = Sum()
        net.initialize()
        x = mx.np.array(array(1, 128, 8, 8).asnumpy())
        expected = net(x, x.astype("float64"))
        gluon_roi.optimize(net, x, x, inference=True)
        for _ in range(2):
            assert net(x, x).dtype == np.float32
            found = net(x, x.astype("float64"))
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), **NEAR)


# ---- Ways to call --------------------------------------------------------------------------------


class Optional(gluon.HybridBlock):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.layer = gluon.nn.Conv2D(16, 1, in_channels=3)

    def hybrid_forward(self, F, x, other=None):
        return self.layer(x) if other is None else self.layer(x) + other


def test_a_call_without_a_trailing_none():
    net, x = Optional(), array(1, 3, 5, 5)
    net.initialize()
    expected = net(x).asnumpy()
    gluon_roi.optimize(net, x, None, inference=True)
    for arguments in [(x,), (x, None), (x, None, None)]:
        np.testing.assert_allclose(net(*arguments).asnumpy(), expected, **NEAR)
        assert net._cached_op is None  # the graph before the conversion is not compiled
    with pytest.raises(ValueError, match=r"of the structure \[0, -1\], got \[0, 0\]"):
        net(x, x)


def test_a_symbol_block_that_is_hybridized_again():
    x = array(1, 3, 5, 5)
    block = gluon.SymbolBlock(
        S.Convolution(S.var("x"), kernel=(1, 1), num_filter=16, name="layer"), S.var("x")
    )
    block.initialize()
    gluon_roi.optimize(block, x, inference=True)
    expected = block(x).asnumpy()
    (graph,) = block._call_cached_op._converted.values()
    before = graph.compiled
    block.hybridize(forward_bulk_size=2)
    np.testing.assert_array_equal(block(x).asnumpy(), expected)
    assert graph.compiled is before and dict(before._flags)["forward_bulk_size"] == 2


@fuses
def test_hooks_see_the_converted_graph():
    net, x = gluon.nn.HybridSequential(), array(1, 3, 8, 8)
    net.add(
        gluon.nn.Conv2D(16, 3, in_channels=3), gluon.nn.BatchNorm(), gluon.nn.Activation("relu")
    )
    net.initialize()
    gluon_roi.optimize(net, x, inference=True)
    seen: list[str] = []
    net.register_op_hook(lambda name, operator, values: seen.append(str(name)))
    net(x).wait_to_read()
    assert len(seen) == 1  # one fused node


def test_a_block_with_its_own_forward_is_refused():
    class Own(gluon.HybridBlock):
        def forward(self, x):
            return x * 2

    with pytest.raises(
        TypeError, match="Own has no hybrid_forward, of which MXNet makes the graph"
    ):
        gluon_roi.optimize(Own(), array(1, 3, 5, 5), inference=True)


# ---- MXNet's fusion ------------------------------------------------------------------------------


@fuses
def test_a_sum_whose_second_summand_is_a_layer_is_fused():
    """As in SE-ResNeXt: MXNet alone confuses the weights of both layers."""

    def cube(data: Any, name: str, side: int, groups: int = 1) -> Any:
        size = {"kernel": (side,) * 3, "pad": (side // 2,) * 3, "num_group": groups}
        weight = S.var(f"{name}_weight")
        return S.Convolution(data, weight, no_bias=True, num_filter=128, name=name, **size)

    first = S.Activation(cube(DATA, "one", 3, 4), act_type="relu")
    side = S.broadcast_mul(cube(DATA, "two", 3), S.mean(first, axis=(2, 3, 4), keepdims=True))
    symbol = S.elemwise_add(side, cube(first, "three", 1))
    params = parameters(
        symbol,
        one_weight=(128, 8, 3, 3, 3),
        two_weight=(128, 32, 3, 3, 3),
        three_weight=(128, 128, 1, 1, 1),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = assert_same_calls(symbol, params, [{"data": 0.1 * array(1, 32, 6, 6, 2)}])
    assert made.changes["nodes fused by MXNet"] == 3
    assert made.changes["layers that MXNet did not fuse"] == 0


def dense() -> Any:
    return S.FullyConnected(DATA, S.var("rows"), S.var("bias"), num_hidden=16)


@fuses
def test_layers_are_fused_without_shapes():
    symbol = S.Activation(dense(), act_type="relu")
    made = convert.convert(symbol, parameters(symbol), {})
    assert made.changes["nodes fused by MXNet"] == 1


def test_other_types_are_not_fused():
    symbol = layer()
    params = {name: value.astype("float64") for name, value in parameters(symbol).items()}
    made = assert_same_calls(symbol, params, [{"data": array(1, 16, 5, 6).astype("float64")}])
    assert made.changes["layers that MXNet did not fuse"] == 1


def test_shapes_and_types_that_mxnet_cannot_infer_are_told():
    """Passes that need them leave most layers as they are."""
    symbol = layer()
    params = parameters(symbol)
    with pytest.warns(UserWarning, match="cannot infer the shapes .* usual sizes: .*inconsistent"):
        convert.convert(symbol, params, {"data": (1, 5, 6, 6)})
    symbol = S.elemwise_add(layer(), S.var("other"))
    double = array(1, 16, 5, 6).astype("float64")
    with pytest.warns(UserWarning, match="cannot infer the types .* as they are: .*[Ii]ncompat"):
        convert.convert(symbol, params, {"data": array(1, 16, 5, 6), "other": double})


@pytest.mark.parametrize("text", ["1", " 1", "01"])
def test_attributes_are_compared_as_values(text):
    symbol = mx.sym.load_json(
        norm(layer(num_group=1)).tojson().replace('"num_group": "1"', f'"num_group": "{text}"')
    )
    graph = InferenceGraph(symbol, parameters(symbol), {}, {})
    (number,) = (i for i, node in enumerate(graph.nodes) if node["op"] == "Convolution")
    assert is_plain_convolution(graph, number)


def test_a_refusal_is_told(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise mx.MXNetError("Error in operator dense0: Shape inconsistent")

    symbol = dense()
    monkeypatch.setattr(mx.sym.Symbol, "optimize_for", refuse)
    with pytest.warns(UserWarning, match="does not fuse .* Error in operator dense0: Shape incons"):
        made = convert.convert(symbol, parameters(symbol), {"data": array(1, 16, 5, 6)})
    assert made.changes["nodes fused by MXNet"] == 0
    assert made.changes["layers that MXNet did not fuse"] == 1
