# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/onnx.md that export a network, and compare it with MXNet."""

from pathlib import Path

import mxnet as mx
import pytest
from mxnet.gluon import nn
from support.pages import blocks_of

import gluon_roi


class Detector(mx.gluon.HybridBlock):
    """Two outputs, as the page's loop expects of a network."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.maps = nn.Conv2D(8, 3, strides=4)

    def hybrid_forward(self, F, image):
        maps = self.maps(image)
        rois = F.concat(F.zeros((2, 1)), F.ones((2, 2)) * 8, F.ones((2, 2)) * 40, dim=1)
        return F.sigmoid(maps), F.gluon_roi.ROIAlign(maps, rois, 2, 1 / 4)


def test_export_and_comparison(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    net = Detector()
    net.initialize(mx.init.Xavier())
    image = mx.nd.random.uniform(shape=(1, 3, 80, 64))
    blocks = blocks_of("docs/onnx.md", "test_onnx_guide.py")
    sizes = []
    for block in blocks:
        code = block.code.replace("600, 800", "64, 96")
        exec(code, {"gluon_roi": gluon_roi, "net": net, "image": image})
        (data,) = onnx.load("detector.onnx").graph.input
        sizes.append([d.dim_param or d.dim_value for d in data.type.tensor_type.shape.dim])
        Path("detector.onnx").unlink()
    by_number = ["data_0", 3, "data_2", "data_3"]
    assert sizes == [by_number, ["batch", 3, "height", "width"], by_number]
