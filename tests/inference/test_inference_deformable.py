# SPDX-License-Identifier: Apache-2.0
"""DeformableGemmConvolution: values, special numbers, refusals, and which layers become one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from inference_networks import converted_operators, outputs_of
from support.deformed import CALLS, Sampled
from support.layers import numbers, run, run_deformable

import gluon_roi
from gluon_roi.inference import convert, deformable, gemm, gemm_layers, symbolic_shapes
from gluon_roi.inference.graph import InferenceGraph
from gluon_roi.reference import deformable_sampling
from testing.inference_operators import function_for

#: Images, outputs, and the samples. Blocks have 16 channels and 16 outputs, panels 12 filters,
#: parts of the sum 512 products, or 16 channels if these have more, chunks 32 outputs and more.
LAYERS: dict[str, tuple[int, int, Sampled]] = {
    **{name: (2, 13, row) for name, row in CALLS.items()},
    "parts": (1, 25, Sampled(130, (20, 23), {"kernel": 3, "pad": 1}, True)),
    "chunks": (1, 12, Sampled(20, (50, 51), {"kernel": 3, "pad": 1}, False)),
    "large kernel": (1, 5, Sampled(18, (15, 16), {"kernel": (9, 8), "pad": 4}, False)),
    "groups of 12 channels in parts": (
        1,
        30,
        Sampled(
            60, (14, 15), {"kernel": 3, "pad": 2, "dilate": 2, "num_deformable_group": 5}, True
        ),
    ),
    "groups of 20 channels in parts": (
        3,
        14,
        Sampled(80, (9, 8), {"kernel": 3, "pad": 1, "num_deformable_group": 4}, True),
    ),
}
layers = pytest.mark.parametrize("name", LAYERS)


def parameters_of(sampled: Sampled) -> dict[str, Any]:
    """The attributes of the samples, without the layout."""
    return {name: value for name, value in sampled.parameters.items() if name != "layout"}


def arrays_of(name: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """data, offset and perhaps mask; weight; bias."""
    images, outputs, sampled = LAYERS[name]
    weight = numbers(1, outputs, sampled.channels, *sampled.pair("kernel"))
    return sampled.arrays("float32", batch=images), weight, numbers(2, outputs)


def call_of(data: Any) -> Any:
    return function_for(deformable.OPERATOR, data)


def two_operators(
    sampled: list[np.ndarray], weight: np.ndarray, bias: np.ndarray, act_type: str, **more: Any
) -> np.ndarray:
    """The samples, and their product."""
    inputs = [mx.nd.array(array, ctx=mx.cpu()) for array in sampled]
    samples = gluon_roi.nd.DeformableSampling(*inputs, **more, layout="columns").asnumpy()
    return run(samples, weight.reshape(len(weight), -1, 1, 1), bias, act_type=act_type)


# ---- Values --------------------------------------------------------------------------------------


@layers
@pytest.mark.parametrize("act_type", ["", "relu", "relu6", "leaky"])
def test_the_same_bytes_as_samples_and_their_product(name, act_type):
    sampled, weight, bias = arrays_of(name)
    shape = parameters_of(LAYERS[name][2])
    got = run_deformable(sampled, weight, bias, act_type=act_type, **shape)
    wanted = two_operators(sampled, weight, bias, act_type, **shape)
    assert got.tobytes() == wanted.tobytes()


def exact(sampled: list[np.ndarray], weight: np.ndarray, **shape: Any) -> np.ndarray:
    """By definition, in float64 but for the positions."""
    data, offset, *mask = sampled
    options: dict[str, Any] = {"geometry": np.float32, "layout": "columns", **shape}
    samples = deformable_sampling(data, offset, mask[0] if mask else None, **options)
    matrix = weight.reshape(len(weight), -1).astype(np.float64)
    return np.einsum("ok,nkyx->noyx", matrix, samples)


def bound(sampled: list[np.ndarray], weight: np.ndarray) -> float:
    """Of the product, and of the roundings of a sample: four in its weights, three in its sum."""
    largest = np.abs(sampled[0]).max() * max([1.0, *(np.abs(mask).max() for mask in sampled[2:])])
    sums = np.abs(weight).reshape(len(weight), -1).sum(axis=1).max()
    return largest * (gemm.error_bound(weight) + 8 * 2.0**-24 * sums)


@layers
def test_values(name):
    sampled, weight, bias = arrays_of(name)
    shape = parameters_of(LAYERS[name][2])
    wanted = exact(sampled, weight, **shape)
    got = run_deformable(sampled, weight, **shape)
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= bound(sampled, weight)
    np.testing.assert_array_equal(
        run_deformable(sampled, weight, bias, **shape), got + bias[:, None, None]
    )


def test_worked_number():
    ramp = np.arange(16.0).reshape(4, 4)
    offset = np.tile(np.reshape([0.5, 0.25], (1, 2, 1, 1)), (1, 1, 4, 4))
    weight = np.reshape([2, 3], (1, 2, 1, 1))
    got = run_deformable(
        [np.stack([ramp, ramp + 100])[None], offset], weight, np.array([1]), kernel=1
    )
    assert got[0, 0, 0, 0] == 312.25


def test_no_images():
    with mx.util.np_shape():
        got = run_deformable(
            [np.zeros((0, 3, 5, 6)), np.zeros((0, 2, 5, 6))], numbers(1, 4, 3, 1, 1), kernel=1
        )
    assert got.shape == (0, 4, 5, 6)


def test_no_channels():
    with mx.util.np_shape():
        sampled = [np.zeros((1, 0, 5, 6)), np.zeros((1, 18, 3, 4))]
        got = run_deformable(sampled, np.zeros((2, 0, 3, 3)), np.array([3, -1]), kernel=3)
        assert (got == np.array([3, -1]).reshape(1, 2, 1, 1)).all()


def test_symbols():
    """In a graph, with sizes inferred, saved and loaded."""
    sampled, weight, bias = arrays_of("mask")
    shape = parameters_of(LAYERS["mask"][2])
    names = ("data", "offset", "mask", "weight", "bias")
    attributes = {**shape, "num_filter": len(weight), "mask": True, "name": "c"}
    variables = [mx.sym.var(name) for name in names]
    symbol = mx.sym.load_json(call_of(variables[0])(*variables, **attributes).tojson())
    arrays = dict(zip(names, (*sampled, gemm.pack_weights(weight), bias)))
    shapes = {name: array.shape for name, array in arrays.items()}
    assert symbol.infer_shape(**shapes)[1] == [(2, 13, 9, 11)]
    assert symbol.infer_type(data="float32")[1] == [np.float32]
    bound = symbol.bind(mx.cpu(), {name: mx.nd.array(array) for name, array in arrays.items()})
    wanted = run_deformable(sampled, weight, bias, **shape)
    np.testing.assert_array_equal(bound.forward()[0].asnumpy(), wanted)


@pytest.mark.parametrize(
    "plant",
    ["last row of a panel", "last output", "a block's sum", "kernel cell", "offsets of a group"],
)
def test_planted_faults_are_seen(plant):
    """Each is beyond the errors that the tests of values accept."""
    shape: dict[str, Any] = {"kernel": 3, "stride": 2, "pad": 1, "num_deformable_group": 2}
    sampled = Sampled(140, (13, 15), shape, True).arrays("float32", batch=1)
    weight = numbers(1, 31, 140, 3, 3)
    wanted = exact(sampled, weight, **shape)
    wrong, wrong_weight = [array.copy() for array in sampled], weight.copy()
    if plant == "last row of a panel":
        wrong_weight[30] = 0
    elif plant == "last output":
        wrong[2][..., -1, -1] = 0
    elif plant == "a block's sum":
        wrong_weight[:, 128:] = 0
    elif plant == "kernel cell":
        wrong_weight[..., 2, 2] = 0
    else:
        wrong[1][:, 18:] = wrong[1][:, :18]
    error = np.abs(run_deformable(wrong, wrong_weight, **shape) - wanted).max()
    assert error > 10 * bound(sampled, weight)


# ---- Special numbers -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_special_numbers_reach_what_reads_them(value):
    """In each input; a cell of weight 0 is not read."""
    sampled, weight, bias = arrays_of("mask")
    shape = parameters_of(LAYERS["mask"][2])
    for position, place in enumerate([(1, 3, 4, 5), (0, 7, 2, 2), (1, 4, 8, 10)]):
        given = [array.copy() for array in sampled]
        given[position][place] = value
        got = run_deformable(given, weight, bias, **shape)
        wanted = two_operators(given, weight, bias, "", **shape)
        assert got.tobytes() == wanted.tobytes()
        assert np.isfinite(got).all() == (position == 1)  # a sample without a position is 0
    data, offset = numbers(0, 1, 3, 5, 5), np.zeros((1, 2, 5, 5))
    weight = numbers(1, 4, 3, 1, 1)
    data[0, 1, 2, 2] = value
    got = run_deformable(
        [data, offset], weight, kernel=1
    )  # every neighbour of a sample has weight 0
    read = np.zeros((5, 5), bool)
    read[2, 2] = True
    np.testing.assert_array_equal(np.isfinite(got[0]).all(axis=0), ~read)


def test_subnormal_numbers_stay():
    data = np.full((1, 1, 8, 8), 2.0**-140, np.float32)
    got = run_deformable([data, np.zeros((1, 2, 8, 8))], np.ones((1, 1, 1, 1)), kernel=1)
    np.testing.assert_array_equal(got, data)


# ---- Refusals ------------------------------------------------------------------------------------

ATTRIBUTES: dict = {
    "kernel": 3,
    "pad": 1,
    "num_filter": 20,
    "num_deformable_group": 2,
    "mask": True,
}


def arrays(**changed: Any) -> list[mx.nd.NDArray]:
    shapes = {
        "data": (2, 4, 7, 9),
        "offset": (2, 36, 7, 9),
        "mask": (2, 18, 7, 9),
        "weight": (2, 36, 12),
        "bias": (20,),
        **changed,
    }
    return [mx.nd.zeros(shape, ctx=mx.cpu()) for shape in shapes.values()]


def refuses(expected: str, inputs: list, **attributes: Any) -> None:
    with pytest.raises(mx.MXNetError, match=f"DeformableGemmConvolution: {expected}"):
        call_of(inputs[0])(*inputs, **{**ATTRIBUTES, **attributes})


@pytest.mark.parametrize(
    "name, shape, expected",
    [
        ("data", (2, 4, 6), r"expected 4 dimensions \(N, C, H, W\)"),
        ("offset", (2, 18, 7, 9), r"expected 36 along axis 1, 2 \* num_deformable_group \*"),
        ("offset", (2, 36, 7, 8), "expected 9 along axis 3, the width of the convolution's out"),
        ("mask", (1, 18, 7, 9), "expected 2 along axis 0, the batch of data"),
        ("weight", (3, 36, 12), r"expected 2 along axis 0, ceil\(num_filter / 12\)"),
        ("weight", (2, 27, 12), r"expected 36 along axis 1, the channels of data \* the cells"),
        ("weight", (2, 36, 16), "expected 12 along axis 2, the rows of a panel"),
        ("weight", (20, 4, 3, 3), r"expected 3 dimensions \(panels, K, 12\)"),
        ("bias", (21,), "expected 20 along axis 0, num_filter"),
    ],
)
def test_wrong_shapes(name, shape, expected):
    refuses(rf"{name} has shape .*, {expected}", arrays(**{name: shape}))


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_wrong_types(position, dtype):
    inputs = arrays()
    inputs[position] = inputs[position].astype(dtype)
    refuses(f"[a-z]+ has dtype {dtype}, expected float32", inputs)


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({"num_filter": None}, "argument num_filter: expected a positive int, got None"),
        ({"num_deformable_group": 3}, "data has 4 channels, expected a multiple of num_deform"),
        ({"kernel": 16}, r"data has shape \(2, 4, 7, 9\), expected at least 14 along axis 2"),
        ({"kernel": (65536, 65536), "pad": 40000}, "argument kernel: expected at most"),
        ({"convention": "other"}, "argument convention: expected 'mxnet' or 'torchvision'"),
        ({"layout": "columns"}, "unknown argument layout"),
        ({"adds_last": True}, "unknown argument adds_last"),
        ({"act_type": "tanh"}, "argument act_type: expected '' or 'relu' or 'relu6' or 'leaky'"),
    ],
)
def test_wrong_parameters(parameters, expected):
    refuses(expected, arrays(), **parameters)


def test_no_gradient():
    inputs = arrays()
    inputs[0].attach_grad()
    with mx.autograd.record():
        out = call_of(inputs[0])(*inputs, **ATTRIBUTES)
    with pytest.raises(mx.MXNetError, match="Convolution: has no gradient, because it is for"):
        out.backward()
        inputs[0].grad.wait_to_read()


def test_only_graphs_have_it():
    """It is no operator of the package's own functions, nor of the C interface."""
    name = "DeformableGemmConvolution"
    assert name not in gluon_roi.library.operators()
    assert not hasattr(gluon_roi.nd, name)
    assert name not in Path(gluon_roi.include(), "gluon_roi.h").read_text()


