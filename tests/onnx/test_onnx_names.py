# SPDX-License-Identifier: Apache-2.0
"""Names of an exported model's inputs and outputs, which are kept or refused, and dynamic axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.onnx_evaluator import run

import gluon_roi
from gluon_roi.__main__ import main

onnx = pytest.importorskip("onnx")

S = mx.sym
X, Y = np.array([[1, 2, 3]], "float32"), np.array([[4, 5, 6]], "float32")


def _names(path):
    graph = onnx.load(str(path)).graph
    return [value.name for value in graph.input], [value.name for value in graph.output]


def _constants(name):
    """The input is called as the constants of the graph are."""
    return S.var("x") * 2 + S.var(name) + 3, ["x", name], [X, Y], 2 * X + Y + 3


@pytest.mark.parametrize("name", ["constant", "constant_1", "_plus0/Add", "_plusscalar0/Add"])
def test_an_input_keeps_its_name(name, tmp_path):
    symbol, names, arrays, expected = _constants(name)
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, [(1, 3), (1, 3)], path, output_names=["sum"])
    assert _names(path) == (names, ["sum"])
    assert (run(path, *arrays)[0] == expected).all()


@pytest.mark.parametrize("name", ["scores", "e/Exp", "r/Relu", "w", "constant", "r_output", "e"])
def test_an_output_has_any_name_that_is_no_inputs(name, tmp_path):
    """Nodes, weights and constants have other names then; folding removes some of them."""
    scores = S.identity(S.identity(S.var("x"), name="scores"), name="constant")
    symbol = S.exp(S.relu(scores, name="r") * S.var("w"), name="e")
    path = tmp_path / "model.onnx"
    weights = {"w": mx.nd.full((1, 3), 0.5)}
    gluon_roi.onnx.export(symbol, [(1, 3)], path, weights, output_names=[name])
    assert _names(path) == (["x"], [name])
    np.testing.assert_allclose(run(path, X)[0], np.exp(0.5 * X), rtol=1e-6)


def test_an_input_that_is_an_output_has_one_name(tmp_path):
    path = tmp_path / "model.onnx"
    x = S.var("x")
    for names in (None, ["x", "e"]):
        symbol = S.Group([x, S.exp(x, name="e")])
        gluon_roi.onnx.export(symbol, [(1, 3)], path, output_names=names)
        assert _names(path) == (["x"], names or ["x", "e_output"])
        same, exponential = run(path, X)
        assert (same == X).all() and np.allclose(exponential, np.exp(X))


def _two(name):
    return S.Group([S.exp(S.var("x"), name=name), S.relu(S.var("y"), name=name)])


@pytest.mark.parametrize(
    "symbol, shapes, options, message",
    [
        (S.exp(S.var("e_output"), name="e"), 1, {}, "output_names: another tensor has the name e_"),
        (S.exp(S.var("x"), name="e"), 1, {"output_names": ["x"]}, "another tensor has the name x,"),
        (_two("e"), 2, {}, "several outputs have the name e_output; give each its own name with "),
        (_two("e"), 2, {"output_names": ["x", "y"]}, "another tensor has the name x, an input of"),
        (S.var("x") + S.exp(S.var("x")), 2, {}, "several variables with the name 'x', and each"),
    ],
)
def test_names_that_are_refused(symbol, shapes, options, message, tmp_path):
    path = tmp_path / "model.onnx"
    with pytest.raises(ValueError, match=message) as raised:
        gluon_roi.onnx.export(symbol, [(1, 3)] * shapes, path, **options)
    assert str(raised.value).startswith("onnx.export: ") and not path.exists()


def test_outputs_of_one_name_with_names_of_their_own(tmp_path, capsys):
    symbol, params, path = (str(tmp_path / name) for name in ("net.json", "p", "model.onnx"))
    _two("e").save(symbol)
    mx.nd.save(params, {"unused": mx.nd.ones(1)})
    line = ["export", symbol, params, "-o", path, "--shape", "x=1,3", "--shape", "y=1,3"]
    assert main(line) == 2 and "several outputs have the name e_output" in capsys.readouterr().err
    assert main([*line, "--output-names", "a", "b"]) == 0
    assert _names(path) == (["x", "y"], ["a", "b"])


def test_two_variables_of_one_weight(tmp_path):
    path = tmp_path / "model.onnx"
    symbol = S.var("x") * S.var("w") + S.exp(S.var("w"))
    gluon_roi.onnx.export(symbol, [(1, 3)], path, {"w": mx.nd.full((1, 3), 2)})
    np.testing.assert_allclose(run(path, X)[0], 2 * X + np.exp(2), rtol=1e-6)


def test_no_shape_where_every_input_is_replaced(tmp_path, capsys):
    """The command line, as the function, which gets an empty list."""
    symbol, params, path = (str(tmp_path / name) for name in ("net.json", "p", "model.onnx"))
    S.exp(S.relu(S.var("x"), name="r"), name="e").save(symbol)
    mx.nd.save(params, {"unused": mx.nd.ones(1)})
    assert main(["export", symbol, params, "-o", path, "--inputs", "r=1,3"]) == 0
    assert _names(path) == (["r"], ["e_output"])
    np.testing.assert_allclose(run(Path(path), X)[0], np.exp(X), rtol=1e-6)
    assert main(["export", symbol, params, "-o", path]) == 2
    assert "input_shapes: expected a shape for input x, got none" in capsys.readouterr().err


def test_a_parameter_named_as_an_input(tmp_path):
    class Shift(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="")
            self.data = self.params.get("data", shape=(3,), init="ones")

        def hybrid_forward(self, F, x, data):
            return F.broadcast_add(x, data)

    net, path = Shift(), tmp_path / "model.onnx"
    net.initialize()
    gluon_roi.onnx.export(net, [(1, 3)], path)
    assert [value.name for value in onnx.load(str(path)).graph.input] == ["data_"]
    assert (run(path, X)[0] == X + 1).all()


def test_shapes_are_in_the_order_of_arguments(tmp_path):
    """Where an argument is read as a label first, and then as another input."""
    a, b, path = S.var("a"), S.var("b"), tmp_path / "model.onnx"
    loss = S.LinearRegressionOutput(S.exp(S.var("c")), a, name="loss")
    symbol = S.Group([loss, S.concat(b, a, dim=0, name="both")])
    assert symbol.list_arguments() == ["c", "a", "b"]
    symbol.save(str(tmp_path / "symbol.json"))
    for model in (symbol, tmp_path / "symbol.json"):
        gluon_roi.onnx.export(model, [(3, 3), (3, 3), (5, 3)], path)
        inputs = onnx.load(str(path)).graph.input
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inputs}
        assert shapes == {"c": [3, 3], "a": [3, 3], "b": [5, 3]}


# ---- Dynamic axes --------------------------------------------------------------------------------


def _detector():
    data, info = S.var("data"), S.var("im_info")
    scores = S.slice_axis(data, axis=1, begin=0, end=2)
    rois = S.contrib.MultiProposal(
        scores, data, info, scales=(8,), ratios=(1,), rpn_post_nms_top_n=5, name="rois"
    )
    return S.ROIPooling(data, rois, (2, 2), 0.5, name="pool")


DETECTOR = [(1, 4, 12, 9), (1, 3)]
MAPS = [(1, 4, 12, 9), (1, 4, 6, 5)]


def _pyramid():
    """The sizes of the second map are half of the first one's, rounded up."""
    small = S.Pooling(S.var("a"), kernel=(2, 2), stride=(2, 2), pooling_convention="full")
    return small + S.var("b")


