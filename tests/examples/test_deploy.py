# SPDX-License-Identifier: Apache-2.0
"""examples/detect.py with a detector of GluonCV; docs/deploy.md.

tests/demo/test_demo_use.py has the demo's detector.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from PIL import Image
from support.deployment import EXAMPLES, assert_same, detect, rows_of

pytest.importorskip("onnx")
gluoncv = pytest.importorskip("gluoncv")
ROOT = Path(__file__).resolve().parents[2]
from testing.onnx_runtimes import zoo  # noqa: E402

THRESH = 0.051
NEAR = 0.01  # pixels: GluonCV normalises numbers from 0 to 1, which rounds differently


def _export(net, folder):
    """Run the page's code for GluonCV's detectors, with a network that has no RoI operators."""
    page = (ROOT / "docs/deploy.md").read_text()
    code = re.search(r"^import json\n(.*\n)+?(?=```)", page, re.M)
    assert code is not None
    text = re.sub(r"model_zoo.get_model\(.*\)", "network", code[0])
    text = re.sub(r"net = gluon_roi.*without RoI operators: ", "", text)
    names = {"network": net}
    exec(text.replace('"detector', f'"{folder}/detector'), names)
    return names["about"]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """A folder with both exports of a detector and a photo; the rows of GluonCV's own way."""
    folder = tmp_path_factory.mktemp("deploy")
    mx.random.seed(0)
    net = zoo.built(zoo.FAMILIES["SSD"], [mx.nd.zeros((1, 3, 300, 400))])
    pixels = np.random.RandomState(0).randint(0, 256, (9, 12, 3)).astype("uint8")
    photo = folder / "photo.png"
    Image.fromarray(pixels).resize((500, 375), Image.Resampling.BICUBIC).save(photo)
    about = _export(net, folder)
    scale = {key: about[key] for key in ("short", "max_size")}
    x, _ = gluoncv.data.transforms.presets.ssd.load_test(str(photo), **scale)
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
    return folder, sorted(rows, key=lambda row: -row["score"])


def test_mxnet_files_give_gluoncvs_boxes(deployed):
    folder, expected = deployed
    detect(folder / "detector", folder / "photo.png", folder / "mxnet.jpg", THRESH)
    assert_same(rows_of(folder / "mxnet.json"), expected, NEAR)
    assert Image.open(folder / "mxnet.jpg").size == (500, 375)


def test_onnx_file_gives_gluoncvs_boxes(deployed):
    folder, expected = deployed
    detect(folder / "detector.onnx", folder / "photo.png", folder / "o.png", THRESH)
    assert_same(rows_of(folder / "o.json"), expected, NEAR)


@pytest.mark.parametrize("name", ["Gef\u00e4\u00df", "\u7ea2\u706f"])
def test_names_that_the_font_lacks(name, deployed, tmp_path):
    """Pillow's own font has no Chinese characters, but would draw boxes for them."""
    folder, _ = deployed
    for path in folder.glob("detector*"):
        shutil.copy(path, tmp_path)
    metadata = tmp_path / "detector-metadata.json"
    about = json.loads(metadata.read_text())
    metadata.write_text(json.dumps({**about, "classes": [name] * len(about["classes"])}))
    detect(tmp_path / "detector", folder / "photo.png", tmp_path / "drawn.png", THRESH)
    assert {row["class"] for row in rows_of(tmp_path / "drawn.json")} == {name}
    spec = importlib.util.spec_from_file_location("detect", EXAMPLES / "detect.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.label(name, 3, None) == ("class 3" if name > "\u1000" else name)
    assert module.label(name, 3, "a font") == name
