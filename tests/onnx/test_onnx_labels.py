# SPDX-License-Identifier: Apache-2.0
"""Symbols that training saved: labels, and whatever only labels need, are no part of the export.

The networks are those of mxnet-ssd, SageMaker's object detection and insightface's RetinaFace, in
small.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from support.onnx_evaluator import run
from support.pages import blocks_of

import gluon_roi

onnx = pytest.importorskip("onnx")

S = mx.sym
CLASSES, SIDE = 3, 64


# ---- SSD -----------------------------------------------------------------------------------------


def _ssd() -> Any:
    """get_symbol_train of mxnet-ssd's symbol_builder: VGG's normalised maps and a smaller one."""
    data, label = S.var("data"), S.var("label")
    maps = [data]
    for number in range(2):
        body = S.Convolution(maps[-1], kernel=(3, 3), pad=(1, 1), num_filter=8, name=f"c{number}")
        body = S.Activation(body, act_type="relu")
        maps.append(
            S.Pooling(body, kernel=(2, 2), stride=(8, 8), pooling_convention="full",
                      pool_type="max")
        )  # fmt: skip
    scale = S.var("scale", shape=(1, 8, 1, 1))
    maps[1] = S.broadcast_mul(lhs=scale, rhs=S.L2Normalization(maps[1], mode="channel"))
    locations: list = []
    scores: list = []
    anchors: list = []
    for number, body in enumerate(maps[1:]):
        for name, outputs, found in (("loc", 4, locations), ("cls", CLASSES + 1, scores)):
            layer = S.Convolution(
                body, kernel=(3, 3), pad=(1, 1), num_filter=3 * outputs, name=f"{name}{number}"
            )
            found.append(S.Flatten(S.transpose(layer, axes=(0, 2, 3, 1))))
        anchors.append(
            S.Flatten(S.contrib.MultiBoxPrior(body, sizes=(0.3, 0.5), ratios=(1, 2), clip=False))
        )
    loc_preds = S.Concat(*locations, dim=1, name="multibox_loc_pred")
    cls_preds = S.Reshape(S.Concat(*scores, dim=1), shape=(0, -1, CLASSES + 1))
    cls_preds = S.transpose(cls_preds, axes=(0, 2, 1), name="multibox_cls_pred")
    anchor_boxes = S.Reshape(S.Concat(*anchors, dim=1), shape=(0, -1, 4), name="multibox_anchors")
    loc_target, loc_mask, cls_target = S.contrib.MultiBoxTarget(
        anchor_boxes, label, cls_preds, overlap_threshold=0.5, ignore_label=-1,
        negative_mining_ratio=3, negative_mining_thresh=0.5, name="multibox_target",
    )  # fmt: skip
    cls_prob = S.SoftmaxOutput(
        data=cls_preds, label=cls_target, ignore_label=-1, use_ignore=True, multi_output=True,
        normalization="valid", name="cls_prob",
    )  # fmt: skip
    loc_loss = S.smooth_l1(loc_mask * (loc_preds - loc_target), scalar=1.0)
    loc_loss = S.MakeLoss(loc_loss, normalization="valid", name="loc_loss")
    cls_label = S.MakeLoss(cls_target, grad_scale=0, name="cls_label")
    det = S.contrib.MultiBoxDetection(
        cls_prob, loc_preds, anchor_boxes, name="detection", nms_threshold=0.45, nms_topk=400
    )
    return S.Group([cls_prob, loc_loss, cls_label, S.MakeLoss(det, grad_scale=0, name="det_out")])


def _parameters(symbol: Any, *inputs: str, **shapes: tuple) -> dict[str, np.ndarray]:
    random = np.random.RandomState(3)
    arguments, _, _ = symbol.infer_shape_partial(**shapes)
    return {
        name: (random.randn(*shape) * 0.3).astype("float32")
        for name, shape in zip(symbol.list_arguments(), arguments)
        if name not in inputs
    }


def _ssd_parameters(symbol: Any) -> dict[str, np.ndarray]:
    parameters = _parameters(
        symbol, "data", "label", data=(1, 3, SIDE, SIDE), label=(1, 4, 5), scale=(1, 8, 1, 1)
    )
    factors = {"c0_weight": 0.1, "cls0_weight": 10, "cls1_weight": 3}  # for scores near 0 and 1
    return {name: value * np.float32(factors.get(name, 1)) for name, value in parameters.items()}


def _detections(symbol: Any, parameters: dict, data: np.ndarray) -> np.ndarray:
    """MXNet's, with a label that says that there is nothing."""
    given = {**parameters, "data": data, "label": np.full((len(data), 4, 5), -1, "float32")}
    arrays = {name: mx.nd.array(value) for name, value in given.items()}
    return symbol.bind(mx.cpu(), arrays).forward(is_train=False)[3].asnumpy()


