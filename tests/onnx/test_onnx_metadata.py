# SPDX-License-Identifier: Apache-2.0
"""Metadata and names of outputs in ONNX files; test_onnx_zoo.py has GluonCV's detectors."""

from __future__ import annotations

import json

import mxnet as mx
import numpy as np
import pytest
from support.onnx_evaluator import run

import gluon_roi

onnx = pytest.importorskip("onnx")

S = mx.sym


def _two_outputs():
    x = S.var("x")
    return S.Group([S.exp(x, name="ids"), S.abs(x, name="other")])


def test_metadata_is_json_and_outputs_have_names(tmp_path):
    path = tmp_path / "model.onnx"
    about = {
        "classes": ["dog", "Hündin"],
        "short": 600,
        "note": "text",
        "mean": [1.5, 2],
        "n": None,
    }
    gluon_roi.onnx.export(
        _two_outputs(), [(2, 3)], path, metadata=about, output_names=["scores", "ids"]
    )
    model = onnx.load(str(path))
    assert {p.key: json.loads(p.value) for p in model.metadata_props} == about
    assert [output.name for output in model.graph.output] == ["scores", "ids"]
    x = np.array([[1, -2, 3], [0, 4, -5]], "float32")
    found = run(path, x)
    np.testing.assert_allclose(found[0], np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(found[1], np.abs(x))


def test_without_them_outputs_keep_mxnets_names(tmp_path):
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(_two_outputs(), [(2, 3)], path)
    model = onnx.load(str(path))
    assert not model.metadata_props
    assert [output.name for output in model.graph.output] == _two_outputs().list_outputs()


@pytest.mark.parametrize(
    "name, scale",
    [
        ("ssd_300_mobilenet0.25_voc", (300, 1024)),
        ("yolo3_mobilenet0.25_voc", (416, 1024)),
        ("center_net_resnet18_v1b_voc", (512, 1024)),
        ("faster_rcnn_resnet50_v1b_voc", (600, 1000)),
        ("mask_rcnn_fpn_resnet18_v1b_coco", (800, 1333)),
    ],
)
def test_detectors_have_the_scale_of_their_preset(name, scale):
    zoo = pytest.importorskip("gluoncv.model_zoo")
    net = zoo.get_model(name, pretrained=False, pretrained_base=False)
    about = gluon_roi.onnx.detector_metadata(net)
    assert (about["short"], about["max_size"]) == scale
    assert about["classes"] == list(net.classes) and json.loads(json.dumps(about)) == about


def test_a_part_of_a_detector_keeps_its_own_names(tmp_path):
    """The first three outputs of a part are not ids, scores and boxes."""
    zoo = pytest.importorskip("gluoncv.model_zoo")
    net = zoo.get_model("ssd_300_mobilenet0.25_voc", pretrained_base=False)
    net.initialize()
    internals = net(S.var("data"))[0].get_internals().list_outputs()
    names = [name for name in internals if name.endswith("_fwd_output")][:3]
    path = tmp_path / "part.onnx"
    about = {"short": 7}
    gluon_roi.onnx.export(net, [(1, 3, 64, 64)], path, outputs=names, metadata=about)
    model = onnx.load(str(path))
    assert len(names) == len(model.graph.output) == 3
    assert not {"ids", "scores", "boxes"}.intersection(v.name for v in model.graph.output)
    written = {p.key: json.loads(p.value) for p in model.metadata_props}
    assert written == {**gluon_roi.onnx.detector_metadata(net), **about}


def test_other_models_have_no_metadata():
    for model in (mx.gluon.nn.Dense(2), _two_outputs(), "net-symbol.json"):
        with pytest.raises(TypeError, match="^onnx.detector_metadata: expected one of GluonCV's"):
            gluon_roi.onnx.detector_metadata(model)
