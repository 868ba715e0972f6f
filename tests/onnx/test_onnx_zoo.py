# SPDX-License-Identifier: Apache-2.0
"""The smallest model of every family of GluonCV gives the same outputs in ONNX."""

from __future__ import annotations

import json

import pytest
from support.onnx_evaluator import RUNS

import gluon_roi

onnx = pytest.importorskip("onnx")
pytest.importorskip("gluoncv")
from testing.onnx_runtimes import zoo  # noqa: E402

pytestmark = pytest.mark.night


@pytest.mark.parametrize("runtime", RUNS)
@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_family(family, runtime, tmp_path):
    pytest.importorskip(runtime)
    model = zoo.FAMILIES[family]
    made = zoo.case(model, proposals=100)
    path = tmp_path / "model.onnx"
    zoo.export(made, model, path)
    written = onnx.load(str(path), load_external_data=False)
    names, keys = ([each.name for each in written.graph.output], written.metadata_props)
    if model.detects:
        assert names == ["ids", "scores", "boxes", *(["masks"] if "mask" in model.name else [])]
        about = {each.key: json.loads(each.value) for each in keys}
        assert all("anchor" in name for name in about.pop("gluon_roi.constants", ()))
        assert about == gluon_roi.onnx.detector_metadata(made.net)
        assert 300 <= about["short"] < about["max_size"] and set(about["classes"]) >= {"person"}
    else:
        assert not {each.key for each in keys} - {"gluon_roi.constants"} and "scores" not in names
    found = RUNS[runtime](path, *made.inputs)
    if not model.detects:
        assert zoo.differences(found, made.outputs) < 2e-5
        return
    expected = zoo.detections(made.outputs)
    assert len(expected) >= 40
    assert zoo.compare(zoo.detections(found), expected)[0] == len(expected)


def test_a_detector_with_masks_is_verified(tmp_path):
    """Detections and masks at two sizes of the image, by export itself."""
    pytest.importorskip("onnxruntime", minversion="1.20")
    model = zoo.FAMILIES["Mask R-CNN FPN"]
    made = zoo.case(model, proposals=100)
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(made.net, model.shapes, path, dynamic=[(2, 3)], verify=True)
    assert path.is_file()
