# SPDX-License-Identifier: Apache-2.0
"""An exported detector with examples/detect_onnx.py and detect_mxnet.py: as `detect`."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from demo_runs import REPOSITORY
from PIL import Image
from support.onnx_evaluator import HAS_RUNTIME, run

import gluon_roi
from demo_rfcn import cli
from demo_rfcn.data import signals
from demo_rfcn.run import checkpoint

pytestmark = pytest.mark.slow
EXAMPLES = REPOSITORY / "examples"


def write_photo(path):
    """A JPEG on its side, larger than the detector's scale."""
    image = Image.fromarray(signals.paint(np.random.default_rng([9, 0]))[0])
    exif = Image.Exif()
    exif[0x112] = 6
    image.resize((410, 300)).save(path, quality=95, exif=exif)


def rows_of(path):
    rows = json.loads(path.read_text())
    return sorted(rows, key=lambda row: -row["score"])


def assert_same(found, expected):
    assert len(found) == len(expected) > 3
    assert [row["class"] for row in found] == [row["class"] for row in expected]
    for key in ("score", "box"):
        ours, theirs = (np.array([row[key] for row in rows]) for rows in (found, expected))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)


def assert_drawn(path, photo):
    """The picture has the photo's upright size, and differs from it."""
    assert Image.open(path).size == Image.open(photo).size[::-1]
    assert np.asarray(Image.open(path)).std() > 10


@pytest.fixture
def deployed(short_run, tmp_path):
    """A folder with a photo, both exports, and the rows of `detect`."""
    photo = tmp_path / "photo.jpg"
    write_photo(photo)
    saved = ["--pretrained", str(short_run / "best.ckpt"), "--save-prefix"]
    for kind in ("mxnet", "onnx"):
        assert cli.main(["export", "--format", kind, *saved, str(tmp_path)]) == 0
    assert cli.main(["detect", str(photo), "--thresh", "0.05", *saved, str(tmp_path / "demo")]) == 0
    return tmp_path


class Session:
    """Of onnxruntime, in onnx's reference."""

    def __init__(self, path, providers):
        self.path, self.model = path, pytest.importorskip("onnx").load(path)

    def get_modelmeta(self):
        texts = {each.key: each.value for each in self.model.metadata_props}
        return SimpleNamespace(custom_metadata_map=texts)

    def get_inputs(self):
        return self.model.graph.input

    def run(self, names, inputs):
        return run(self.path, *inputs.values())


def load_example(name) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_onnx_file_gives_the_boxes_of_detect(deployed, monkeypatch):
    if not HAS_RUNTIME:
        monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(InferenceSession=Session))
    result = deployed / "drawn.png"
    example = load_example("detect_onnx")
    example.main(str(deployed / "rfcn.onnx"), deployed / "photo.jpg", result, 0.05)
    assert_same(rows_of(deployed / "drawn.json"), rows_of(deployed / "demo" / "photo.json"))
    assert_drawn(result, deployed / "photo.jpg")


def test_mxnet_files_give_the_boxes_of_detect(deployed):
    line = [EXAMPLES / "detect_mxnet.py", deployed / "rfcn", deployed / "photo.jpg"]
    subprocess.run([sys.executable, *line, deployed / "drawn", "--thresh", "0.05"], check=True)
    assert_same(rows_of(deployed / "drawn.json"), rows_of(deployed / "demo" / "photo.json"))
    assert_drawn(deployed / "drawn.png", deployed / "photo.jpg")


def test_metadata_is_complete_in_both_formats(deployed, short_run):
    """The keys are those of GluonCV's detectors."""
    from gluoncv.model_zoo import get_model

    stored = checkpoint.read(short_run / "best.ckpt")
    about = json.loads((deployed / "rfcn-metadata.json").read_text())
    model = Session(str(deployed / "rfcn.onnx"), [])
    texts = model.get_modelmeta().custom_metadata_map
    assert {key: json.loads(text) for key, text in texts.items()} == about
    assert [output.name for output in model.model.graph.output] == ["ids", "scores", "boxes"]
    net = get_model("ssd_300_mobilenet0.25_voc", pretrained_base=False)
    assert list(about) == list(gluon_roi.onnx.detector_metadata(net))
    assert about["classes"] == list(stored.config.classes)
    assert (about["short"], about["max_size"]) == (stored.notes["short"], stored.notes["max_size"])
