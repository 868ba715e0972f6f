# SPDX-License-Identifier: Apache-2.0
"""An exported detector with examples/detect_onnx.py and detect_mxnet.py: as `detect`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from demo_runs import run
from gluoncv import model_zoo
from PIL import Image
from support.deployment import Session, assert_same, detect_mxnet, detect_onnx, rows_of

import gluon_roi
from demo_rfcn.data import signals
from demo_rfcn.run import checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    """A JPEG on its side, larger than the detector's scale."""
    path = tmp_path_factory.mktemp("photo") / "photo.jpg"
    image = Image.fromarray(signals.paint(np.random.default_rng([9, 0]))[0])
    exif = Image.Exif()
    exif[0x112] = 6
    image.resize((410, 300)).save(path, quality=95, exif=exif)
    return path


def deploy(trained, photo, folder, *formats):
    """Export a run in some formats; return the rows of `detect`."""
    saved = ["--pretrained", trained / "best.ckpt", "--save-prefix"]
    for each in formats:
        run("export", "--format", each, *saved, folder)
    run("detect", photo, "--thresh", "0.05", *saved, folder / "demo")
    return rows_of(folder / "demo" / "photo.json")


def assert_drawn(path, photo):
    """The picture has the photo's upright size, and differs from it."""
    assert Image.open(path).size == Image.open(photo).size[::-1]
    assert np.asarray(Image.open(path)).std() > 10


def test_onnx_file_gives_the_boxes_of_detect(short_run, photo, tmp_path, monkeypatch):
    """The metadata are complete in both formats; the keys are those of GluonCV's detectors."""
    expected = deploy(short_run, photo, tmp_path, "mxnet", "onnx")
    detect_onnx(monkeypatch, tmp_path / "rfcn.onnx", photo, tmp_path / "drawn.png", 0.05)
    assert_same(rows_of(tmp_path / "drawn.json"), expected)
    assert_drawn(tmp_path / "drawn.png", photo)

    stored = checkpoint.read(short_run / "best.ckpt")
    about = json.loads((tmp_path / "rfcn-metadata.json").read_text())
    model = Session(str(tmp_path / "rfcn.onnx"), [])
    texts = model.get_modelmeta().custom_metadata_map
    assert {key: json.loads(text) for key, text in texts.items()} == about
    assert [output.name for output in model.model.graph.output] == ["ids", "scores", "boxes"]
    net = model_zoo.get_model("ssd_300_mobilenet0.25_voc", pretrained_base=False)
    assert list(about) == list(gluon_roi.onnx.detector_metadata(net))
    assert about["classes"] == list(stored.config.classes)
    assert (about["short"], about["max_size"]) == (stored.notes["short"], stored.notes["max_size"])


def test_mxnet_files_give_the_boxes_of_detect_without_the_demo(deformable_run, photo, tmp_path):
    expected = deploy(deformable_run, photo, tmp_path, "mxnet")
    detect_mxnet(tmp_path / "rfcn", photo, tmp_path / "drawn", 0.05)
    assert_same(rows_of(tmp_path / "drawn.json"), expected)
    assert_drawn(tmp_path / "drawn.png", photo)