@pytest.mark.parametrize(
    "symbol, shapes, dynamic, message",
    [
        (
            _detector(),
            DETECTOR,
            [(0, 2, 3), ()],
            "axis 0 of data cannot be dynamic alone, because the model needs the same size along "
            "axis 0 of im_info; make both dynamic, or neither",
        ),
        (
            S.var("a") + S.var("b"),
            [(2, 3), (2, 3)],
            [(), (1,)],
            "axis 1 of b cannot be dynamic alone, because the model needs the same size along axis",
        ),
        (
            S.concat(S.reshape(S.var("x"), (-1, 4)), S.zeros((108, 2)), dim=1),
            DETECTOR[:1],
            [(0,)],
            "axis 0 of x cannot be dynamic, because the graph itself is made for a batch of 1: ",
        ),
        (
            S.dot(S.var("x"), S.ones((3, 2))),
            [(1, 3)],
            [(0, 1)],
            "axes [0, 1] of x cannot be dynamic, because the model fixes their sizes: ",
        ),
    ],
)
def test_axes_that_cannot_be_dynamic(symbol, shapes, dynamic, message, tmp_path):
    path = tmp_path / "model.onnx"
    with pytest.raises(ValueError) as raised:
        gluon_roi.onnx.export(symbol, shapes, path, dynamic=dynamic)
    found = str(raised.value)
    assert found.startswith(f"onnx.export: dynamic: {message}") and "\n" not in found
    assert not path.exists()


