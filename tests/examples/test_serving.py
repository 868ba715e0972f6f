# SPDX-License-Identifier: Apache-2.0
"""examples/serve.py behind gunicorn, with four workers, and the lines of docs/production.md."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from PIL import Image
from support.deployment import EXAMPLES
from support.pages import blocks_of

pytest.importorskip("flask", reason="the extra test has flask and gunicorn")
pytest.importorskip("gunicorn")
pytest.importorskip("cv2")


class Detector(gluon.HybridBlock):
    """Ten boxes, scored by what ROIAlign finds in them: ids, scores, boxes, as GluonCV's have."""

    def __init__(self):
        super().__init__()
        random = np.random.RandomState(0)
        corners = random.uniform(0, 30, (10, 2))
        boxes = np.hstack([corners, corners + random.uniform(8, 30, (10, 2))])
        with self.name_scope():
            self.conv = gluon.nn.Conv2D(8, 3, strides=2, padding=1, in_channels=3)
            self.dense = gluon.nn.Dense(2, in_units=8 * 9)
            self.boxes = self.params.get_constant("boxes", mx.nd.array(boxes))

    def hybrid_forward(self, F, x, boxes):
        rois = F.concat(F.zeros_like(boxes.slice_axis(1, 0, 1)), boxes, dim=1)
        pooled = F.contrib.ROIAlign(F.relu(self.conv(x)), rois, (3, 3), 0.5, sample_ratio=2)
        scores = F.softmax(self.dense(pooled.reshape((0, -1))))
        ids = F.argmax(scores, axis=1, keepdims=True)
        rows = F.concat(ids, F.max(scores, axis=1, keepdims=True), boxes, dim=1).expand_dims(0)
        rows = F.contrib.box_nms(rows, overlap_thresh=0.7, id_index=0)
        return tuple(rows.slice_axis(2, *ends) for ends in ((0, 1), (1, 2), (2, 6)))


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("served") / "detector"
    mx.random.seed(0)
    net = Detector()
    net.initialize(mx.init.Normal(0.5))
    net.hybridize()
    net(mx.nd.zeros((1, 3, 64, 64)))
    net.export(str(prefix))
    about = {"classes": ["disk", "ring"], "short": 64, "max_size": 96, "resize": "INTER_LINEAR"}
    about.update(mean=[0, 0, 0], std=[255, 255, 255])
    prefix.with_name("detector-metadata.json").write_text(json.dumps(about))
    return str(prefix)


@pytest.fixture(scope="module")
def serve():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        yield importlib.import_module("serve")


def picture(seed):
    pixels = np.random.RandomState(seed).randint(0, 256, (60, 80, 3)).astype("uint8")
    return Image.fromarray(pixels)


def png(seed):
    file = io.BytesIO()
    picture(seed).save(file, "PNG")
    return file.getvalue()


def request(address, body=None):
    with urllib.request.urlopen(address, body, timeout=120) as response:
        return json.load(response)


@pytest.fixture
def server(prefix):
    """The command of the page, on a free port; it has to end by SIGTERM with status 0."""
    (block,) = (b.code for b in blocks_of("docs/production.md") if "gunicorn --" in b.code)
    options = block.replace("\\\n", " ").strip().rpartition("gunicorn ")[2].split()
    options[options.index("examples")] = str(EXAMPLES)
    options += ["--bind", "127.0.0.1:0"]
    environment = {**os.environ, "DETECTOR": prefix}
    command = [sys.executable, "-m", "gunicorn", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        try:
            log = ""
            while not (found := re.search(r"Listening at: (http://\S+)", log)):
                line = process.stderr.readline()
                assert line, log
                log += line
            yield found[1]
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 0
        finally:
            process.kill()


def test_four_workers_return_what_one_process_finds(server, serve, prefix):
    net, about = serve.load(prefix, "mxnet")
    expected = [serve.find(net, about, picture(seed), serve.THRESH) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda seed: request(f"{server}/detect", png(seed)), range(8)))
    for one, rows in zip(found, expected):
        assert [row["class"] for row in one["detections"]] == [row["class"] for row in rows]
        for row, other in zip(one["detections"], rows):
            np.testing.assert_allclose(row["score"], other["score"], atol=1e-4)
            np.testing.assert_allclose(row["box"], other["box"], atol=1e-3)
    assert min(len(rows) for rows in expected) > 2
    health = [request(f"{server}/health") for _ in range(20)]
    assert {one["operators"] for one in health} == {"inference"}
    broken = png(0)[:40] + b"0000" + png(0)[44:]  # Pillow raises SyntaxError
    for body in (b"GIF89a, but no image", broken):
        with pytest.raises(urllib.error.HTTPError) as refused:
            request(f"{server}/detect", body)
        assert refused.value.code == 400
        message = f"expected an image file as the body, got {len(body)} bytes that Pillow does"
        assert json.load(refused.value)["error"] == f"{message} not decode"


def test_the_page_compares_the_three_networks(serve, prefix, capsys, monkeypatch):
    (block,) = blocks_of("docs/production.md", "test_serving.py")
    code = block.code.replace("exported/rfcn", prefix)
    pictures = [picture(seed) for seed in range(2)]
    monkeypatch.setattr(Image, "open", lambda _: pictures.pop())
    exec(code.replace('glob("photos/*.jpg")', "range(2)"), {})
    numbers = [int(n) for n in re.findall(r"\d+", capsys.readouterr().out)]
    assert len(numbers) == 6 and len({*numbers}) == 1 and numbers[0] > 3


@pytest.mark.parametrize(
    "end, operators, message",
    [
        ("", "fast", "OPERATORS is 'fast', expected mxnet, switched or inference"),
        ("s", "mxnet", r"DETECTOR is '.*detectors', but there is no file .*detectors-symbol.json"),
    ],
)
def test_refused(serve, prefix, end, operators, message):
    with pytest.raises(SystemExit, match=message):
        serve.load(prefix + end, operators)
