# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/deploy.md that make and compare files of float16 and int8, on an SSD."""

from __future__ import annotations

import re
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from support.pages import blocks_of

for module in ("onnx", "onnxruntime", "openvino", "gluoncv"):
    pytest.importorskip(module)

import gluon_roi.onnx  # noqa: E402
from testing.onnx_runtimes import zoo  # noqa: E402


@pytest.mark.night
def test_float16_and_int8(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    mx.random.seed(0)
    net = zoo.built(zoo.FAMILIES["SSD"], [mx.nd.zeros((1, 3, 300, 300))])
    gluon_roi.onnx.export(net, [(1, 3, 300, 300)], "detector.onnx")
    random = np.random.RandomState(0)
    images = [random.uniform(-2, 2, (1, 3, 300, 300)).astype("float32") for _ in range(5)]
    names = {"images": images[:2], "others": images[2:]}
    make, compare = blocks_of("docs/deploy.md", "test_small_files.py")
    exec(make.code, names)
    exec(compare.code.replace("0.3)]", "0.05)]"), names)
    sizes = {path.name: path.stat().st_size for path in Path().iterdir()}
    whole = sizes["detector.onnx"]
    assert sizes["float16.onnx"] < 0.55 * whole and sizes["float16.bin"] < 0.55 * whole
    assert sizes["int8.onnx"] < 0.4 * whole
    lines = re.findall(r"(.*): (\d+) rows for (\d+), (\d+) within", capsys.readouterr().out)
    assert len(lines) == 5
    for name, count, total, same in lines:
        assert int(total) > 20 and abs(int(count) - int(total)) <= 0.2 * int(total), name
        assert int(same) >= (0 if "int8" in name else 0.9) * int(total), name
