# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/onnx.md that export a network, and compare the file with MXNet."""

import mxnet as mx
import numpy as np
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


def test_export_and_comparison(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    net = Detector()
    net.initialize(mx.init.Xavier())
    image = mx.nd.random.uniform(shape=(1, 3, 64, 96))
    names = {"gluon_roi": gluon_roi, "net": net, "image": image, "np": np}
    blocks = blocks_of("docs/onnx.md", "test_onnx_guide.py")
    assert len(blocks) == 2
    for block in blocks:
        exec(block.code.replace("600, 800", "64, 96"), names)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "(2, 8, 2, 2)" in lines[1]
    assert all(float(line.rpartition(" ")[2]) < 1e-4 for line in lines)
