# SPDX-License-Identifier: Apache-2.0
"""Exported zeros, ones and full whose sizes MXNet infers, and the cells that begin with them."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.onnx_evaluator import run

import gluon_roi

pytest.importorskip("onnx")

S, RNN = mx.sym, mx.gluon.rnn
X, Y = S.var("x"), S.var("y")


def _random(*shape: int) -> np.ndarray:
    return np.random.RandomState(0).randn(*shape).astype("float32")


def _values(symbol: Any, **inputs: np.ndarray) -> list[np.ndarray]:
    arrays = {name: mx.nd.array(inputs[name]) for name in symbol.list_arguments()}
    return [out.asnumpy() for out in symbol.bind(mx.cpu(), arrays).forward(is_train=False)]


#: Each: a symbol of x and y, their shapes, their dynamic axes, and their shapes in another call.
CREATED: dict[str, tuple] = {
    "zeros": (S.zeros((0, 3)) + X, [(2, 3)], [(0,)], [(5, 3)]),
    "ones": (X * S.ones((0, 0)), [(2, 3)], [(0, 1)], [(5, 4)]),
    "full": (S.full((2, 0), 1.5) - X, [(2, 3)], [(1,)], [(2, 7)]),
    "read before": (S.exp(S.zeros((0, 3))) + S.sin(X), [(2, 3)], [(0,)], [(5, 3)]),
    "of equal sizes": (S.Concat(S.ones((0, 0)) * X, S.zeros((0, 0)) + Y, dim=0),
                       [(3, 3), (3, 3)], [(0, 1), (0, 1)], [(4, 5), (2, 5)]),
    "of tied inputs": (X + Y + S.ones((0, 3)), [(2, 3), (2, 3)], [(0,), (0,)], [(4, 3), (4, 3)]),
    "of a map behind a layer": (
        S.Pooling(X, kernel=(2, 2), stride=(2, 2), pool_type="max") * S.full((0, 0, 0, 0), 2.0),
        [(1, 2, 6, 8)], [(0, 2, 3)], [(2, 2, 9, 5)],
    ),
    "as many as cells": (S.Reshape(X, shape=(-1,)) * S.ones((0,)), [(2, 3)], [(0, 1)], [(5, 4)]),
    "given, of axes with one size": (
        S.Concat(S.broadcast_add(X * S.ones((3, 1)), Y * S.ones((1, 4))), S.ones((5, 4)), dim=0),
        [(3, 1), (1, 4)], [(0,), (1,)], [(3, 1), (1, 4)],
    ),
    "fixed beside dynamic": (S.Concat(X, S.ones((4, 3)), dim=0), [(2, 3)], [(0,)], [(5, 3)]),
}  # fmt: skip


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("name", CREATED)
def test_sizes_are_those_that_mxnet_infers(name, is_dynamic, tmp_path):
    symbol, shapes, axes, others = CREATED[name]
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, shapes, path, dynamic=axes if is_dynamic else None)
    for sizes in (shapes, others)[: 1 + is_dynamic]:
        inputs = dict(zip("xy", (_random(*shape) for shape in sizes)))
        (expected,) = _values(symbol, **inputs)
        (found,) = run(path, *inputs.values())
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_size_that_no_other_tensor_has_is_refused(tmp_path):
    """MXNet infers it from the output of a convolution: two cells more."""
    layer = S.Convolution(S.ones((1, 1, 0, 4), name="map"), kernel=(3, 3), num_filter=1, name="c")
    parameters = {"c_weight": np.ones((1, 1, 3, 3), "float32"), "c_bias": np.ones(1, "float32")}
    symbol, path = layer + X, tmp_path / "model.onnx"
    with pytest.raises(NotImplementedError) as raised:
        gluon_roi.onnx.export(symbol, [(1, 1, 5, 2)], path, parameters, dynamic=[(2,)])
    assert str(raised.value) == (
        "onnx.export: node map (_ones): shape=(1, 1, 0, 4): the size of axis 2 is dynamic, and no "
        "other tensor has it; export with fixed sizes"
    )
    gluon_roi.onnx.export(symbol, [(1, 1, 5, 2)], path, parameters)
    x = _random(1, 1, 5, 2)
    np.testing.assert_allclose(run(path, x)[0], x + 10, rtol=1e-6)


# ---- Recurrent cells -----------------------------------------------------------------------------


class _Unrolled(mx.gluon.HybridBlock):
    def __init__(self, cell: Any, length: int, layout: str) -> None:
        super().__init__()
        self.cell, self.length, self.layout = cell, length, layout

    def hybrid_forward(self, F: Any, x: Any) -> list:
        self.cell.reset()
        out, states = self.cell.unroll(self.length, x, layout=self.layout, merge_outputs=True)
        return [out, *states]


def _stacked() -> Any:
    cell = RNN.HybridSequentialRNNCell()
    cell.add(RNN.LSTMCell(5, input_size=3))
    cell.add(RNN.ResidualCell(RNN.GRUCell(5, input_size=5)))
    return cell


CELLS: dict[str, Any] = {
    "LSTM": lambda: RNN.LSTMCell(5, input_size=3),
    "GRU": lambda: RNN.GRUCell(5, input_size=3),
    "RNN": lambda: RNN.RNNCell(5, input_size=3),
    "RNN, relu": lambda: RNN.RNNCell(5, activation="relu", input_size=3),
    "stacked": _stacked,
    "both directions": lambda: RNN.BidirectionalCell(
        RNN.LSTMCell(5, input_size=3), RNN.GRUCell(4, input_size=3)
    ),
}


@pytest.mark.parametrize("layout", ["NTC", "TNC"])
@pytest.mark.parametrize("cell", CELLS)
def test_unrolled_cells(cell, layout, tmp_path):
    net = _Unrolled(CELLS[cell](), 4, layout)
    mx.random.seed(1)
    net.initialize(mx.init.Normal(1))
    path, batch = tmp_path / "model.onnx", layout.index("N")

    def sequence(images: int) -> np.ndarray:
        return _random(*[images if name == "N" else {"T": 4, "C": 3}[name] for name in layout])

    for axes in ((), (batch,)):
        gluon_roi.onnx.export(net, [sequence(2).shape], path, dynamic=[axes])
        for images in (2, 7)[: 1 + len(axes)]:
            x = sequence(images)
            expected = [out.asnumpy() for out in net(mx.nd.array(x))]
            found = run(path, x)
            assert len(found) == len(expected)
            for ours, theirs in zip(found, expected):
                np.testing.assert_allclose(ours, theirs, atol=5e-6)


def test_cells_of_symbols(tmp_path):
    """mx.rnn's cells, which unroll symbols."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cell = mx.rnn.LSTMCell(5, prefix="lstm_")
        out, _ = cell.unroll(3, inputs=X, layout="NTC", merge_outputs=True)
    shapes, _, _ = out.infer_shape(x=(2, 3, 4))
    random = np.random.RandomState(1)
    parameters = {
        name: random.randn(*shape).astype("float32")
        for name, shape in zip(out.list_arguments(), shapes)
        if name != "x"
    }
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(out, [(2, 3, 4)], path, parameters, dynamic=[(0,)])
    for images in (2, 5):
        x = _random(images, 3, 4)
        (expected,) = _values(out, x=x, **parameters)
        np.testing.assert_allclose(run(path, x)[0], expected, atol=5e-6)
