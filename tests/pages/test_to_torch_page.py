# SPDX-License-Identifier: Apache-2.0
"""The code of docs/to_torch.md, in the order of the page, each block after the others."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.pages import blocks_of

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
pytest.importorskip("cv2")

#: In front of code that runs elsewhere: these packages are not found.
WITHOUT = (
    "import sys; sys.modules.update(dict.fromkeys(('mxnet', 'gluon_roi', 'gluon_roi_torch')))\n"
)


def test_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *blocks, elsewhere = (
        block.code for block in blocks_of("docs/to_torch.md", "test_to_torch_page.py")
    )
    names: dict = {"__name__": "page"}
    for code in blocks:
        exec(code, names)
    np.testing.assert_allclose(names["found"], names["expected"], atol=1e-5)
    assert names["losses"][-1] < 0.5 * names["losses"][0]
    command = [sys.executable, "-c", WITHOUT + elsewhere]
    assert "torch.Size([1, 7])" in subprocess.check_output(command, text=True)
    # The weights of the page's last line fit a module of the file.
    module = names["gluon_roi"].onnx.to_torch("scores.onnx")
    module.load_state_dict(torch.load("scores.pt"))
    arrays = names["images"], names["rois"]
    assert module(*arrays).equal(names["module"](*arrays))
