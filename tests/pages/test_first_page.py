# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/switch.md from a photo to a picture with boxes run, with random weights."""

import numpy as np
import pytest
from PIL import Image
from support.pages import blocks_of


@pytest.mark.slow
def test_photo_to_picture(tmp_path, monkeypatch):
    pytest.importorskip("gluoncv")
    monkeypatch.chdir(tmp_path)
    pixels = np.random.RandomState(0).randint(0, 256, (96, 128, 3)).astype(np.uint8)
    Image.fromarray(pixels).save("photo.jpg")
    (block,) = blocks_of("docs/switch.md", "test_first_page.py")
    code = block.code.replace("short=600", "short=96")
    code = code.replace("pretrained=True)", "pretrained_base=False)\nnet.initialize()")
    exec(code, {})
    assert Image.open("detections.png").size > (100, 100)
