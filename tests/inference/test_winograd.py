# SPDX-License-Identifier: Apache-2.0
"""WinogradConvolution: values, errors against exact arithmetic, special numbers, refusals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import mxnet as mx
import numpy as np
import pytest
from support.layers import numbers
from support.winograds import UNIT, amplification, direct, run, units

import gluon_roi
from gluon_roi.inference import winograd
from testing.inference_operators import winograd_convolution

#: The most units of an error of ordinary maps, by the size of a tile.
MOST = {4: 4, 6: 32}
both_tiles = pytest.mark.parametrize("tile", MOST)

#: Images, channels, outputs, height, width.
SIZES = [
    (1, 1, 1, 1, 1),
    (1, 3, 5, 3, 2),
    (2, 16, 16, 14, 14),
    (7, 17, 33, 14, 14),
    (1, 8, 48, 9, 61),
    (3, 5, 20, 1, 50),
    (2, 3, 4, 50, 1),
    (1, 4, 4, 53, 57),
    (1, 40, 70, 13, 102),
    (1, 2, 17, 4, 4),
    (1, 65, 18, 12, 13),
    (1, 200, 20, 19, 25),
]


# ---- Values --------------------------------------------------------------------------------------


@both_tiles
@pytest.mark.parametrize("dilate", [1, 2, 3, 7])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values(size, dilate, tile):
    images, channels, outputs, height, width = size
    data, weight = numbers(0, images, channels, height, width), numbers(1, outputs, channels, 3, 3)
    bias, residual = numbers(2, outputs), numbers(3, images, outputs, height, width)
    wanted = direct(data, weight, bias, residual, dilate)
    given = {"tile": tile, "dilate": dilate}
    got = run(data, weight, bias, residual, **given)
    assert got.shape == wanted.shape
    assert units(got, wanted, data, weight) < MOST[tile]
    np.testing.assert_array_equal(
        run(data, weight, bias, residual, act_type="relu", **given), np.maximum(got, 0)
    )
    plain = run(data, weight, bias, **given)
    np.testing.assert_array_equal(plain + residual, got)
    rectified = run(data, weight, bias, act_type="relu", **given)
    np.testing.assert_array_equal(rectified, np.maximum(plain, 0))
    leaky = np.where(plain < 0, plain * np.float32(0.1), plain)
    attributes = {**given, "act_type": "leaky", "slope": 0.1}
    np.testing.assert_array_equal(run(data, weight, bias, **attributes), leaky)
    last = run(data, weight, bias, residual, adds_last=True, **attributes)
    np.testing.assert_array_equal(last, leaky + residual)


@both_tiles
@pytest.mark.parametrize("images, channels, outputs", [(3, 64, 80), (1, 300, 20)])
def test_several_chunks_of_tiles(images, channels, outputs, tile):
    """More tiles than are processed at a time: the memory of a chunk is used again.

    A chunk of few channels fits into the cache; a chunk of many has at most 264 tiles.
    """
    data, weight = numbers(0, images, channels, 100, 101), numbers(1, outputs, channels, 3, 3)
    got, wanted = run(data, weight, tile=tile), direct(data, weight, np.zeros(outputs))
    assert units(got, wanted, data, weight) < MOST[tile]


@both_tiles
def test_worked_number(tile):
    ones = np.ones((1, 1, 5, 6), np.float32)
    got = run(ones, np.ones((1, 1, 3, 3)), tile=tile)[0, 0]
    wanted = np.full((5, 6), 9.0)
    wanted[[0, -1]] = 6
    wanted[:, [0, -1]] = 6
    wanted[np.ix_([0, -1], [0, -1])] = 4
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("images, height, width", [(0, 5, 6), (2, 0, 6), (2, 5, 0)])
def test_empty(images, height, width):
    with mx.util.np_shape():
        assert run(np.zeros((images, 3, height, width)), numbers(1, 4, 3, 3, 3)).shape == (
            images,
            4,
            height,
            width,
        )


def test_no_channels():
    with mx.util.np_shape():
        got = run(np.zeros((1, 0, 5, 6)), np.zeros((2, 0, 3, 3)), np.array([3, -1]))
        assert (got == np.array([3, -1]).reshape(1, 2, 1, 1)).all()


def test_agrees_with_mxnet(mxnet_cpu):
    data, weight, bias = numbers(0, 2, 24, 31, 26), numbers(1, 40, 24, 3, 3), numbers(2, 40)
    theirs = mx.nd.Convolution(
        *map(mx.nd.array, (data, weight, bias)),
        kernel=(3, 3),
        pad=(2, 2),
        dilate=(2, 2),
        num_filter=40,
    )
    got = run(data, weight, bias, dilate=2)
    assert units(got, theirs.asnumpy(), data, weight) < 2


def test_symbols():
    """In a graph, with sizes inferred, saved and loaded."""
    data, weight = numbers(0, 2, 3, 9, 8), numbers(1, 5, 3, 3, 3)
    names = ("data", "weight", "bias", "residual")
    symbol = winograd_convolution(
        *map(mx.sym.var, names), num_filter=5, dilate=2, act_type="relu", name="c"
    )
    symbol = mx.sym.load_json(symbol.tojson())
    arrays = [data, winograd.transform_weights(weight), numbers(2, 5), numbers(3, 2, 5, 9, 8)]
    args = {name: mx.nd.array(array) for name, array in zip(names, arrays)}
    shapes = {name: array.shape for name, array in args.items()}
    assert symbol.infer_shape(**shapes)[1] == [(2, 5, 9, 8)]
    assert symbol.infer_type(data="float32")[1] == [np.float32]
    got = symbol.bind(mx.cpu(), args).forward()[0].asnumpy()
    np.testing.assert_array_equal(
        got, run(data, weight, arrays[2], arrays[3], dilate=2, act_type="relu")
    )


# ---- Weights and errors --------------------------------------------------------------------------


@both_tiles
def test_matrices(tile):
    """Exact for one tile, whatever its numbers; all but the weights' matrix exact in float32."""
    a, b, g, _ = winograd.ALGORITHMS[tile]
    for matrix in (a, b):
        np.testing.assert_array_equal(matrix.astype(np.float32), matrix)
    cells, weight = np.random.RandomState(0).randn(2, tile + 2, tile + 2)
    weight = weight[:3, :3]
    places = range(tile)
    wanted = [[(cells[i : i + 3, j : j + 3] * weight).sum() for j in places] for i in places]
    got = a.T @ ((g @ weight @ g.T) * (b.T @ cells @ b)) @ a
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-13)