def _names(path: Path) -> list[str]:
    return [one.name for one in onnx.load(str(path)).graph.input]


@pytest.mark.parametrize("form", ["symbol", "file"])
def test_detections_of_an_ssd_as_training_saves_it(form, tmp_path):
    symbol = _ssd()
    parameters = _ssd_parameters(symbol)
    path, model = tmp_path / "ssd.onnx", symbol
    if form == "file":
        model = tmp_path / "ssd-symbol.json"
        symbol.save(str(model))
    shape = (1, 3, SIDE, SIDE)
    gluon_roi.onnx.export(
        model, [shape], path, parameters, outputs=["det_out"], dynamic=[(0, 2, 3)]
    )
    assert _names(path) == ["data"]
    random = np.random.RandomState(0)
    for shape in ((1, 3, SIDE, SIDE), (2, 3, 48, 80)):
        data = random.uniform(0, 255, shape).astype("float32")
        (found,), expected = run(path, data), _detections(symbol, parameters, data)
        assert (expected[..., 0] >= 0).sum() > 5
        np.testing.assert_allclose(found, expected, atol=2e-5)


def test_targets_are_not_needed_and_so_no_input(tmp_path):
    symbol, path = _ssd(), tmp_path / "ssd.onnx"
    parameters = _ssd_parameters(symbol)
    with pytest.raises(ValueError, match="outputs of the model do not depend on 'multibox_target"):
        gluon_roi.onnx.export(
            symbol, [(1, 3, SIDE, SIDE)], path, parameters, outputs=["det_out"],
            inputs={"multibox_target": (1, 320)},
        )  # fmt: skip
    assert not path.exists()


# ---- Other labels --------------------------------------------------------------------------------

X, LABEL = S.var("x"), S.var("label")


LOGITS = S.FullyConnected(X, num_hidden=3, name="fc")

#: Each: a symbol of x (4, 5), whose second input is a label of 4 numbers if it has one.
LABELLED: dict[str, Any] = {
    "reshaped": S.SoftmaxOutput(LOGITS, S.Reshape(LABEL, shape=(-1,)), name="prob"),
    "the data": S.LinearRegressionOutput(S.tanh(X), X, name="loss"),
    "computed from the data": S.LogisticRegressionOutput(S.tanh(X), S.exp(X), name="loss"),
    "of two losses": S.Group([S.SoftmaxOutput(LOGITS, LABEL, name="prob"),
                              S.SVMOutput(S.tanh(LOGITS), LABEL, name="margin")]),
    "plain and reshaped": S.Group([S.SoftmaxOutput(LOGITS, LABEL, name="prob"),
                                   S.SVMOutput(LOGITS, S.Reshape(LABEL, shape=(-1,)),
                                               name="margin")]),
    "a name that is taken": S.SoftmaxOutput(S.broadcast_add(LOGITS, S.var("prob_label")),
                                            S.Reshape(LABEL, shape=(-1,)), name="prob"),
}  # fmt: skip


