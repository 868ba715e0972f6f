# SPDX-License-Identifier: Apache-2.0
"""examples/onnxruntime: a detector in C++, against the same file in Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import mxnet as mx
import numpy as np
import presets
import pytest
from mxnet import gluon
from PIL import Image

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
import gluon_roi.onnx  # noqa: E402

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/onnxruntime"
RELEASE = Path(os.environ.get("ONNXRUNTIME", "/usr"))
MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if not (RELEASE / "include/onnxruntime_cxx_api.h").is_file():
        pytest.skip("ONNXRUNTIME names no release of onnxruntime: its wheel has no headers")
    if shutil.which("c++") is None:
        pytest.skip("a C++ compiler is not installed")
    folder, cmake = tmp_path_factory.mktemp("onnxruntime"), presets.find("cmake")
    configure = [cmake, "-S", EXAMPLE, "-B", folder, f"-DONNXRUNTIME={RELEASE}"]
    for command in (configure, [cmake, "--build", folder]):
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    return folder / "detect"


@pytest.fixture
def model(tmp_path):
    """Ids, scores and boxes that depend on every channel; a row of -1, and one below 0.5."""

    class Detector(gluon.HybridBlock):
        def hybrid_forward(self, F, x):
            means = F.mean(x, axis=(2, 3)).reshape((1, 3, 1))
            scores = F.sigmoid(F.concat(means, means * 0 - 9, dim=1)) + 0.3
            ids = F.concat(F.ones_like(means) * 2, F.zeros_like(means) - 1, dim=1)
            return ids, scores, F.concat(*[scores * n for n in (1, 2, 30, 40)], dim=2)

    net = Detector()
    net.hybridize()
    net(mx.nd.zeros((1, 3, 5, 7)))
    path = tmp_path / "detector.onnx"
    names = ["ids", "scores", "boxes"]
    about = {"mean": MEAN, "std": STD}
    gluon_roi.onnx.export(net, [(1, 3, 5, 7)], str(path), output_names=names, metadata=about)
    return path


def run(*command):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


def test_the_same_detections_as_in_python(program, model, tmp_path):
    pixels = np.random.RandomState(0).randint(0, 256, (5, 7, 3)).astype("uint8")
    Image.fromarray(pixels).save(tmp_path / "image.ppm")
    done = run(program, model, tmp_path / "image.ppm")
    assert done.returncode == 0, done.stderr
    mean, std = np.array(MEAN, "float32"), np.array(STD, "float32")
    data = ((pixels - mean) / std).transpose(2, 0, 1)[None]
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    rows = np.concatenate(session.run(None, {"data": data}), axis=2)[0]
    expected = rows[(rows[:, 0] >= 0) & (rows[:, 1] >= 0.5)]
    found = np.array([line.split() for line in done.stdout.splitlines()], float)
    assert len(expected) > 0
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_refused(program, model, tmp_path):
    image = tmp_path / "image.ppm"
    image.write_bytes(b"P6\n7 5\n255\nshort")
    for arguments, message in (
        ([model, image], f"detect: {image}: the file is truncated"),
        ([model, model], f"detect: {model}: expected a binary PPM with 8 bits"),
        ([image, image], "detect: Load model from"),
        ([model], "detect: expected detector.onnx image.ppm"),
    ):
        done = run(program, *arguments)
        assert done.returncode == 1 and done.stderr.startswith(message), done.stderr