@both_tiles
def test_transformed_weights(tile):
    weight = numbers(0, 21, 3, 3, 3)
    packed = winograd.transform_weights(weight, tile)
    side = tile + 2
    assert packed.shape == (side**2, 2, 3, 16) and packed.dtype == np.float32
    assert packed.flags.c_contiguous
    g = winograd.ALGORITHMS[tile].g
    for o, c, i, j in [(0, 0, 0, 0), (15, 2, 3, 4), (16, 1, 5, 2), (20, 2, 1, 5)]:
        wanted = (g @ weight[o, c].astype(np.float64) @ g.T)[i, j]
        assert packed[side * i + j, o // 16, c, o % 16] == np.float32(wanted)
    assert not packed[:, 1, :, 5:].any()
    with pytest.raises(
        ValueError, match=r"weight has shape \(2, 3, 5, 5\), expected \(O, C, 3, 3\)"
    ):
        winograd.transform_weights(np.zeros((2, 3, 5, 5)))


def hostile() -> Iterator[tuple[str, np.ndarray, np.ndarray, float]]:
    """Names, maps and weights that are hard to sum exactly, and the most units of an error.

    Tiles of 6 x 6 may have five times as many units.
    """
    rng = np.random.RandomState(5)
    shape, weight = (1, 64, 30, 26), rng.randn(32, 64, 3, 3) / 24
    yield "ReLU", np.maximum(rng.randn(*shape), 0), weight, 12
    yield "offset", rng.randn(*shape) + 1000, weight, 12
    spike = rng.randn(*shape)
    spike[0, 3, 7, 9] = 1e6
    yield "one huge value", spike, weight, 12
    yield "large", rng.randn(*shape) * 1e4, weight, 12
    yield "heavy tails", rng.standard_t(2, shape), rng.standard_t(2, weight.shape), 12
    corner = np.zeros_like(weight)
    corner[:, :, 0, 0] = 1
    yield "corner of the kernel", np.where(rng.rand(*shape) < 0.5, 1.0, -1.0), corner, 40
    yield "alternating", np.indices(shape).sum(0) % 2 * 2.0 - 1, weight, 12


HOSTILE = list(hostile())


@both_tiles
@pytest.mark.parametrize("name, data, weight, most", HOSTILE, ids=[row[0] for row in HOSTILE])
def test_error(name, data, weight, most, tile):
    """Within the bound, and of the size that the page gives."""
    data, weight = data.astype(np.float32), weight.astype(np.float32)
    got, wanted = run(data, weight, tile=tile), direct(data, weight, np.zeros(len(weight)))
    largest = np.abs(data).max()
    assert np.abs(got - wanted).max() <= winograd.error_bound(weight, tile) * largest
    assert units(got, wanted, data, weight) < most * (1 if tile == 4 else 5)


@both_tiles
def test_chains(tile):
    """Sums over many channels have several chains, and smaller errors than a single one."""
    rng = np.random.RandomState(0)
    data, weight = rng.rand(1, 1024, 12, 12), rng.randn(16, 1024, 3, 3)
    data, weight = data.astype(np.float32), weight.astype(np.float32)
    got, wanted = run(data, weight, tile=tile), direct(data, weight, np.zeros(16))
    errors = np.abs(got - wanted)
    assert errors.max() <= winograd.error_bound(weight, tile) * np.abs(data).max()
    # 0.8e-6 and 3.2e-6; with a single chain 2.4e-6 and 10.0e-6.
    assert np.sqrt((errors**2).mean()) / wanted.std() < {4: 1.2e-6, 6: 5e-6}[tile]


@both_tiles
@pytest.mark.parametrize("plant", ["transposed kernel", "shifted map", "one weight", "no edge"])
def test_planted_faults_are_seen(plant, tile):
    """Each is far beyond the errors that the tests of values accept."""
    data, weight = numbers(0, 1, 8, 21, 22), numbers(1, 20, 8, 3, 3)
    wanted = direct(data, weight, np.zeros(20))
    wrong_data, wrong_weight = data.copy(), weight.copy()
    if plant == "transposed kernel":
        wrong_weight = weight.swapaxes(2, 3)
    elif plant == "shifted map":
        wrong_data = np.roll(data, 1, axis=3)
    elif plant == "one weight":
        wrong_weight[7, 3, 1, 1] += 1e-3
    else:
        wrong_data[..., -1] = 0
    assert units(run(wrong_data, wrong_weight, tile=tile), wanted, data, weight) > 40


@pytest.mark.parametrize("tile, ones, most", [(4, 35.82, 175.42), (6, 290.26, 1564.64)])
def test_amplification(tile, ones, most):
    assert amplification(np.ones((1, 1, 3, 3)), tile) == pytest.approx(ones, abs=0.01)
    corner = np.zeros((2, 4, 3, 3))
    corner[0, :, 0, 0] = 2
    corner[1, :, 1, 1] = 5
    assert amplification(corner, tile) == pytest.approx(most, abs=0.01)
    assert amplification(np.zeros((2, 4, 3, 3)), tile) == 0
    roundings = {4: 14, 6: 16}[tile]
    wanted = UNIT * (4 + roundings) * most * 8
    assert winograd.error_bound(corner, tile) == pytest.approx(wanted, rel=1e-3)
    wide = np.zeros((1, 130, 3, 3))
    wide[0, :, 0, 0] = 1
    wanted = UNIT * (64 + 2 + roundings) * most * 130
    assert winograd.error_bound(wide, tile) == pytest.approx(wanted, rel=1e-3)
    for bad in (np.nan, np.inf, 1e39):
        corner[1, 2, 1, 1] = bad
        assert winograd.error_bound(corner, tile) == np.inf


@both_tiles
@pytest.mark.parametrize("number", [0, 1, 1e30, 1e34, 1e36, 1e37, 1e38, np.inf, np.nan])
@pytest.mark.parametrize("shape", [(5, 3), (20, 40), (3, 0), (0, 3)], ids=str)
def test_layers_without_a_bound(shape, number, tile):
    """`has_error_bound` first assumes that all weights are as large as the largest one."""
    for places in (slice(1), slice(None)):
        weight = numbers(0, *shape, 3, 3)
        weight.reshape(-1)[places] = -number
        finite = np.isfinite(winograd.error_bound(weight, tile))
        assert winograd.has_error_bound(weight, tile) == finite


@pytest.mark.parametrize(
    "shape, num_filter, dilate, wanted",
    [
        ((1, 256, 38, 50), 256, 1, True),
        ((1, 64, 150, 200), 64, 1, True),
        ((100, 256, 14, 14), 256, 1, True),
        ((1, 512, 38, 50), 512, 2, True),
        ((1, 3, 600, 800), 64, 1, False),  # most of it would be transforms
        ((1, 256, 14, 14), 256, 1, False),  # reading weights
        ((1, 256, 1, 200), 256, 1, False),  # empty parts of tiles
        ((0, 256, 38, 50), 256, 1, False),
    ],
)
def test_choice(shape, num_filter, dilate, wanted):
    assert winograd.pays(shape, num_filter, dilate) is wanted


@pytest.mark.parametrize(
    "shape, num_filter, dilate, wanted",
    [
        ((1, 256, 150, 200), 1024, 1, 6),
        ((1, 64, 150, 200), 64, 1, 6),
        ((1, 256, 38, 50), 256, 1, 4),
        ((1, 512, 38, 50), 512, 2, 4),
        (
            (100, 256, 14, 14),
            256,
            1,
            4,
        ),  # both sizes have 576 products
        ((0, 256, 150, 200), 256, 1, 4),
    ],
)
def test_size_of_tiles(shape, num_filter, dilate, wanted):
    assert winograd.tile_size(shape, num_filter, dilate) == wanted


def test_levels_of_a_pyramid_share_the_tiles_of_the_largest(monkeypatch):
    """The first application, where the weights are transformed, reads the smallest map here."""
    weight = mx.sym.var("weight")
    layers = [
        mx.sym.Convolution(
            mx.sym.var(f"p{size}", dtype="float32"),
            weight,
            kernel=(3, 3),
            pad=(1, 1),
            num_filter=256,
            no_bias=True,
        )
        for size in (40, 160)
    ]
    net = mx.gluon.SymbolBlock(
        layers, [mx.sym.var(name, dtype="float32") for name in ("p40", "p160")]
    )
    net.initialize(mx.init.Xavier())
    maps = [mx.nd.array(numbers(0, 1, 256, size, size)) for size in (40, 160)]
    expected = [out.asnumpy() for out in net(*maps)]
    tiles, transform = [], winograd.transform_weights

    def recorded(weight: np.ndarray, tile: int) -> np.ndarray:
        tiles.append(tile)
        return transform(weight, tile)

    monkeypatch.setattr(winograd, "transform_weights", recorded)
    converted = gluon_roi.optimize(net, *maps, inference=True)
    for got, wanted in zip(converted(*maps), expected):
        np.testing.assert_allclose(got.asnumpy(), wanted, atol=1e-4 * np.abs(wanted).max())
    assert tiles == [6]


# ---- Special numbers -----------------------------------------------------------------------------


@both_tiles
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("cell", [(9, 6), (8, 7), (0, 0), (12, 12), (5, 11)])
def test_nan_and_infinity_reach_a_tile_and_its_border(value, cell, tile):
    data, weight = numbers(0, 1, 2, 14, 14), numbers(1, 18, 2, 3, 3)
    clean = run(data, weight, tile=tile)
    data[0, 1, cell[0], cell[1]] = value
    got = run(data, weight, tile=tile)
    reached = []
    for at in cell:
        begin = at // tile * tile
        along = np.arange(14)
        reached.append(((along >= begin) & (along < begin + tile)) | (abs(along - at) <= 1))
    reached = np.outer(*reached)
    assert not np.isfinite(got[..., reached]).any()
    np.testing.assert_array_equal(got[..., ~reached], clean[..., ~reached])
    rectified = run(data, weight, tile=tile, act_type="relu")
    np.testing.assert_array_equal(rectified, np.where(got < 0, 0, got))


def test_relu_keeps_nan_and_negative_zero_becomes_no_number():
    bias = np.array([np.nan, -1, 2, -0.0])
    got = run(np.zeros((1, 1, 6, 6)), np.zeros((4, 1, 3, 3)), bias, act_type="relu")
    assert np.isnan(got[:, 0]).all()
    assert (got[:, 1] == 0).all() and (got[:, 2] == 2).all() and (got[:, 3] == 0).all()


def test_subnormal_numbers_stay():
    """Neither flushed here, nor for the whole process."""
    weight = np.zeros((1, 1, 3, 3))
    weight[0, 0, 1, 1] = 1
    data = np.full((1, 1, 8, 8), 2.0**-140, np.float32)
    got = run(data, weight)
    np.testing.assert_allclose(got, data, rtol=0, atol=2.0**-144)
    assert (got > 0).all()
    assert np.float32(2.0**-140) * np.float32(0.5) > 0


# ---- Refusals ------------------------------------------------------------------------------------


def arrays(**changed: Any) -> list[mx.nd.NDArray]:
    shapes = {
        "data": (2, 3, 6, 5),
        "weight": (36, 2, 3, 16),
        "bias": (20,),
        "residual": (2, 20, 6, 5),
        **changed,
    }
    return [mx.nd.zeros(shape, ctx=mx.cpu()) for shape in shapes.values()]


@pytest.mark.parametrize(
    "name, shape, expected",
    [
        ("data", (2, 3, 6), r"data has shape \(2, 3, 6\), expected 4 dimensions \(N, C, H, W\)"),
        (
            "data",
            (2, 4, 6, 5),
            r"weight has shape \(36, 2, 3, 16\), expected 4 along axis 2, \(36 or 64, ceil",
        ),
        ("weight", (16, 2, 3, 16), r"weight has shape .*, expected 36 along axis 0"),
        ("weight", (36, 1, 3, 16), r"weight has shape .*, expected 2 along axis 1"),
        ("weight", (64, 2, 4, 16), r"weight has shape .*, expected 3 along axis 2"),
        ("weight", (36, 2, 3, 8), r"weight has shape .*, expected 16 along axis 3"),
        ("weight", (20, 3, 9), r"weight has shape .*, expected 4 dimensions \(36 or 64, ceil"),
        ("bias", (21,), r"bias has shape \(21\), expected 20 along axis 0, num_filter"),
        ("bias", (20, 1), r"bias has shape \(20, 1\), expected 1 dimension \(num_filter,\)"),
        ("residual", (2, 20, 6, 6), r"residual has shape .*, expected 5 along axis 3, as the"),
        ("residual", (2, 20, 6), r"residual has shape .*, expected 4 dimensions"),
    ],
)
def test_wrong_shapes(name, shape, expected):
    with pytest.raises(mx.MXNetError, match=f"WinogradConvolution: {expected}"):
        winograd_convolution(*arrays(**{name: shape}), num_filter=20)


@pytest.mark.parametrize("position, name", list(enumerate(("data", "weight", "bias", "residual"))))
@pytest.mark.parametrize("dtype", ["float16", "float64", "int8"])
def test_wrong_types(position, name, dtype):
    inputs = arrays()
    inputs[position] = inputs[position].astype(dtype)
    expected = f"WinogradConvolution: {name} has dtype {dtype}, expected float32"
    with pytest.raises(mx.MXNetError, match=expected):
        winograd_convolution(*inputs, num_filter=20)


@pytest.mark.parametrize(
    "parameters, expected",
    [
        ({"num_filter": 0}, "argument num_filter: expected a positive int or None, got '0'"),
        ({"num_filter": None}, "argument num_filter: expected a positive int, got None"),
        ({"dilate": 0}, "argument dilate: expected an int from 1 to 16777216, got '0'"),
        (
            {"act_type": "tanh"},
            "argument act_type: expected '' or 'relu' or 'relu6' or 'leaky', got",
        ),
        ({"stride": 2}, "unknown argument stride"),
    ],
)
def test_wrong_parameters(parameters, expected):
    with pytest.raises(mx.MXNetError, match=f"WinogradConvolution: {expected}"):
        winograd_convolution(*arrays(), **{"num_filter": 20, **parameters})


def test_no_gradient():
    inputs = arrays()
    inputs[0].attach_grad()
    with mx.autograd.record():
        out = winograd_convolution(*inputs, num_filter=20)
    with pytest.raises(
        mx.MXNetError, match="WinogradConvolution: has no gradient, because it is for"
    ):
        out.backward()
        inputs[0].grad.wait_to_read()


def test_more_than_an_array_can_have():
    symbol = winograd_convolution(*map(mx.sym.var, ("data", "weight", "bias")), num_filter=16)
    with pytest.raises(mx.MXNetError, match="output has shape .*, expected at most 2147483647"):
        symbol.infer_shape(data=(1, 1, 30000, 30000), weight=(36, 1, 1, 16), bias=(16,))


@pytest.mark.parametrize("threads", ["1", "3"])
def test_lack_of_memory(threads):
    """The error names operator and bytes; nothing stays behind that the next call meets."""
    script = Path(__file__).parents[1] / "scripts/little_memory_for_inference.py"
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OMP_STACKSIZE": "1M"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, check=True, stdout=subprocess.PIPE
    )
    error, is_right = json.loads(done.stdout.splitlines()[-1])
    assert re.match(r"WinogradConvolution: there is not enough memory for \d+ bytes more$", error)
    assert is_right


def test_only_graphs_have_it():
    """It is no operator of the package's own functions, nor of the C interface."""
    assert "WinogradConvolution" not in gluon_roi.library.operators()
    assert not hasattr(gluon_roi.nd, "WinogradConvolution")
    header = Path(gluon_roi.include(), "gluon_roi.h").read_text()
    assert "winograd" not in header.lower()
