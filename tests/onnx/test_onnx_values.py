# SPDX-License-Identifier: Apache-2.0
"""Exported operators where types, ranks and sizes are unusual: the values that MXNet gives."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.onnx_evaluator import run

import gluon_roi

onnx = pytest.importorskip("onnx")

S = mx.sym
X = S.var("x")
#: A random vector, and MXNet's softmax of all of it.
VECTOR = np.array([0.5, -1.0, 2.0], "float32")
EXPONENTIALS = np.exp(VECTOR)
BOX = np.arange(2 * 3 * 2 * 2, dtype="float32").reshape(2, 3, 2, 2) / 8


def _softmax(x: np.ndarray, *axes: int) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(axis=axes, keepdims=True)


def _ranged(*arguments: float, dtype: str) -> Any:
    return S.broadcast_add(S.cast(X, dtype=dtype), S.arange(*arguments, dtype=dtype))


ONE = np.zeros(1, "float32")
INTEGERS = np.array([-4, -2, -1, 0, 1, 2, 3, 5], "int32")
#: Each: a symbol of x, x, and the result.
VALUES: dict[str, tuple[Any, np.ndarray, Any]] = {
    # MXNet truncates start and step, though the number of elements follows from the fractions.
    "arange of int32": (_ranged(-2.875, 0.5, 0.5, dtype="int32"), ONE, [-2] * 7),
    "arange of int32, step": (_ranged(0.5, 12, 1.75, dtype="int32"), ONE, [0, 1, 2, 3, 4, 5, 6]),
    "arange of int64": (_ranged(5.5, -3, -1.5, dtype="int64"), ONE, [5, 4, 3, 2, 1, 0]),
    "arange of float16": (_ranged(5.5, -3, -1.5, dtype="float16"), ONE, [5, 4, 3, 2, 1, 0]),
    "arange of float16, step": (_ranged(0.3, 0.75, 0.1, dtype="float16"), ONE, [0] * 5),
    "arange of float32": (_ranged(5.5, -3, -1.5, dtype="float32"), ONE, [5.5, 4, 2.5, 1, -0.5, -2]),
    "arange of float64": (_ranged(0.5, 2, 0.5, dtype="float64"), ONE, [0.5, 1, 1.5]),
    # The scalar is truncated, too.
    "smooth_l1 of int32": (S.smooth_l1(X), INTEGERS, [3, 1, 0, 0, 0, 1, 2, 4]),
    "smooth_l1 of int32, 0.5": (S.smooth_l1(X, scalar=0.5), INTEGERS, [0] * 8),
    "smooth_l1 of int32, 2.5": (S.smooth_l1(X, scalar=2.5), INTEGERS, [3, 1, 0, 0, 0, 1, 2, 4]),
    "L2Normalization of a vector": (
        S.L2Normalization(X, eps=1.0),
        VECTOR,
        VECTOR / np.sqrt(VECTOR**2 + 1),
    ),
    "SoftmaxOutput of a vector": (S.SoftmaxOutput(X), VECTOR, EXPONENTIALS / EXPONENTIALS.sum()),
    "SoftmaxOutput of a vector, float64": (S.SoftmaxOutput(X), VECTOR.astype("float64"), [1] * 3),
    "SoftmaxOutput of rank 3": (S.SoftmaxOutput(X), BOX[0], _softmax(BOX[0], 1, 2)),
    "SoftmaxOutput of rank 4": (S.SoftmaxOutput(X), BOX, _softmax(BOX, 3)),
    "SoftmaxOutput of rank 4, float64": (
        S.SoftmaxOutput(X),
        BOX.astype("float64"),
        _softmax(BOX, 1, 2, 3),
    ),
    "quotient of integers": (
        S.broadcast_add(X, S.broadcast_div(S.full((4,), -7, dtype="int32") + X,
                                           S.arange(2, 6, dtype="int32"))),
        np.zeros(4, "int32"),
        [-3, -2, -1, -1],
    ),
    "quotient of constants": (
        S.broadcast_add(X, S.broadcast_div(S.full((4,), -7, dtype="int32"),
                                           S.arange(2, 6, dtype="int32"))),
        np.zeros(4, "int32"),
        [-3, -2, -1, -1],
    ),
    "LRN of a matrix": (
        S.LRN(X, nsize=3, alpha=3.0, beta=1.0, knorm=1.0),
        np.array([[1, 2, 3]], "float32"),
        [[1 / 6, 2 / 15, 3 / 14]],
    ),
    "batch_dot of rank 4": (
        S.batch_dot(X, X, transpose_a=True),
        BOX,
        np.einsum("abij,abik->abjk", BOX, BOX),
    ),
    "full of uint8": (X + S.full((2,), -2, dtype="uint8"), np.array([1, 3], "uint8"), [255, 1]),
    "arange_like of uint8": (
        S.contrib.arange_like(X, start=-2, step=3), np.zeros(3, "uint8"), [254, 1, 4],
    ),
    # MXNet reads the scalar as float64.
    "scalar of int64": (X + (2**53 + 1), np.array([0, 1]), [2**53, 2**53 + 1]),
    "clip of int8": (S.clip(X, a_min=-500, a_max=2.5), np.array([-7, 2, 3], "int8"), [-7, 2, 2]),
    "slice that begins before the first element": (
        S.slice(X, begin=(-4,), end=(None,), step=(-1,)), np.arange(4), [0],
    ),
    "relu of int64": (S.relu(X), np.array([-3, 0, 7]), [0, 0, 7]),
    "squeeze": (S.squeeze(X), BOX[:1, :, :1], BOX[0, :, 0]),
}  # fmt: skip


def _exported(symbol: Any, path: Any, *arrays: np.ndarray, **options: Any) -> list:
    types = [value.dtype for value in arrays]
    shapes = [value.shape for value in arrays]
    gluon_roi.onnx.export(symbol, shapes, path, input_types=types, **options)
    return run(path, *arrays)


@pytest.mark.parametrize("name", VALUES)
def test_values(name, tmp_path):
    symbol, x, expected = VALUES[name]
    bound = symbol.simple_bind(mx.cpu(), x=x.shape, type_dict={"x": x.dtype}, grad_req="null")
    theirs = bound.forward(is_train=False, x=mx.nd.array(x, dtype=x.dtype))[0].asnumpy()
    (found,) = _exported(symbol, tmp_path / "model.onnx", x)
    assert found.dtype == theirs.dtype
    np.testing.assert_allclose(theirs, expected, rtol=2e-6)
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_squeeze_without_axis_of_a_size_that_may_vary_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    message = "node s .squeeze.: without axis, an axis whose size is dynamic has no translation"
    with pytest.raises(NotImplementedError, match=message):
        gluon_roi.onnx.export(S.squeeze(X, name="s"), [(1, 3)], path, dynamic=[(1,)])
    gluon_roi.onnx.export(S.squeeze(X, axis=0), [(1, 3)], path, dynamic=[(1,)])
    assert run(path, np.ones((1, 5), "float32"))[0].shape == (5,)


def test_constants_are_divided_as_mxnet_does(tmp_path):
    """OpenVINO rounds quotients of constants down, so none is left in the file."""
    symbol, x, _ = VALUES["quotient of constants"]
    _exported(symbol, tmp_path / "model.onnx", x)
    graph = onnx.load(str(tmp_path / "model.onnx")).graph
    assert [node.op_type for node in graph.node] == ["Add"]


def test_a_sum_of_one_tensor_is_a_copy(tmp_path):
    """OpenVINO leaves out a Sum of one tensor, and the name of the input with it."""
    x = np.arange(6, dtype="float32")
    (found,) = _exported(S.add_n(X), tmp_path / "model.onnx", x)
    nodes = onnx.load(str(tmp_path / "model.onnx")).graph.node
    assert [node.op_type for node in nodes] == ["Identity"]
    assert (found == x).all()


def test_a_norm_of_float16_has_one_type(tmp_path):
    """MXNet's parameters are float32; OpenVINO refuses nodes of two types of floats."""
    symbol = S.BatchNorm(S.relu(X), name="n", fix_gamma=False)
    params = {
        f"n_{name}": mx.nd.array(values)
        for name, values in {
            "gamma": [1.0, 2], "beta": [0.0, 1], "moving_mean": [2.0, -1], "moving_var": [4.0, 1]
        }.items()
    }  # fmt: skip
    x = np.array([[4, 2], [-1, 3]], "float16").reshape(2, 2, 1, 1)
    (found,) = _exported(symbol, tmp_path / "model.onnx", x, params=params)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.ravel(), [1, 7, -1, 9], atol=0.01)
    graph = onnx.shape_inference.infer_shapes(onnx.load(str(tmp_path / "model.onnx"))).graph
    types = {v.name: v.data_type for v in graph.initializer}
    types.update((v.name, v.type.tensor_type.elem_type) for v in graph.value_info)
    (norm,) = (node for node in graph.node if node.op_type == "BatchNormalization")
    assert {types[name] for name in norm.input} == {onnx.TensorProto.FLOAT}