# ---- Conversion ----------------------------------------------------------------------------------

S = mx.sym
DATA, OFFSET, MASK = S.var("data"), S.var("offset"), S.var("mask")
SHAPES = {"data": (2, 16, 7, 9), "offset": (2, 18, 7, 9), "mask": (2, 9, 7, 9)}
PLAIN: dict[str, Any] = {"kernel": 3, "pad": 1, "num_filter": 20}


def layer(data: Any = DATA, mask: Any = None, name: str = "d", **changed: Any) -> Any:
    attributes = {**PLAIN, "name": name, **changed}
    if mask is None:
        return gluon_roi.sym.DeformableConvolution(data, OFFSET, **attributes)
    return gluon_roi.sym.ModulatedDeformableConvolution(data, OFFSET, mask, **attributes)


def operators(symbol: Any, with_shapes: bool = True) -> list[str]:
    """Operators of the converted symbol that have weights, once its outputs are the symbol's."""
    names = symbol.list_arguments()
    shapes = {name: shape for name, shape in SHAPES.items() if name in names}
    found = converted_operators(
        symbol, shapes, lambda name, shape: mx.nd.array(numbers(len(name), *shape)), with_shapes
    )
    return [op for op in found if "olution" in op or "Sampling" in op]


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """MXNet's layout is used for layers of any size."""
    monkeypatch.setattr(gemm_layers, "mxnets_layout_pays", lambda *layers: True)