#: Layers of x (2, 4, 6, 6), or of another shape: attributes, shapes of the parameters, and the axis
#: whose size these fix.
FIXED: dict[str, tuple[dict, list, int]] = {
    "BatchNorm": ({}, [(4,)] * 4, 1),
    "BatchNorm, last axis": ({"axis": -1}, [(6,)] * 4, 3),
    "_contrib_SyncBatchNorm": ({"key": "k"}, [(4,)] * 4, 1),
    "InstanceNorm": ({}, [(4,)] * 2, 1),
    "LayerNorm": ({}, [(6,)] * 2, 3),
    "LeakyReLU": ({"act_type": "prelu"}, [(4,)], 1),
    "Convolution": ({"kernel": (1, 1), "num_filter": 2, "no_bias": True}, [(2, 4, 1, 1)], 1),
    "Deconvolution": ({"kernel": (1, 1), "num_filter": 2, "no_bias": True}, [(4, 2, 1, 1)], 1),
    "FullyConnected": ({"num_hidden": 2, "no_bias": True}, [(2, 144)], 2),
    "_contrib_box_decode": ({}, [(1, 5, 4)], 1),
}


@pytest.mark.parametrize("name", FIXED)
def test_an_axis_that_parameters_fix(name, tmp_path):
    """MXNet compares the sizes for some layers only, and reads beyond the parameters of others."""
    attributes, shapes, axis = FIXED[name]
    operator = name.split(",")[0]
    is_contrib = operator.startswith("_contrib_")
    function = getattr(S.contrib if is_contrib else S, operator.replace("_contrib_", ""))
    variables = [S.var(f"p{n}") for n in range(len(shapes))]
    symbol = function(S.var("x"), *variables, name="n", **attributes)
    params = {f"p{n}": np.ones(sizes, "float32") for n, sizes in enumerate(shapes)}
    shape = (2, 5, 4) if "box" in name else (2, 4, 6, 6)
    path = tmp_path / "model.onnx"
    with pytest.raises((ValueError, NotImplementedError)) as raised:
        gluon_roi.onnx.export(symbol, [shape], path, params, dynamic=[(0, axis)])
    found = str(raised.value)
    assert f"axis {axis}" in found or "axes " in found
    assert "dynamic" in found and "\n" not in found and not path.exists()
    gluon_roi.onnx.export(symbol, [shape], path, params, dynamic=[(0,)])
    gluon_roi.onnx.export(symbol, [shape], path, params)


def test_parameters_that_are_dynamic_inputs(tmp_path):
    """The channels of a normalisation with gamma of 1, with those of its other parameters."""
    variables = [S.var(name) for name in ("x", "gamma", "beta", "mean", "var")]
    symbol, path = S.BatchNorm(*variables, fix_gamma=True, eps=1e-3), tmp_path / "model.onnx"
    shapes = [(2, 3, 4), *[(3,)] * 4]
    gluon_roi.onnx.export(symbol, shapes, path, dynamic=[(1,), *[(0,)] * 4])
    x, ones = np.arange(40, dtype="float32").reshape(2, 5, 4), np.ones(5, "float32")
    (found,) = run(path, x, ones * 7, ones * 2, ones, ones)
    np.testing.assert_allclose(found, (x - 1) / np.sqrt(1.001) + 2, rtol=1e-6)


@pytest.mark.parametrize(
    "symbol, shape, axis, others",
    [
        # A size that only smaller inputs change.
        (S.split(S.slice(S.var("x"), (0, 0), (4, 2)), axis=0, num_outputs=2), (6, 2), 0, (5, 2)),
        (S.slice(S.var("x"), (-4,), (None,), (-1,)), (6, 2), 0, (7, 4)),
        (S.slice(S.var("x"), (-2,), (-4,), (-1,)), (6, 2), 0, (9, 3, 2)),
    ],
)
def test_other_sizes(symbol, shape, axis, others, tmp_path):
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, [shape], path, dynamic=[(axis,)])
    for size in (shape[axis], *others):
        x = np.random.RandomState(0).rand(*shape[:axis], size, *shape[axis + 1 :])
        given = {"x": mx.nd.array(x)}
        expected = [out.asnumpy() for out in symbol.bind(mx.cpu(), given).forward()]
        for ours, theirs in zip(run(path, given["x"].asnumpy()), expected):
            assert ours.shape == theirs.shape and (ours == theirs).all()


@pytest.mark.parametrize(
    "symbol, shapes, dynamic",
    [
        (_detector(), DETECTOR, [(0, 2, 3), (0,)]),
        (_detector(), DETECTOR, [(2, 3), ()]),
        (_pyramid(), MAPS, [(0, 2, 3), (0, 2, 3)]),
        (S.reshape(S.var("x"), (-1, 14, 3)), [(1, 14, 3)], [(0, 1)]),
    ],
)
def test_axes_that_can_be_dynamic(symbol, shapes, dynamic, tmp_path):
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(symbol, shapes, path, dynamic=dynamic)
    dims = [value.type.tensor_type.shape.dim for value in onnx.load(str(path)).graph.input]
    found = [tuple(n for n, d in enumerate(shape) if d.dim_param) for shape in dims]
    assert found == dynamic