@pytest.mark.parametrize("name", LABELLED)
def test_labels_that_a_graph_computes(name, tmp_path):
    symbol, path = LABELLED[name], tmp_path / "model.onnx"
    shapes = {"x": (4, 5), "label": (4,), "prob_label": (1,)}
    shapes = {one: shape for one, shape in shapes.items() if one in symbol.list_arguments()}
    parameters = _parameters(symbol, "x", "label", **shapes)
    x = np.random.RandomState(0).randn(4, 5).astype("float32")
    given = {**parameters, "x": x, "label": np.zeros(4, "float32")}
    arrays = {one: mx.nd.array(given[one]) for one in symbol.list_arguments()}
    expected = [out.asnumpy() for out in symbol.bind(mx.cpu(), arrays).forward(is_train=False)]
    gluon_roi.onnx.export(symbol, [x.shape], path, parameters)
    assert _names(path) == ["x"]
    found = run(path, x)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_label_that_is_an_output_is_an_input(tmp_path):
    symbol = S.Group([S.SoftmaxOutput(X, LABEL, name="prob"), S.identity(LABEL), LABEL])
    path, x = tmp_path / "model.onnx", np.eye(4, 5, dtype="float32")
    label = np.arange(4, dtype="float32")
    gluon_roi.onnx.export(symbol, [x.shape, label.shape], path)
    assert _names(path) == ["x", "label"]
    found = run(path, x, label)
    np.testing.assert_allclose(found[0], mx.nd.softmax(mx.nd.array(x)).asnumpy(), rtol=1e-6)
    assert (found[1] == label).all() and (found[2] == label).all()


def test_a_block_with_a_loss_has_no_label(tmp_path):
    class Net(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, data: Any, label: Any, scale: Any) -> Any:
            return F.SoftmaxOutput(F.broadcast_mul(data, scale), label)

    path = tmp_path / "model.onnx"
    x, label, scale = np.eye(4, 5), np.zeros(4), np.full((1, 1), 3.0)
    inputs = [value.astype("float32") for value in (x, label, scale)]
    gluon_roi.onnx.export(Net(), [value.shape for value in inputs], path, dynamic=[(0,), (0,), ()])
    assert _names(path) == ["data0", "data2"]
    expected = Net()(*map(mx.nd.array, inputs)).asnumpy()
    np.testing.assert_allclose(run(path, inputs[0], inputs[2])[0], expected, rtol=1e-6)


# ---- RetinaFace ----------------------------------------------------------------------------------


class _Mining(mx.operator.CustomOpProp):
    """Labels and weights of hard examples, from the scores; never called in inference."""

    def __init__(self, network: str = "") -> None:
        super().__init__(need_top_grad=False)

    def list_arguments(self) -> list[str]:
        return ["cls_score", "labels"]

    def list_outputs(self) -> list[str]:
        return ["labels_ohem", "anchor_weight"]

    def infer_shape(self, shapes: list) -> tuple:
        return shapes, [shapes[1], shapes[1]], []


def _retina_face() -> Any:
    """One stride of get_out of RetinaFace's symbols, with rpn_enable_ohem."""
    maps = S.Convolution(S.var("data"), kernel=(3, 3), stride=(4, 4), num_filter=4, name="maps")
    score = S.Convolution(maps, kernel=(1, 1), num_filter=4, name="face_rpn_cls_score")
    score = S.Reshape(score, shape=(0, 2, -1), name="face_rpn_cls_score_reshape")
    label, weight = S.Custom(
        op_type="onnx_test_ohem", network="ssh", name="ohem", cls_score=score,
        labels=S.var("face_label"),
    )  # fmt: skip
    prob = S.SoftmaxOutput(
        score, label, multi_output=True, normalization="valid", use_ignore=True, ignore_label=-1,
        name="face_rpn_cls_prob",
    )  # fmt: skip
    boxes = S.Convolution(maps, kernel=(1, 1), num_filter=8, name="face_rpn_bbox_pred")
    boxes = S.Reshape(boxes, shape=(0, 4, -1))
    loss = S.broadcast_mul(boxes - S.var("bbox_target"), S.expand_dims(weight, axis=1))
    loss = S.MakeLoss(S.smooth_l1(loss, scalar=3.0), name="face_rpn_bbox_loss")
    return S.Group([prob, S.BlockGrad(label), loss])