@pytest.mark.parametrize("mask", [None, MASK], ids=["plain", "modulated"])
@pytest.mark.parametrize("with_shapes", [True, False], ids=["shapes", "no shapes"])
@pytest.mark.parametrize("no_bias", [False, True])
def test_samples_and_product_become_one(mask, with_shapes, no_bias):
    symbol = S.relu(layer(mask=mask, no_bias=no_bias))
    assert operators(symbol, with_shapes) == [deformable.OPERATOR]


def test_batch_normalisation_is_part_of_it():
    symbol = S.Activation(S.BatchNorm(layer(), fix_gamma=False, name="n"), act_type="relu")
    assert operators(symbol) == [deformable.OPERATOR]


def test_a_sum_behind_it_stays():
    assert operators(S.elemwise_add(layer(num_filter=16), DATA)) == [deformable.OPERATOR]


def test_later_passes_know_its_form():
    params = {"d_weight": mx.nd.ones((20, 16, 3, 3)), "d_bias": mx.nd.ones(20)}
    made = convert.convert(layer(), params, {})
    graph = InferenceGraph(made.symbol, made.parameters, {}, {})
    found = {
        graph.nodes[entry.node]["name"]: form
        for entry, form in symbolic_shapes.symbolic_shapes(graph).items()
    }
    batch, _, *size = found["data"].sizes
    assert found["d"] == symbolic_shapes.SymbolicShape((batch, 20, *size), True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layer(num_group=2),
        lambda: S.Group([(d := layer()), d.get_internals()["d_sampling_output"]]),
        lambda: S.Convolution(
            gluon_roi.sym.DeformableSampling(DATA, OFFSET, kernel=3, pad=1),
            kernel=(3, 3),
            stride=(3, 3),
            num_filter=20,
            name="c",
        ),
        lambda: S.Convolution(
            gluon_roi.sym.DeformableSampling(DATA, OFFSET, kernel=3, pad=1, layout="columns"),
            kernel=(1, 1),
            stride=(2, 2),
            num_filter=20,
            name="c",
        ),
    ],
    ids=["groups", "samples are read twice", "layout map", "stride"],
)
def test_what_it_does_not_compute_stays(make):
    assert deformable.OPERATOR not in operators(make())


def test_other_types_stay():
    params = {
        "d_weight": mx.nd.ones((20, 16, 3, 3), dtype="float64"),
        "d_bias": mx.nd.ones(20, dtype="float64"),
    }
    inputs = {
        name: mx.nd.ones(shape, dtype="float64") for name, shape in SHAPES.items() if name != "mask"
    }
    made = convert.convert(layer(), params, inputs)
    assert made.changes["deformable convolutions without a map of samples"] == 0
    (found,), (wanted,) = (
        outputs_of(symbol, params if symbol is not made.symbol else made.parameters, inputs)
        for symbol in (made.symbol, layer())
    )
    np.testing.assert_allclose(found, wanted)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_stay(value):
    weight = mx.nd.ones((20, 16, 3, 3))
    weight[3, 5] = value
    made = convert.convert(layer(no_bias=True), {"d_weight": weight}, SHAPES)
    assert made.changes["deformable convolutions without a map of samples"] == 0
