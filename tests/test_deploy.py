# SPDX-License-Identifier: Apache-2.0
"""examples/detect_onnx.py and detect_mxnet.py with a detector of GluonCV; docs/deploy.md.

tests/demo/test_demo_deploy.py has the demo's detector.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from PIL import Image
from support.deployment import assert_same, detect_mxnet, detect_onnx, rows_of

import gluon_roi

pytest.importorskip("onnx")
gluoncv = pytest.importorskip("gluoncv")
sys.path.insert(0, str(Path(__file__).resolve().parent / "onnx_runtimes"))
import zoo  # noqa: E402  (a script beside MXNet's environment)

THRESH = 0.051
NEAR = 0.01  # pixels: GluonCV normalises numbers from 0 to 1, which rounds differently


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A folder with both exports of a detector and a photo; the rows of GluonCV's own way."""
    folder = tmp_path_factory.mktemp("deploy")
    mx.random.seed(0)
    net = zoo.built(zoo.FAMILIES["SSD"], [mx.nd.zeros((1, 3, 300, 400))])
    pixels = np.random.RandomState(0).randint(0, 256, (9, 12, 3)).astype("uint8")
    photo = folder / "photo.png"
    Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(photo)
    about = gluon_roi.onnx.detector_metadata(net)
    scale = {key: about[key] for key in ("short", "max_size")}
    x, _ = gluoncv.data.transforms.presets.ssd.load_test(str(photo), **scale)
    net.hybridize()
    ids, scores, boxes = (array[0].asnumpy() for array in net(x))
    rows = [
        {
            "class": net.classes[int(n)],
            "score": float(s),
            "box": (box / (x.shape[3] / 500)).tolist(),
        }
        for n, s, box in zip(ids[:, 0], scores[:, 0], boxes)
        if n >= 0 and s >= THRESH
    ]
    net.export(str(folder / "ssd"))
    (folder / "ssd-metadata.json").write_text(json.dumps(about))
    gluon_roi.onnx.export(net, [x.shape], folder / "ssd.onnx", dynamic=[(2, 3)])
    return folder, sorted(rows, key=lambda row: -row["score"])


def test_mxnet_files_give_gluoncvs_boxes(deployed):
    folder, expected = deployed
    detect_mxnet(folder / "ssd", folder / "photo.png", folder / "mxnet.jpg", THRESH)
    assert_same(rows_of(folder / "mxnet.json"), expected, NEAR)
    assert Image.open(folder / "mxnet.jpg").size == (500, 375)


def test_onnx_file_gives_gluoncvs_boxes(deployed, monkeypatch):
    folder, expected = deployed
    detect_onnx(monkeypatch, folder / "ssd.onnx", folder / "photo.png", folder / "o.png", THRESH)
    assert_same(rows_of(folder / "o.json"), expected, NEAR)
