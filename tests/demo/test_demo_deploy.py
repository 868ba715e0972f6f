# SPDX-License-Identifier: Apache-2.0
"""An exported detector with examples/detect_onnx.py and detect_mxnet.py: as `detect`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from support.deployment import Session, assert_same, detect_mxnet, detect_onnx, rows_of

import gluon_roi
from demo_rfcn import cli
from demo_rfcn.data import signals
from demo_rfcn.run import checkpoint

pytestmark = pytest.mark.slow


def write_photo(path):
    """A JPEG on its side, larger than the detector's scale."""
    image = Image.fromarray(signals.paint(np.random.default_rng([9, 0]))[0])
    exif = Image.Exif()
    exif[0x112] = 6
    image.resize((410, 300)).save(path, quality=95, exif=exif)


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


def test_onnx_file_gives_the_boxes_of_detect(deployed, monkeypatch):
    result = deployed / "drawn.png"
    detect_onnx(monkeypatch, deployed / "rfcn.onnx", deployed / "photo.jpg", result, 0.05)
    assert_same(rows_of(deployed / "drawn.json"), rows_of(deployed / "demo" / "photo.json"))
    assert_drawn(result, deployed / "photo.jpg")


def test_mxnet_files_give_the_boxes_of_detect(deployed):
    detect_mxnet(deployed / "rfcn", deployed / "photo.jpg", deployed / "drawn", 0.05)
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