@pytest.mark.parametrize("registered", [True, False])
def test_hard_examples_in_python(registered, tmp_path):
    """A registered operator, and the file of a symbol whose operator nothing has registered."""
    mx.operator.register("onnx_test_ohem")(_Mining)
    symbol, path = _retina_face(), tmp_path / "face.onnx"
    shapes = {"data": (1, 3, 19, 23), "face_label": (1, 60), "bbox_target": (1, 4, 60)}
    parameters = _parameters(symbol, *shapes, **shapes)
    outputs = ["face_rpn_cls_prob", "face_rpn_bbox_pred"]
    model = symbol
    if not registered:
        model = tmp_path / "face-symbol.json"
        symbol.save(str(model))
        model.write_text(model.read_text().replace("onnx_test_ohem", "rpn_fpn_ohem3"))
    gluon_roi.onnx.export(model, [shapes["data"]], path, parameters, outputs=outputs)
    assert _names(path) == ["data"]
    x = np.random.RandomState(0).randn(*shapes["data"]).astype("float32")
    internals = symbol.get_internals()
    scores = S.softmax(internals["face_rpn_cls_score_reshape_output"], axis=1)
    part = S.Group([scores, internals["face_rpn_bbox_pred_output"]])
    given = {**parameters, "data": x}
    arrays = {name: mx.nd.array(given[name]) for name in part.list_arguments()}
    for ours, theirs in zip(run(path, x), part.bind(mx.cpu(), arrays).forward()):
        np.testing.assert_allclose(ours, theirs.asnumpy(), rtol=1e-5, atol=1e-5)


# ---- The walk of docs/onnx_models.md -------------------------------------------------------------


def test_from_a_model_of_sagemaker_to_detections(tmp_path, monkeypatch):
    """The commands of the page, in a folder with model.tar.gz and an image."""
    pillow = pytest.importorskip("PIL.Image")
    symbol = _ssd()
    parameters = _ssd_parameters(symbol)
    artefacts = tmp_path / "artefacts"
    artefacts.mkdir()
    symbol.save(str(artefacts / "model_algo_1-symbol.json"))
    saved = {f"arg:{name}": mx.nd.array(value) for name, value in parameters.items()}
    mx.nd.save(str(artefacts / "model_algo_1-0000.params"), saved)
    hyperparameters = {"image_shape": str(SIDE), "num_classes": str(CLASSES), "epochs": "30"}
    (artefacts / "hyperparams.json").write_text(json.dumps(hyperparameters))
    with tarfile.open(tmp_path / "model.tar.gz", "w:gz") as archive:
        for file in artefacts.iterdir():
            archive.add(file, file.name)
    pixels = np.random.RandomState(0).randint(0, 256, (60, 90, 3)).astype("uint8")
    pillow.fromarray(pixels).save(tmp_path / "image.png")

    comparison, program = blocks_of("docs/onnx_models.md", "test_onnx_labels.py")
    (tmp_path / "detect_ssd.py").write_text(program.code)
    (commands,) = (
        block.code for block in blocks_of("docs/onnx_models.md") if "model.tar.gz" in block.code
    )
    commands = commands.replace("1,3,512,512", f"1,3,{SIDE},{SIDE}").replace("\\\n", " ")
    assert "photo.jpg" in commands
    printed = ""
    for line in commands.replace("photo.jpg", "image.png").splitlines():
        words = [sys.executable if word == "python" else word for word in line.split()]
        printed += subprocess.run(
            words, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
    metadata = onnx.load(str(tmp_path / "ssd.onnx")).metadata_props
    assert {one.key: json.loads(one.value) for one in metadata} == hyperparameters
    data = np.array(pillow.fromarray(pixels).resize((SIDE, SIDE)), "float32")
    data = data.transpose(2, 0, 1)[None]
    (expected,) = _detections(symbol, parameters, data)
    monkeypatch.chdir(tmp_path)
    compared: dict[str, Any] = {"mx": mx, "data": mx.nd.array(data)}
    exec(comparison.code, compared)
    np.testing.assert_array_equal(compared["rows"][0].asnumpy(), expected)
    expected = expected[(expected[:, 0] >= 0) & (expected[:, 1] >= 0.5)]
    expected[:, 2:] *= [90, 60, 90, 60]
    lines = [line.split() for line in printed.splitlines() if re.match(r"\d+ 0\.\d+ ", line)]
    assert len(lines) == len(expected) > 0
    np.testing.assert_allclose(np.array(lines, float), expected, atol=0.06)
    drawn = np.array(pillow.open(tmp_path / "drawn.png"))
    assert (drawn == [255, 0, 0]).all(axis=2).any()