class Mode(mx.gluon.HybridBlock):
    """Twice its input in training, three times otherwise."""

    def hybrid_forward(self, F, x):
        return x * (2 if mx.autograd.is_training() else 3)


@pytest.mark.parametrize("mode", [mx.autograd.record, mx.autograd.train_mode])
def test_training_mode_does_not_change_the_export(mode, tmp_path):
    with mode():
        gluon_roi.onnx.export(Mode(), [(2,)], tmp_path / "model.onnx")
        assert mx.autograd.is_training()
    (found,) = run(tmp_path / "model.onnx", np.ones(2, "float32"))
    assert found.tolist() == [3, 3]


FLOAT64: dict[str, tuple[Any, tuple]] = {
    "Conv": (S.Convolution(X, S.var("w"), kernel=(1, 1), num_filter=1, no_bias=True), (1, 1, 2, 2)),
    "Resize": (S.contrib.BilinearResize2D(X, height=3, width=3), (1, 1, 2, 2)),
    "GridSample": (S.BilinearSampler(X, S.zeros((1, 2, 2, 2), dtype="float64")), (1, 1, 2, 2)),
    "Erf": (S.erf(X), (3,)),
}


@pytest.mark.parametrize("name", FLOAT64)
def test_float64_without_a_kernel_gives_a_warning(name, tmp_path):
    """onnxruntime refuses the file; the warning has the same operators."""
    symbol, shape = FLOAT64[name]
    arrays = [np.ones(shape), np.ones((1, 1, 1, 1))][: len(symbol.list_inputs())]
    message = f"onnx.export: onnxruntime has no float64 kernel for {name}; export the model in"
    with pytest.warns(UserWarning, match=message) as warned, pytest.raises(Exception) as raised:
        _exported(symbol, tmp_path / "model.onnx", *arrays)
    assert warned[0].filename == __file__
    assert f"NOT_IMPLEMENTED : Could not find an implementation for {name}" in str(raised.value)