@pytest.mark.parametrize("tied", [False, True])
def test_an_axis_that_parameters_fix_beside_other_inputs(tied, tmp_path):
    """y is dynamic, too, and each image has three rows of it if they are tied."""
    x, path = S.reshape(S.var("x"), (-3, 0)), tmp_path / "model.onnx"
    rows = S.FullyConnected(x, num_hidden=2, no_bias=True, name="fc")
    symbol = rows * S.var("y") if tied else S.Group([rows, S.var("y") * 2])
    weights = {"fc_weight": np.ones((2, 4), "float32")}
    with pytest.raises(ValueError) as raised:
        gluon_roi.onnx.export(symbol, [(2, 3, 4), (6, 2)], path, weights, dynamic=[(0, 2), (0,)])
    assert str(raised.value) == (
        "onnx.export: dynamic: axis 2 of x cannot be dynamic, because the parameters fix its size"
    )
    gluon_roi.onnx.export(symbol, [(2, 3, 4), (6, 2)], path, weights, dynamic=[(0,), (0,)])


def test_sizes_that_mxnet_infers_from_another_input(tmp_path):
    """y has three rows for each row of x but the first."""
    rows = S.reshape(S.slice_axis(S.var("x"), axis=0, begin=1, end=None), (-3, 0)) + S.var("y")
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(rows, [(5, 3, 2), (12, 2)], path, dynamic=[(0,), (0,)])
    x, y = np.ones((3, 3, 2), "float32"), np.ones((6, 2), "float32")
    np.testing.assert_array_equal(run(path, x, y)[0], np.full((6, 2), 2))


def _dims(path):
    """The shapes of a file's inputs by their names."""
    return {
        value.name: [d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim]
        for value in onnx.load(str(path)).graph.input
    }


def test_arguments_by_name(tmp_path):
    shapes: Any = {"im_info": (1, 3), "data": (1, 4, 12, 9)}
    dynamic: Any = {"im_info": {0: "batch"}, "data": {0: "batch", 3: "width", 2: "height"}}
    types = {"im_info": "float32"}
    path, same = tmp_path / "model.onnx", tmp_path / "same.onnx"
    symbol = _detector()
    gluon_roi.onnx.export(symbol, shapes, path, input_types=types, dynamic=dynamic)
    assert _dims(path) == {"data": ["batch", 4, "height", "width"], "im_info": ["batch", 3]}
    axes = [dynamic["data"], dynamic["im_info"]]
    gluon_roi.onnx.export(symbol, DETECTOR, same, input_types=["float32"] * 2, dynamic=axes)
    assert same.read_bytes() == path.read_bytes()
    gluon_roi.onnx.export(symbol, DETECTOR, path, dynamic={"data": [2]})
    assert _dims(path) == {"data": [1, 4, "data_2", 9], "im_info": [1, 3]}


def test_names_for_the_inputs_of_a_block(tmp_path):
    """In the order of the call; they name axes and dtypes, too."""
    path = tmp_path / "model.onnx"
    pool = gluon_roi.ROIPool(2, 1.0)
    shapes: Any = {"maps": (1, 3, 9, 9), "boxes": (4, 5)}
    gluon_roi.onnx.export(pool, shapes, path, dynamic={"boxes": {0: "rows"}})
    assert _dims(path) == {"maps": [1, 3, 9, 9], "boxes": ["rows", 5]}
    gluon_roi.onnx.export(pool, [*shapes.values()], path, dynamic={"data1": (0,)})
    assert _dims(path) == {"data0": [1, 3, 9, 9], "data1": ["data1_0", 5]}
    dense = mx.gluon.nn.Dense(2, in_units=3, prefix="d_")
    dense.initialize()
    for name in ("d_weight", ""):
        with pytest.raises(ValueError) as raised:
            gluon_roi.onnx.export(dense, {name: (1, 3)}, tmp_path / "other.onnx")
        assert str(raised.value) == (
            "onnx.export: input_shapes: expected names for inputs that no parameter has, got "
            f"{name!r}"
        )


def test_the_batch_of_gluoncvs_detectors(tmp_path):
    model_zoo = pytest.importorskip("gluoncv.model_zoo")
    path = tmp_path / "model.onnx"
    options = {"pretrained": False, "pretrained_base": False}
    net = model_zoo.get_model("mask_rcnn_resnet18_v1b_coco", **options)
    net.initialize()
    message = (
        "dynamic: axis 0 of data cannot be dynamic, because the graph itself is made for a batch of"
    )
    with pytest.raises(ValueError, match=message):
        gluon_roi.onnx.export(net, [(1, 3, 128, 160)], path, dynamic=[(0, 2, 3)])
    assert not path.exists()
    net = model_zoo.get_model("ssd_300_mobilenet0.25_voc", **options)
    net.initialize()
    gluon_roi.onnx.export(net, [(1, 3, 128, 160)], path, dynamic=[(0,)])
