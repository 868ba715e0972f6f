# SPDX-License-Identifier: Apache-2.0
"""Parts of models as ONNX, and the programs of docs/onnx_models.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import numpy as np
import onnxruntime
import pytest
from support.onnx_evaluator import run

import gluon_roi

onnx = pytest.importorskip("onnx")

S = mx.sym
PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx_models.md"


@mx.operator.register("onnx_test_proposal")
class Proposal(mx.operator.CustomOpProp):
    def __init__(self, scores="False"):
        super().__init__(need_top_grad=False)
        self.scores = scores == "True"

    def list_arguments(self):
        return ["maps"]

    def list_outputs(self):
        return ["output", "score"] if self.scores else ["output"]

    def infer_shape(self, shapes):
        return shapes, [(6, 5), (6, 1)][: 1 + self.scores], []


def _detector(proposals: Any = None, **attributes: Any) -> Any:
    """Maps, proposals in Python unless others are given, pooling, classes."""
    maps = S.Convolution(S.var("data"), kernel=(3, 3), pad=(1, 1), num_filter=4, name="maps")
    if proposals is None:
        proposals = S.Custom(maps, op_type="onnx_test_proposal", name="rois", **attributes)
    rois = proposals
    pooled = S.ROIPooling(maps, rois[0], (2, 2), 0.5, name="pool")
    classes = S.softmax(S.FullyConnected(pooled, num_hidden=3, name="fc"), name="prob")
    return S.Group([rois, classes])


def _parameters() -> dict:
    random = np.random.RandomState(0)
    shapes = {"maps_weight": (4, 3, 3, 3), "maps_bias": (4,), "fc_weight": (3, 16), "fc_bias": (3,)}
    return {name: mx.nd.array(random.randn(*shape)) for name, shape in shapes.items()}


def _names(path):
    graph = onnx.load(str(path)).graph
    return [v.name for v in graph.input], [v.name for v in graph.output]


def test_a_cut_makes_an_input_of_what_a_node_gives(tmp_path):
    path = tmp_path / "model.onnx"
    data = np.random.RandomState(1).randn(1, 3, 12, 9).astype("float32")
    rois = np.array([[0, 0, 0, 9, 9], [0, 2, 3, 15, 20], [-1, 0, 0, 5, 5]], "float32")
    params = _parameters()
    gluon_roi.onnx.export(
        _detector(), [data.shape], path, params, inputs={"rois": (3, 5)}, dynamic=[(2, 3), (0,)]
    )
    assert _names(path) == (["data", "rois"], ["rois_output", "prob_output"])
    given = {"data": mx.nd.array(data), "cut": mx.nd.array(rois), **params}
    expected = _detector(S.Group([S.var("cut")])).bind(mx.cpu(), given).forward()
    for ours, theirs in zip(run(path, data, rois), expected):
        np.testing.assert_allclose(ours, theirs.asnumpy(), atol=1e-6)
    assert run(path, data, rois[:1])[1].shape == (1, 3)


def test_forms_of_a_cut(tmp_path):
    """Names of nodes and of outputs, with other outputs, of files and of blocks."""
    path, file = tmp_path / "model.onnx", tmp_path / "net-symbol.json"
    params, data = _parameters(), (1, 3, 12, 9)
    with_scores = _detector(scores=True)
    file.write_text(_detector().tojson().replace("onnx_test_proposal", "not_registered"))

    def names(*arguments, **options):
        gluon_roi.onnx.export(*arguments, **options)
        return _names(path)

    both = {"rois_output": (6, 5), "rois_score": (6, 1)}
    block = mx.gluon.SymbolBlock(_detector(), [S.var("data")])
    for name, value in params.items():
        block.params[name]._load_init(value, mx.cpu())
    rois = {"rois": (6, 5)}
    for found, expected in (
        (names(_detector(), [data], path, params, outputs=["maps"]), (["data"], ["maps_output"])),
        (
            names(_detector(), [], path, params, inputs={"maps": (1, 4, 12, 9), **rois}),
            (["maps", "rois"], ["rois_output", "prob_output"]),
        ),
        (
            names(_detector(), [], path, params, inputs={"pool": (6, 4, 2, 2)}, outputs=["prob"]),
            (["pool"], ["prob_output"]),
        ),
        (
            names(_detector(), [], path, params, inputs={**rois, "data": data}, outputs=["pool"]),
            (["rois", "data"], ["pool_output"]),
        ),
        (
            names(with_scores, [data], path, params, inputs=both),
            (["data", *both], ["rois_output", "rois_score_output", "prob_output"]),
        ),
        (
            names(file, [data], path, params, inputs=rois),
            (["data", "rois"], ["rois_output", "prob_output"]),
        ),
        (
            names(block, [data], path, inputs=rois, outputs=["prob"]),
            (["data", "rois"], ["prob_output"]),
        ),
    ):
        assert found == expected


@pytest.mark.parametrize("form", ["symbol", "file", "unknown operator"])
def test_names_with_control_characters(form, tmp_path):
    """MXNet writes them into files as they are."""
    path, file = tmp_path / "model.onnx", tmp_path / "net-symbol.json"
    symbol = S.relu(_detector()[1], name="a\x01\b\f", attr={"__note__": "\x02"})
    model: Any = symbol
    if form != "symbol":
        operator = "onnx_test_proposal" if form == "file" else "not_registered"
        file.write_text(symbol.tojson().replace("onnx_test_proposal", operator))
        model = file
    gluon_roi.onnx.export(model, [(1, 3, 12, 9)], path, _parameters(), inputs={"rois": (6, 5)})
    assert _names(path) == (["data", "rois"], ["a\x01\b\f_output"])


def _refusals() -> dict[str, Any]:
    detector, rois, data = _detector(), {"rois": (6, 5)}, [(1, 3, 12, 9)]
    return {
        "not cut": (detector, data, {}, "node rois (Custom, op_type onnx_test_proposal): Python"),
        "how to cut": (detector, data, {}, "inputs={'rois': shape}"),
        "no node": (detector, data, {"inputs": {"roi": (6, 5)}}, "no node 'roi'; it has rois"),
        "no output": (detector, data, {"outputs": ["probe"]}, "outputs: the model has no node"),
        "no list": (detector, data, {"outputs": "prob"}, "expected a list of names, got 'prob'"),
        "nothing": (detector, data, {"outputs": []}, "expected a list of names, got []"),
        "no shape": (detector, data, {"inputs": {"rois": 6}}, "inputs: rois: expected a shape of"),
        "bad shape": (detector, data, {"inputs": {"rois": (6, 4)}}, "pool: ROIPool: rois has"),
        "unused": (
            detector, data, {"inputs": rois, "outputs": ["maps"]}, "do not depend on 'rois'",
        ),
        "several": (
            _detector(scores=True), data, {"inputs": rois},
            "'rois' has several outputs that are used; name each: rois_output, rois_score",
        ),
        "too many": (detector, data * 2, {"inputs": rois}, "the model has 1 inputs without a"),
        "dynamic": (detector, data, {"inputs": rois, "dynamic": [()]}, "one for each of the 2 in"),
    }  # fmt: skip


@pytest.mark.parametrize("name", _refusals())
def test_cuts_that_are_refused(name, tmp_path):
    symbol, shapes, options, message = _refusals()[name]
    path = tmp_path / "model.onnx"
    with pytest.raises((ValueError, NotImplementedError)) as raised:
        gluon_roi.onnx.export(symbol, shapes, path, _parameters(), **options)
    assert message in str(raised.value) and "\n" not in str(raised.value)
    assert str(raised.value).startswith("onnx.export: ") and not path.exists()


# ---- The programs of docs/onnx_models.md ---------------------------------------------------------


def _program(introduced: str) -> str:
    """The block of code of docs/onnx_models.md that follows a text."""
    return re.split("^```.*\n", PAGE.read_text().split(introduced)[1], flags=re.M)[1]


def _rfcn() -> Any:
    """The outputs and names of an R-FCN of Deformable-ConvNets with 21 classes, in small."""
    data, info = S.var("data"), S.var("im_info")
    maps = S.Convolution(data, kernel=(16, 16), stride=(16, 16), num_filter=8, name="conv1")
    maps = S.Activation(maps, act_type="relu")
    scores = S.Convolution(maps, kernel=(1, 1), num_filter=6, name="rpn_cls_score")
    scores = S.Reshape(scores, shape=(0, 2, -1, 0))
    scores = S.Reshape(S.SoftmaxActivation(scores, mode="channel"), shape=(0, 6, -1, 0))
    boxes = S.Convolution(maps, kernel=(1, 1), num_filter=12, name="rpn_bbox_pred")
    rois = S.contrib.Proposal(
        scores, boxes, info, name="rois", scales=(8,), rpn_post_nms_top_n=12, rpn_min_size=0
    )

    def voted(name: str, outputs: int) -> Any:
        maps_of = S.Convolution(maps, kernel=(1, 1), num_filter=9 * outputs, name=name)
        pooled = S.contrib.PSROIPooling(
            maps_of, rois, group_size=3, pooled_size=3, output_dim=outputs, spatial_scale=1 / 16
        )
        mean = S.Pooling(pooled, global_pool=True, pool_type="avg", kernel=(3, 3))
        return S.Reshape(mean, shape=(-1, outputs))

    classes = S.Reshape(S.SoftmaxActivation(voted("rfcn_cls", 21)), shape=(1, -1, 21))
    return S.Group([rois, classes, S.Reshape(voted("rfcn_bbox", 8), shape=(1, -1, 8))])


def test_from_a_checkpoint_to_detections(tmp_path, monkeypatch, capsys):
    """export.py and detect.py, which MXNet agrees with."""
    symbol = _rfcn()
    symbol.save(str(tmp_path / "rfcn-symbol.json"))
    random = np.random.RandomState(2)
    shapes, _, _ = symbol.infer_shape(data=(1, 3, 64, 64))
    weights = {
        name: mx.nd.array(random.randn(*shape) * (0.002 if name.startswith("conv1") else 0.3))
        for name, shape in zip(symbol.list_arguments(), shapes)
        if name not in ("data", "im_info")
    }
    weights["rfcn_cls_weight"] = weights["rfcn_cls_weight"] * 20
    weights["rfcn_bbox_weight"] = weights["rfcn_bbox_weight"] * 0.05
    saved = {f"arg:{name}": value for name, value in weights.items()}
    saved["arg:rfcn_bbox_weight_test"] = saved["arg:rfcn_bbox_weight"]
    saved["arg:rfcn_bbox_weight"] = saved["arg:rfcn_bbox_weight"] * 10
    mx.nd.save(str(tmp_path / "rfcn-0008.params"), saved)
    pixels = np.random.RandomState(0).randint(0, 256, (60, 90, 3)).astype("uint8")
    image = pytest.importorskip("PIL.Image")
    image.fromarray(pixels).save(tmp_path / "image.png")

    class Session:
        """MXNet in place of onnxruntime."""

        def __init__(self, path: str) -> None:
            pass

        def run(self, names: None, inputs: dict) -> list:
            arrays = {name: mx.nd.array(value) for name, value in inputs.items()}
            found = program["found"].bind(mx.cpu(), {**arrays, **weights}).forward()
            return [found[0].asnumpy()]

    monkeypatch.chdir(tmp_path)
    program: dict = {}
    exec(compile(_program("model returns detections:"), "export.py", "exec"), program)
    detect = compile(_program("It needs NumPy, Pillow and onnxruntime:"), "detect.py", "exec")
    printed = []
    for runtime in (onnxruntime, SimpleNamespace(InferenceSession=Session)):
        monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
        monkeypatch.setattr(sys, "argv", ["detect.py", "rfcn.onnx", "image.png", "drawn.png"])
        capsys.readouterr()
        exec(detect, {})
        lines = capsys.readouterr().out.splitlines()
        printed.append(np.array([line.split() for line in lines], float))
    assert len(printed[0]) > 2 and printed[0].shape == printed[1].shape
    np.testing.assert_allclose(printed[0], printed[1], atol=0.11)
    assert (np.array(image.open("drawn.png")) == [255, 0, 0]).all(axis=2).any()