def test_float32_gives_no_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _exported(S.erf(X), tmp_path / "model.onnx", np.ones(3, "float32"))


def test_suppression_of_float16(tmp_path):
    """In float32, as BoxNMS: an area of 90000 is infinite in float16, and would overlap nothing."""
    rows = np.array([[
        [0, 0.5, 0, 0, 300, 300],
        [0, 0.75, 0, 0, 300, 256],
        [1, 0.25, 8, 8, 16, 16],
        [0, 0.0, 0, 0, 1, 1],
    ]], "float16")  # fmt: skip
    symbol = gluon_roi.sym.BoxNMS(X, overlap_thresh=0.5, valid_thresh=0, id_index=0)
    expected = gluon_roi.nd.BoxNMS(
        mx.nd.array(rows, dtype="float16"), overlap_thresh=0.5, valid_thresh=0, id_index=0
    ).asnumpy()
    (found,) = _exported(symbol, tmp_path / "model.onnx", rows)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found[0], [rows[0, 1], rows[0, 2], [-1] * 6, [-1] * 6])


A, B = S.var("x0"), S.var("x1")
#: With np_shape, MXNet has scalars and sizes of 0. Each: a symbol, its inputs, shape of the result.
NP_SHAPES: dict[str, tuple[Any, list, tuple]] = {
    "Embedding of a scalar": (
        lambda: S.Embedding(A, B, input_dim=4, output_dim=3),
        [np.array(2.0), np.arange(12.0).reshape(4, 3)],
        (3,),
    ),
    "take of a scalar": (
        lambda: S.take(B, A), [np.array(2.0), np.arange(12.0).reshape(4, 3)], (3,),
    ),
    "dot, no rows": (lambda: S.dot(A, B), [np.ones((0, 2, 3)), np.ones((3, 4))], (0, 2, 4)),
    "dot, 0 inside": (lambda: S.dot(A, B), [np.ones((2, 0, 3)), np.ones((3, 4))], (2, 0, 4)),
    "dot, 0 at the right": (lambda: S.dot(A, B), [np.ones((2, 3)), np.ones((3, 0, 4))], (2, 0, 4)),
    "dot of matrices": (lambda: S.dot(A, B), [np.ones((0, 3)), np.ones((3, 4))], (0, 4)),
    "reshape_like": (
        lambda: S.reshape_like(A, B), [np.ones((4, 0)), np.ones((2, 0, 2))], (2, 0, 2),
    ),
    "reshape_like, rows": (
        lambda: S.reshape_like(A, B), [np.ones((0, 6)), np.ones((0, 2, 3))], (0, 2, 3),
    ),
    "repeat": (lambda: S.repeat(A, repeats=2, axis=1) + B, [np.ones((0, 2, 0)), np.ones((0, 4, 0))],
               (0, 4, 0)),
    "argmax of a scalar": (lambda: S.argmax(A, keepdims=True), [np.array(2.0)], ()),
    "slice of nothing": (
        lambda: S.slice(A, begin=(-3,), end=(None,), step=(-1,)), [np.ones((2, 3))], (0, 3),
    ),
    "arange_like": (lambda: S.contrib.arange_like(A), [np.ones((2, 0, 3))], (2, 0, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", NP_SHAPES)
def test_np_shape(name, tmp_path):
    make, arrays, shape = NP_SHAPES[name]
    arrays = [value.astype("float32") for value in arrays]
    with mx.util.np_shape(True):
        symbol = make()
        given = {f"x{n}": mx.nd.array(value) for n, value in enumerate(arrays)}
        expected = symbol.bind(mx.cpu(), given).forward()[0].asnumpy()
        ordered = [given[key].asnumpy() for key in symbol.list_inputs()]
        (found,) = _exported(symbol, tmp_path / "model.onnx", *ordered)
    assert found.shape == expected.shape == shape
    np.testing.assert_array_equal(found, expected)
